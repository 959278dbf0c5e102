"""The best network that a number of parameters buys: spatial layers and a recipe of its own, for TCP and dense alike.

The rest of the study keeps tokens, stem and recipe, and changes the layers. Here these are chosen too: overlapping
patches by convolutions, depthwise 3×3 filters in the FFN, attention between pooled tokens, the mean of all for the
head. A dense ViT gets all of it; c-products buy it twice the width for the same weights.

- `small-screen`: short runs on held-out training images, as many of the dense ViT as of the TCP-ViT;
- `small-structure`: longer ones of the dense ViT that won, and of TCP-ViTs whose slices have weights of their own;
- `small-regularise`: ones of 16 epochs of the dense ViT of 120K parameters, which overfits, with a remedy each;
- `small`: the finals, test images, the recipe's 40 epochs.
"""

from __future__ import annotations

from itertools import product

from tcpvit.compare.classification import SEEDS
from tcpvit.compare.study import Planned

RECIPE = "small-classification"
HELD_OUT = ("data.options.val_fraction=0.1", "optimizer.slice_lr_scale=sqrt")
SHORT = ("schedule.epochs=2", "schedule.warmup_epochs=0.5")
LONGER = ("schedule.epochs=8", "evaluation.every=8")
SPATIAL = {"patch_embed": "conv", "class_token": False, "global_pool": "avg", "positions": False, "local": 3}
SPATIAL |= {"attention_pool": 2, "zero_residual": True, "depth": 2}


def near(kind: str, width: int, stem: int | None, ratio: float, **options: object) -> tuple[str, ...]:
    """Changes that make a ViT whose tokens know their neighbours.

    >>> near("std", 48, 24, 1.0)[:2]
    ('model.name=std_vit_cifar', 'model.options.patch_embed=conv')
    """
    tensor = {"attention": "joint", "tube": 4, "coupling": "[norm]"} if kind == "tcp" else {}
    sizes = {"embed_dim": width, "mlp_ratio": ratio} | ({} if stem is None else {"stem_width": stem})
    chosen = {**SPATIAL, **tensor, **sizes, **options}
    return (f"model.name={kind}_vit_cifar", *(f"model.options.{key}={value}" for key, value in chosen.items()))


# Patches of 2 pixels, which attend to the means of 4 × 4 of them.
FINE = {"patch_size": 2, "depth": 3, "attention_pool": 4}
FINE_TCP = {**FINE, "tube": 2, "num_heads": 2}

# At most 44.5K parameters, the same trials for both.
TRIED = {
    "tcp-96-r1": near("tcp", 96, 44, 1.0),
    "std-48-r1": near("std", 48, 28, 1.0),
    "tcp-80-r2": near("tcp", 80, 56, 2.0),
    "std-40-r2": near("std", 40, 38, 2.0),
    "tcp-80-r2-shuffle": near("tcp", 80, 56, 2.0, coupling="[norm,shuffle]"),
    "tcp-56-tube-2": near("tcp", 56, 50, 2.0, coupling="[norm,shuffle]", tube=2),
    "std-32-deep": near("std", 32, 48, 2.0, depth=3),
    "tcp-64-deep": near("tcp", 64, 64, 2.0, coupling="[norm,shuffle]", depth=3),
    "std-40-fine": near("std", 40, None, 2.0, **FINE),
    "std-28-fine-deep": near("std", 28, None, 2.0, **FINE | {"depth": 6}),
    "tcp-52-fine": near("tcp", 52, None, 2.0, coupling="[norm,shuffle]", **FINE_TCP),
    "tcp-76-fine-shared": near("tcp", 76, None, 2.0, coupling="[norm,shared,mix]", **FINE_TCP),
}
RATES = {
    "std-40-r2": (0.004, 0.008, 0.016),
    "tcp-80-r2-shuffle": (0.004, 0.008),
    "tcp-56-tube-2": (0.008, 0.016),
    **dict.fromkeys(("std-32-deep", *(name for name in TRIED if "fine" in name)), (0.008,)),
}  # else 0.004
# After 8 epochs, all with the tokens of `FINE` and 4 blocks: twice the width for the same weights may also come from
# slices of half the width with their own weights, at as many FLOPs as the dense ViT's.
FOUR = {**FINE, "depth": 4, "num_heads": 2}
STRUCTURES = {
    "std-34-fine": near("std", 34, None, 2.0, **FOUR),
    "tcp-64-fine-shuffle": near("tcp", 64, None, 2.0, **FOUR, coupling="[norm,shuffle]"),
    "tcp-64-fine-mix": near("tcp", 64, None, 2.0, **FOUR, coupling="[norm,mix:rotation]"),
    "std-28-fine": near("std", 28, None, 2.0, **FOUR | {"depth": 6}),
    "tcp-60-fine-mix": near("tcp", 60, None, 2.0, **FOUR | {"depth": 6, "tube": 6}, coupling="[norm,mix:rotation]"),
    "tcp-80-fine-mix": near("tcp", 80, None, 2.0, **FOUR | {"tube": 8}, coupling="[norm,mix:rotation]"),
    "tcp-48-fine-shuffle": near("tcp", 48, None, 2.0, **FOUR, tube=2, coupling="[norm,shuffle]"),
    "tcp-68-fine-shared": near("tcp", 68, None, 2.0, **FOUR, tube=2, coupling="[norm,shared,mix]"),
}
# Of the dense ViT of 120K parameters, which fits its training images almost exactly: a remedy each.
LONG = ("schedule.epochs=16", "evaluation.every=16")
REMEDIES = {
    "plain": (),
    "cutmix": ("augment.cutmix=0.2",),  # most pairs exchange little
    "smooth": ("optimizer.label_smoothing=0.1",),
    "erase": ("augment.erase=0.25",),
}
# What the trials chose; evaluated every fourth epoch.
SLOWLY = ("optimizer.lr=0.008", "evaluation.every=4")
FINALS = {name: (f"model.name={name.replace('-', '_vit_cifar_')}", *SLOWLY) for name in ("std-44k", "std-120k")}
FINALS["tcp-120k"] = (
    *near("tcp", 92, None, 2.0, **FOUR | {"depth": 6, "tube": 2}, coupling="[norm,shared,mix]"),
    *SLOWLY,
)
FINALS["tcp-44k"] = (*STRUCTURES["tcp-68-fine-shared"], *SLOWLY)
FINALS["tcp-44k-mixed"] = (*STRUCTURES["tcp-64-fine-mix"], *SLOWLY)  # the preset tcp_vit_cifar_44k
FINALS["tcp-120k-mixed"] = (*near("tcp", 88, None, 2.0, **FOUR | {"depth": 6}, coupling="[norm,mix:rotation]"), *SLOWLY)
FINALS |= {f"{name}-smooth": (*FINALS[name], *REMEDIES["smooth"]) for name in ("tcp-120k-mixed", "std-120k")}


def planned() -> list[Planned]:
    """Every run, the most important first."""
    return [
        *(
            Planned("small-screen", f"{name}-{rate}", RECIPE, (*HELD_OUT, *SHORT, *TRIED[name], f"optimizer.lr={rate}"))
            for name in TRIED
            for rate in RATES.get(name, (0.004,))
        ),
        *(
            Planned("small-structure", name, RECIPE, (*HELD_OUT, *LONGER, *changes, "optimizer.lr=0.008"))
            for name, changes in STRUCTURES.items()
        ),
        *(
            Planned("small-regularise", f"std-120k-{name}", RECIPE, (*HELD_OUT, *FINALS["std-120k"], *LONG, *changes))
            for name, changes in REMEDIES.items()
        ),
        *(Planned("small", name, RECIPE, FINALS[name], seed) for seed, name in product(SEEDS, FINALS)),
    ]
