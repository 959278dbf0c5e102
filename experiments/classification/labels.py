"""What the runs of the classification study are called, and which of them are compared.

TCP-ViT+ is `tcp_vit_cifar_plus`: joint attention and a c-product patch embedding. "slice rate ×C": slice-wise weights
have C times the learning rate of the others (`optimizer.slice_lr_scale`). "sub-patch": the tube runs through the 2×2
parts of a patch instead of the channels, all slices share their weights, and a learned 4×4 matrix mixes them.
"""

from __future__ import annotations

LABELS = {
    "fine": "TCP-ViT sub-patch",
    "fine-apart": "TCP-ViT sub-patch, not mixed",
    "fine-slice": "TCP-ViT sub-patch, attention slice by slice",
    "fine-identity": "TCP-ViT sub-patch, no transform",
    "fine-heads-4": "TCP-ViT sub-patch, 4 heads a slice",
    "fine-channels": "TCP-ViT sub-patch, but the channels are the tube",
    "fine-own": "TCP-ViT sub-patch, but own weights for each slice, 12 wide, 5 blocks, 4 heads a slice",
    "large-fine": "TCP-ViT sub-patch, slices 48 wide, 6 heads a slice",
    "std-27-patch-2": "Std-ViT, width 27, patches of 2×2",
    "std": "Std-ViT, width 48",
    "std-less-decay": "Std-ViT, width 48, weight decay / 3",
    "std-28": "Std-ViT, width 28: the dense ViT of TCP-ViT's size",
    "std-28-less-decay": "Std-ViT, width 28, weight decay / 3",
    "paper": "TCP-ViT as in the paper",
    "paper-norm": "TCP-ViT as in the paper, one norm over all slices",
    "tcp": "TCP-ViT as in the paper",  # where it is one of the paper's pair
    "spatial": "TCP-ViT as in the paper, GELU in the spatial domain",
    "joint-none": "TCP-ViT as in the paper, joint attention",
    "t-linear": "TCP-ViT as in the paper, t_linear patch embedding",
    "paper-full-lr": "TCP-ViT as in the paper, slice rate ×C",
    "joint": "TCP-ViT+",
    "joint-spatial": "TCP-ViT+, spatial GELU",
    "joint-shuffle": "TCP-ViT+, shuffle",
    "joint-mix": "TCP-ViT+, mix from rotations",
    "joint-mix-norm": "TCP-ViT+, mix from rotations, one norm over all slices",
    "two-factor": "TCP-ViT+, two-factor maps",
    "joint-sqrt-lr": "TCP-ViT+, slice rate ×√C",
    "joint-full-lr": "TCP-ViT+, slice rate ×C",
    "mix-identity": "TCP-ViT+, mix from rotations, no transform",
    "mix-haar": "TCP-ViT+, mix from rotations, Haar",
    "mix-learned": "TCP-ViT+, mix from rotations, learned transform",
    "mix-data": "TCP-ViT+, mix from rotations, data-driven transform",
    "joint-heads-2": "TCP-ViT+, 2 heads a slice",
    "joint-heads-8": "TCP-ViT+, 8 heads a slice",
    "fast-less-decay": "TCP-ViT+, slice rate ×C, weight decay / C",
    "fast-identity": "TCP-ViT+, slice rate ×C, no transform",
    "fast-haar": "TCP-ViT+, slice rate ×C, Haar",
    "fast-learned": "TCP-ViT+, slice rate ×C, learned transform",
    "fast-data": "TCP-ViT+, slice rate ×C, data-driven transform",
    "fast-shallow": "TCP-ViT+, slice rate ×C, width 54, 3 blocks, 3 heads a slice",
    "fast-deep": "TCP-ViT+, slice rate ×C, width 42, 5 blocks, 2 heads a slice",
    "fast-heads-2": "TCP-ViT+, slice rate ×C, 2 heads a slice",
    "fast-heads-8": "TCP-ViT+, slice rate ×C, 8 heads a slice",
    "fast-two-factor": "TCP-ViT+, two-factor maps, slice rate ×2C",
    "fast-two-factor-sqrt": "TCP-ViT+, two-factor maps, slice rate ×√(2C)",
    "fast-shuffle": "TCP-ViT+, slice rate ×C, shuffle",
    "fast-norm": "TCP-ViT+, slice rate ×C, one norm over all slices",
    "fast-norm-shuffle": "TCP-ViT+, slice rate ×C, one norm over all slices, shuffle",
    "fast-mix": "TCP-ViT+, slice rate ×C, mix from rotations",
    "fast-mix-start": "TCP-ViT+, slice rate ×C, mix from the identity",
    "fast-spatial": "TCP-ViT+, slice rate ×C, spatial GELU",
    "fast-slice": "TCP-ViT as in the paper, t_linear patch embedding, slice rate ×C",
    "fast-none": "TCP-ViT as in the paper, joint attention, slice rate ×C",
    "fast-partial": "TCP-ViT+, slice rate ×C, width 45, 5 % of the features read all slices",
    "fast-wide-72x6": "TCP-ViT+, slice rate ×C, width 72, tube 6, 3 blocks, mix from rotations, one norm",
    "fast-deep-64x8": "TCP-ViT+, slice rate ×C, width 64, tube 8, 5 blocks, mix from rotations, one norm",
    "sqrt-wide-72x6": "TCP-ViT+, slice rate ×√C, width 72, tube 6, 3 blocks, mix from rotations, one norm",
    "sqrt-deep-64x8": "TCP-ViT+, slice rate ×√C, width 64, tube 8, 5 blocks, mix from rotations, one norm",
    "large-81x3": "TCP-ViT+ wide (width 81, 3 heads a slice), slice rate ×C",
    "large-sqrt": "TCP-ViT+ wide, slice rate ×√C",
    "large-less-decay": "TCP-ViT+ wide, slice rate ×C, weight decay / C",
    "large-63x3": "TCP-ViT+, slice rate ×C, width 63, 7 blocks, 3 heads a slice",
    "large-deep": "TCP-ViT+, slice rate ×C, 12 blocks",
    "large-54x9": "TCP-ViT+, slice rate ×C, width 54, 9 blocks, 3 heads a slice",
    "sqrt-36x7": "TCP-ViT+, width 36, 7 blocks, 3 heads a slice, slice rate ×√C",
    "std-32x9": "Std-ViT, width 32, 9 blocks",
    "std-20x8": "Std-ViT, width 20, 8 blocks",
}
RECIPES = {
    "paper": "the paper's recipe, lr 0.01",
    "paper-warm": "the paper's recipe after 3 epochs of warm-up",
    "tuned": "the tuned recipe",
    "tuned-cold": "the tuned recipe without warm-up",
}
LABELS |= {f"std-{name}": f"Std-ViT, {said}" for name, said in RECIPES.items()}
LABELS |= {f"tcp-{name}": f"TCP-ViT as in the paper, {said}" for name, said in RECIPES.items()}
LABELS |= {  # `experiments.classification.small`: overlapping patches, depthwise filters in the FFN, pooled attention
    "tcp-44k": "TCP-ViT of 2 slices with shared weights: 68 wide, 4 blocks",
    "std-44k": "`std_vit_cifar_44k`, its dense twin: 34 wide, 4 blocks",
    "tcp-44k-mixed": "`tcp_vit_cifar_44k`: 4 slices mixed by learned matrices, 64 wide, 4 blocks",
    "tcp-120k": "`tcp_vit_cifar_120k`: 2 slices with shared weights, 92 wide, 6 blocks",
    "tcp-120k-mixed": "TCP-ViT of 4 slices mixed by learned matrices: 88 wide, 6 blocks",
    "std-120k": "`std_vit_cifar_120k`, its dense twin: 46 wide, 6 blocks",
    "tcp-96-r1": "TCP-ViT, 96 wide, hidden layer as wide, slices not shuffled",
    "tcp-80-r2": "TCP-ViT, 80 wide, hidden layer twice as wide, slices not shuffled",
    "tcp-80-r2-shuffle": "TCP-ViT, 80 wide, hidden layer twice as wide",
    "tcp-56-tube-2": "TCP-ViT of 2 slices, 56 wide, hidden layer twice as wide",
    "tcp-64-deep": "TCP-ViT, 64 wide, 3 blocks, hidden layer twice as wide",
    "std-32-deep": "dense, 32 wide, 3 blocks, hidden layer twice as wide",
    "std-48-r1": "dense, 48 wide, hidden layer as wide",
    "std-40-r2": "dense, 40 wide, hidden layer twice as wide",
    "std-40-fine": "dense, 40 wide, 3 blocks, patches of 2×2",
    "std-28-fine-deep": "dense, 28 wide, 6 blocks, patches of 2×2",
    "tcp-52-fine": "TCP-ViT of 2 slices, 52 wide, 3 blocks, patches of 2×2",
    "tcp-76-fine-shared": "TCP-ViT of 2 slices with shared weights, 76 wide, 3 blocks, patches of 2×2",
    "std-34-fine": "dense, 34 wide",
    "tcp-64-fine-shuffle": "TCP-ViT of 4 slices, 64 wide, shuffled",
    "tcp-64-fine-mix": "TCP-ViT of 4 slices, 64 wide, mixed by learned matrices",
    "tcp-48-fine-shuffle": "TCP-ViT of 2 slices, 48 wide, shuffled",
    "tcp-68-fine-shared": "TCP-ViT of 2 slices with shared weights, 68 wide",
}
# The same models, with another rate for slices.
SAME = {"joint-sqrt-lr": "joint-full-lr", "large-sqrt": "large-81x3"}
# One factor at a time: what is changed, from which run to which.
FACTORS = (
    ("slices attend jointly", "paper", "joint-none"),
    ("a c-product patch embedding", "paper", "t-linear"),
    ("joint attention and a c-product patch embedding", "paper", "joint"),
    ("GELU in the spatial domain, alone", "paper", "spatial"),
    ("GELU in the spatial domain, beside joint attention", "joint", "joint-spatial"),
    ("learned mixing of slices", "joint", "joint-mix"),
    ("shuffling of slices", "joint", "joint-shuffle"),
    ("a norm over all slices, beside mixing", "joint-mix", "joint-mix-norm"),
    ("two factors with a shuffle between", "joint", "two-factor"),
    ("slice weights learn √C times as fast", "joint", "joint-sqrt-lr"),
    ("slice weights learn C times as fast", "joint", "joint-full-lr"),
    ("no transform instead of the DCT", "joint-mix", "mix-identity"),
    ("Haar instead of the DCT", "joint-mix", "mix-haar"),
    ("a learned transform instead of the DCT", "joint-mix", "mix-learned"),
    ("the data's own transform instead of the DCT", "joint-mix", "mix-data"),
    ("2 heads a slice instead of 4", "joint", "joint-heads-2"),
    ("8 heads a slice instead of 4", "joint", "joint-heads-8"),
    ("slice weights learn C times as fast, in the paper's model", "paper", "paper-full-lr"),
    ("width 72 with tube 6 instead of 48 with 3", "fast-mix", "fast-wide-72x6"),
    ("width 64 with tube 8 and 5 blocks", "fast-mix", "fast-deep-64x8"),
)
PLUS, WIDE, FINE = "joint-full-lr", "large-81x3", "fine"
NO_TRANSFORM = "no transform instead of the DCT"
TRANSFORMS = (
    NO_TRANSFORM,
    "Haar instead of the DCT",
    "a learned transform that starts at the DCT",
    "the data's own transform instead of the DCT",
)
# The same round TCP-ViT+, by short runs: what is changed, from which run to which. Two factors are compared at the
# same scale of the slices' rate.
CHANGES = (
    ("attention slice by slice", PLUS, "fast-slice"),
    ("no patch embedding", PLUS, "fast-none"),
    ("slices learn √C times as fast", PLUS, "joint-sqrt-lr"),
    ("slices learn as fast as the rest", PLUS, "joint"),
    (NO_TRANSFORM, PLUS, "fast-identity"),
    ("Haar instead of the DCT", PLUS, "fast-haar"),
    ("a learned transform that starts at the DCT", PLUS, "fast-learned"),
    ("the data's own transform instead of the DCT", PLUS, "fast-data"),
    ("GELU in the spatial domain", PLUS, "fast-spatial"),
    ("2 heads a slice instead of 4", PLUS, "fast-heads-2"),
    ("8 heads a slice instead of 4", PLUS, "fast-heads-8"),
    ("width 54 with 3 blocks (and 3 heads) instead of 48 with 4", PLUS, "fast-shallow"),
    ("width 42 with 5 blocks (and 2 heads) instead of 48 with 4", PLUS, "fast-deep"),
    ("slices are shuffled", PLUS, "fast-shuffle"),
    ("slices are mixed, from random rotations", PLUS, "fast-mix"),
    ("slices are mixed, from the identity", PLUS, "fast-mix-start"),
    ("a norm over all slices", PLUS, "fast-norm"),
    ("a norm over all slices, and a shuffle", PLUS, "fast-norm-shuffle"),
    ("two factors with a shuffle between, all learning as fast as the rest", "joint", "two-factor"),
    ("two factors with a shuffle between, which learn 2C times as fast, not C", PLUS, "fast-two-factor"),
    ("two factors with a shuffle between, √(2C) times as fast, not √C", "joint-sqrt-lr", "fast-two-factor-sqrt"),
    ("weight decay divided by C", PLUS, "fast-less-decay"),
    ("width 45, where 5 % of the features read all slices", PLUS, "fast-partial"),
    ("width 72 with tube 6 and 3 blocks, mixed, a norm over all slices", PLUS, "fast-wide-72x6"),
    ("width 64 with tube 8 and 5 blocks, mixed, a norm over all slices", PLUS, "fast-deep-64x8"),
    ("width 72 with tube 6 and 3 blocks, mixed, a norm over all slices, √C times as fast", PLUS, "sqrt-wide-72x6"),
    ("width 64 with tube 8 and 5 blocks, mixed, a norm over all slices, √C times as fast", PLUS, "sqrt-deep-64x8"),
)
# The same round the sub-patch model, all of about its parameters.
CHANGES_OF_FINE = (
    ("slices are not mixed", FINE, "fine-apart"),
    ("attention slice by slice", FINE, "fine-slice"),
    (NO_TRANSFORM, FINE, "fine-identity"),
    ("4 heads a slice instead of 7", FINE, "fine-heads-4"),
    ("the three channels as the tube instead of the parts of a patch", FINE, "fine-channels"),
    ("own weights for each slice, 12 wide with 5 blocks instead of 28 with 4", FINE, "fine-own"),
    ("a dense ViT, 27 wide, with patches of 2×2: four times the tokens", FINE, "std-27-patch-2"),
)
# Width against depth, with as many parameters.
DEPTHS = (
    ("`tcp_vit_cifar_plus`: 7 blocks of width 36 instead of 4 of width 48", "joint-sqrt-lr", "sqrt-36x7"),
    ("dense, as small: 8 blocks of width 20 instead of 4 of width 28", "std-28", "std-20x8"),
    ("`tcp_vit_cifar_wide`: 9 blocks of width 54 instead of 4 of width 81", WIDE, "large-54x9"),
    ("`tcp_vit_cifar_wide`: 12 blocks of width 48 instead of 4 of width 81", WIDE, "large-deep"),
    ("dense, Std-ViT's parameters: 9 blocks of width 32 instead of 4 of width 48", "std", "std-32x9"),
)
FINALISTS = (
    *("fine", "large-fine", "joint-sqrt-lr", "joint-full-lr", "std", "std-28", "large-81x3"),
    *("paper", "paper-norm"),
)
PRESETS = {  # in the README, where people look for what to use
    "std": "`std_vit_cifar`, dense",
    "std-28": "the same, 28 wide: the dense ViT of TCP-ViT's size",
    "paper": "`tcp_vit_cifar`, as in the paper",
    "paper-norm": "the same, one norm over all slices",
    PLUS: "`tcp_vit_cifar_plus`: joint attention, c-product patch embedding",
    WIDE: "`tcp_vit_cifar_wide`: the same, 81 wide, 3 heads a slice",
}
