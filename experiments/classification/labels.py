"""What the runs of the classification study are called, and what is asked of them."""

from __future__ import annotations

LEGEND = (
    "**J**: joint attention and a c-product patch embedding (`t_linear`). **F**: slice-wise weights learn C times as "
    "fast as the others (`optimizer.slice_lr_scale=full`). **D**: all weight decay is divided by C. **S**: the tube "
    "runs through the 2×2 parts of a patch instead of the channels, the four slices, 28 wide, share all weights, and "
    "in each linear map a learned 4×4 matrix mixes them, starting at a random rotation; joint attention, 7 heads. "
    "`tcp_vit_cifar_plus` is J, `tcp_vit_cifar_wide` is J at width 81 with 3 heads a slice; a preset is a model, and "
    "each table says how fast its slices learn."
)
LABELS = {
    "fine": "S",
    "fine-apart": "S, not mixed",
    "fine-slice": "S, attention slice by slice",
    "fine-identity": "S, no transform",
    "fine-heads-4": "S, 4 heads a slice",
    "fine-channels": "S, but the channels are the tube",
    "fine-own": "S, but own weights for each slice, 12 wide, 5 blocks, 4 heads a slice",
    "large-fine": "S, slices 48 wide, 6 heads a slice",
    "std-27-patch-2": "Std-ViT, width 27, patches of 2×2",
    "std": "Std-ViT, width 48",
    "std-less-decay": "Std-ViT, width 48, a third of the decay",
    "std-28": "Std-ViT, width 28: the dense ViT of TCP-ViT's size",
    "std-28-less-decay": "Std-ViT, width 28, a third of the decay",
    "paper": "TCP-ViT as in the paper",
    "paper-norm": "the paper's, joint norm",
    "tcp": "TCP-ViT as in the paper",  # where it is one of the paper's pair
    "spatial": "the paper's, GELU in the spatial domain",
    "joint-none": "the paper's, joint attention",
    "t-linear": "the paper's, t_linear patch embedding",
    "paper-full-lr": "the paper's, F",
    "joint": "J",
    "joint-spatial": "J, spatial GELU",
    "joint-shuffle": "J, shuffle",
    "joint-mix": "J, mix from rotations",
    "joint-mix-norm": "J, mix from rotations, joint norm",
    "two-factor": "J, two-factor maps",
    "joint-sqrt-lr": "J, slices learn √C times as fast",
    "joint-full-lr": "J, F",
    "mix-identity": "J, mix from rotations, no transform",
    "mix-haar": "J, mix from rotations, Haar",
    "mix-learned": "J, mix from rotations, learned transform",
    "mix-data": "J, mix from rotations, data-driven transform",
    "joint-heads-2": "J, 2 heads a slice",
    "joint-heads-8": "J, 8 heads a slice",
    "fast-less-decay": "J, F, D",
    "fast-identity": "J, F, no transform",
    "fast-haar": "J, F, Haar",
    "fast-learned": "J, F, learned transform",
    "fast-data": "J, F, data-driven transform",
    "fast-shallow": "J, F, width 54, 3 blocks, 3 heads a slice",
    "fast-deep": "J, F, width 42, 5 blocks, 2 heads a slice",
    "fast-heads-2": "J, F, 2 heads a slice",
    "fast-heads-8": "J, F, 8 heads a slice",
    "fast-two-factor": "J, two-factor maps, slices learn 2C times as fast",
    "fast-two-factor-sqrt": "J, two-factor maps, slices learn √(2C) times as fast",
    "fast-shuffle": "J, F, shuffle",
    "fast-norm": "J, F, joint norm",
    "fast-norm-shuffle": "J, F, joint norm, shuffle",
    "fast-mix": "J, F, mix from rotations",
    "fast-mix-start": "J, F, mix from the identity",
    "fast-spatial": "J, F, spatial GELU",
    "fast-slice": "the paper's, t_linear patch embedding, F",
    "fast-none": "the paper's, joint attention, F",
    "fast-partial": "J, F, width 45, 5 % of the features read all slices",
    "fast-wide-72x6": "width 72, tube 6, 3 blocks, joint attention, F, mix from rotations, joint norm",
    "fast-deep-64x8": "width 64, tube 8, 5 blocks, joint attention, F, mix from rotations, joint norm",
    "sqrt-wide-72x6": "width 72, tube 6, 3 blocks, joint attention, √C, mix from rotations, joint norm",
    "sqrt-deep-64x8": "width 64, tube 8, 5 blocks, joint attention, √C, mix from rotations, joint norm",
    "large-81x3": "J, F, width 81, 3 heads a slice",
    "large-sqrt": "J, width 81, 3 heads a slice, slices learn √C times as fast",
    "large-less-decay": "J, F, D, width 81, 3 heads a slice",
    "large-63x3": "J, F, width 63, 7 blocks, 3 heads a slice",
    "large-deep": "J, F, 12 blocks",
    "large-54x9": "J, F, width 54, 9 blocks, 3 heads a slice",
    "sqrt-36x7": "J, width 36, 7 blocks, 3 heads a slice, slices learn √C times as fast",
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
TRANSFORMS = {  # changes of it: in a sentence
    "Haar instead of the DCT": "Haar",
    "a learned transform that starts at the DCT": "a learned one",
    "the data's own transform instead of the DCT": "the data's own",
}
# The same round J, by short runs: what is changed, from which run to which. Two factors are compared at the same scale
# of the slices' rate.
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
# The same round S, all of about its parameters.
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
PRESETS = {"std": "std_vit_cifar", "paper": "tcp_vit_cifar", PLUS: "tcp_vit_cifar_plus", WIDE: "tcp_vit_cifar_wide"}
FINALISTS = ("fine", "large-fine", "joint-sqrt-lr", "joint-full-lr", "std", "std-28", "large-81x3", "paper", "paper-norm")
TARGETS = {  # of one model against another: in words, and by how many points
    (PLUS, "std-28"): ("at most 44.5K parameters: 3 points ahead of the dense ViT of that size", 3.0),
    (PLUS, "std"): ("the same within 2 points of Std-ViT", -2.0),
    (WIDE, "std"): ("with Std-ViT's parameters: 2 points ahead of it", 2.0),
}
PAPER_EPOCHS = 150
QUOTED = {"cifar10": (61.8, 63.6), "svhn": (49.8, 63.8), "stl10": (52.5, 55.9), "full": (78.7, 73.4)}
