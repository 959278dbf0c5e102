"""The classification study (paper, Section 6.1, and our own): what closes the gap between TCP-ViT and Std-ViT.

Its parts, the most important first:

- `screen`: 4 epochs of 45,000 training images, measured on the other 5,000: chooses what is worth longer runs;
- `rate`: the learning rate of the models that matter most, chosen the same way, and one change at a time round the
  best small one, at its rate;
- `gap`: full CIFAR-10, 12 epochs, one factor at a time;
- `own`: the models that matter most, each at its own learning rate;
- `depth`: narrower and deeper networks with as many parameters, 12 epochs, on the same held-out images;
- `long`: their learning rates anew, over the 30 epochs of the finals, on the same held-out images;
- `final`: 30 epochs and three seeds;
- `paper`, `tuned`: the paper's protocol (10,000/2,000 images, 150 epochs) and the same with care, each model at
  the rate that `tuned-rate` chose over 30 epochs on 2,000 of the training images;
- `proxy`: does lr 0.01 without warm-up alone make the difference that the paper sees on SVHN?
- `small-screen`, `small`: the best network of 44.5K and of 120K parameters (`experiments.classification.small`);
- `svhn`, `stl10`, `full`: for whoever has the files, or a GPU.
"""

from __future__ import annotations

from itertools import product

from experiments.classification import small
from experiments.classification.labels import FINALISTS
from experiments.classification.pages import write
from tcpvit.compare.classification import MODELS, PARTS, SEEDS, measured, pairs
from tcpvit.compare.classification import planned as planned_in_the_paper
from tcpvit.compare.study import Planned, Study

FULL, PAPER, TUNED = "cifar-classification", "paper-classification", "tuned-classification"
FAST = ("optimizer.slice_lr_scale=full",)  # a slice has 1/C of the inputs of a dense layer, and learns C times as fast
HELD_OUT = ("data.options.val_fraction=0.1",)
SHORT, LONG = "schedule.epochs=4", "schedule.epochs=30"
STD = MODELS["std"]


def tcp(**options: object) -> tuple[str, ...]:
    """Changes that make a TCP-ViT with these options.

    >>> tcp(tube=6, coupling="mix:rotation,norm")
    ('model.options.tube=6', 'model.options.coupling=[mix:rotation,norm]')
    """
    written = {key: f"[{value}]" if key == "coupling" else value for key, value in options.items()}
    return tuple(f"model.options.{key}={value}" for key, value in written.items())


JOINT = tcp(attention="joint", patch_embed="t_linear")  # what the single factors start from
MIX = (*JOINT, *tcp(coupling="mix:rotation"))
ROOT = ("optimizer.slice_lr_scale=sqrt",)  # half of the way to FAST: √C times as fast
LESS_DECAY = ("optimizer.weight_decay=0.0167",)  # 1/C: what learns C times as fast decays no faster than dense weights


def wide(width: int, tube: int, depth: int, **options: object) -> tuple[str, ...]:
    """A TCP-ViT whose tube is longer than the image's channels, so that the same weights make a wider one."""
    shape = tcp(attention="joint", embed_dim=width, tube=tube, depth=depth, **options)
    return (*shape, *tcp(coupling="mix:rotation,norm"))


def fine(width: int, heads: int, coupling: str = "shared,mix:rotation", **options: object) -> tuple[str, ...]:
    """A TCP-ViT whose tube runs through the 2×2 parts of a patch, with one weight for all of them."""
    shape = {"attention": "joint", "patch_embed": "sub_patch", "tube": 4, "embed_dim": width, "num_heads": heads}
    return tcp(**shape | options, coupling=coupling)


# At most 44.5K parameters (but for `std`), the most important first.
SMALL: dict[str, tuple[str, ...]] = {
    "std": STD,
    "joint": JOINT,
    "joint-full-lr": (*JOINT, *FAST),
    "std-28": (*STD, "model.options.embed_dim=28"),
    "paper": (),
    "paper-norm": tcp(coupling="norm"),
    "fine": fine(112, 7),
    "std-27-patch-2": (*STD, *tcp(patch_size=2, embed_dim=27, num_heads=3)),
    "fast-identity": (*JOINT, *tcp(transform="identity"), *FAST),
    "fast-shallow": (*JOINT, *tcp(embed_dim=54, num_heads=3, depth=3), *FAST),
    "fast-deep": (*JOINT, *tcp(embed_dim=42, num_heads=2, depth=5), *FAST),
    "fast-heads-2": (*JOINT, *tcp(num_heads=2), *FAST),
    "fast-two-factor": (*JOINT, *tcp(coupling="two_factor"), *FAST),
    "fast-two-factor-sqrt": (*JOINT, *tcp(coupling="two_factor"), *ROOT),
    "fast-less-decay": (*JOINT, *FAST, *LESS_DECAY),
    "std-less-decay": (*STD, *LESS_DECAY),
    "std-28-less-decay": (*STD, "model.options.embed_dim=28", *LESS_DECAY),
    "fast-shuffle": (*JOINT, *tcp(coupling="shuffle"), *FAST),
    "fast-norm": (*JOINT, *tcp(coupling="norm"), *FAST),
    "fast-norm-shuffle": (*JOINT, *tcp(coupling="norm,shuffle"), *FAST),
    "fast-mix-start": (*JOINT, *tcp(coupling="mix"), *FAST),
    "fast-spatial": (*JOINT, *tcp(activation_domain="spatial"), *FAST),
    "fast-heads-8": (*JOINT, *tcp(num_heads=8), *FAST),
    "fast-slice": (*tcp(patch_embed="t_linear"), *FAST),
    "fast-none": (*tcp(attention="joint"), *FAST),
    "fast-haar": (*JOINT, *tcp(transform="haar"), *FAST),
    "fast-learned": (*JOINT, *tcp(transform="learned"), *FAST),
    "fast-data": (*JOINT, *tcp(transform="data_driven"), *FAST),
    "fast-partial": (*JOINT, *tcp(embed_dim=45, num_heads=5, coupling="partial:0.05"), *FAST),
    "fast-wide-72x6": (*wide(72, 6, 3), *FAST),
    "fast-mix": (*MIX, *FAST),
    "fast-deep-64x8": (*wide(64, 8, 5), *FAST),
    "sqrt-wide-72x6": (*wide(72, 6, 3), *ROOT),
    "sqrt-deep-64x8": (*wide(64, 8, 5), *ROOT),
    "joint-mix": MIX,
    "joint-mix-norm": (*JOINT, *tcp(coupling="mix:rotation,norm")),
    "two-factor": (*JOINT, *tcp(coupling="two_factor")),
    "paper-full-lr": FAST,
    "spatial": tcp(activation_domain="spatial"),
    "joint-none": tcp(attention="joint"),
    "t-linear": tcp(patch_embed="t_linear"),
    "joint-spatial": (*JOINT, *tcp(activation_domain="spatial")),
    "joint-shuffle": (*JOINT, *tcp(coupling="shuffle")),
    "joint-sqrt-lr": (*JOINT, *ROOT),
    "mix-identity": (*MIX, *tcp(transform="identity")),
    "mix-haar": (*MIX, *tcp(transform="haar")),
    "mix-learned": (*MIX, *tcp(transform="learned")),
    "mix-data": (*MIX, *tcp(transform="data_driven")),
    "joint-heads-2": (*JOINT, *tcp(num_heads=2)),
    "joint-heads-8": (*JOINT, *tcp(num_heads=8)),
}

# Std-ViT's own parameters, 116K to 122K.
WIDE = tcp(attention="joint", embed_dim=81, num_heads=3)
LARGE: dict[str, tuple[str, ...]] = {
    "large-fine": fine(192, 6),
    "large-81x3": (*WIDE, *FAST),
    "large-sqrt": (*WIDE, *ROOT),
    "large-less-decay": (*WIDE, *FAST, *LESS_DECAY),
    "large-deep": (*JOINT, *tcp(depth=12), *FAST),
    "large-63x3": (*tcp(attention="joint", embed_dim=63, num_heads=3, depth=7), *FAST),
}

# Deeper and narrower, with as many parameters; dense ones too, for depth is no change of a c-product.
DEEP: dict[str, tuple[str, ...]] = {
    "large-54x9": (*tcp(attention="joint", embed_dim=54, num_heads=3, depth=9), *FAST),
    "sqrt-36x7": (*JOINT, *tcp(embed_dim=36, num_heads=3, depth=7), *ROOT),
    "std-32x9": (*STD, "model.options.embed_dim=32", "model.options.depth=9"),
    "std-20x8": (*STD, "model.options.embed_dim=20", "model.options.depth=8"),
}

SCREENED = (
    *("fine", "joint-mix", "joint-mix-norm", "joint-full-lr", "fast-wide-72x6", "fast-mix", "std-28", "std", "joint"),
    *("paper", "paper-norm"),
    *LARGE,
)
RATED = (
    "fine",
    "std",
    "std-28",
    "joint-full-lr",
    "fast-identity",
    "paper",
    "paper-norm",
    *LARGE,
)  # whose rate is chosen
# One change each to joint-full-lr, at its rate; and to the dense models what is no change of a c-product.
VARIED = (
    *(name for name in SMALL if name.startswith(("fast-", "sqrt-")) and name not in RATED),
    *("std-27-patch-2", "joint", "joint-sqrt-lr", "two-factor", "std-less-decay", "std-28-less-decay"),
)
EXTRA_RATES = (("large-81x3", 0.0015), ("paper", 0.024), ("paper-norm", 0.024))  # where the best was the last tried
RATES = (0.006, 0.012)  # beside the recipe's own 0.003, which `screen` has
# Each model at its own rate, the best of its short runs.
OWN_RATE = {"std": 0.006, "std-28": 0.006, "joint-full-lr": 0.006, "fast-less-decay": 0.006, "paper": 0.012}
OWN_RATE |= {"paper-norm": 0.012}
OWN_RATE |= {"joint-sqrt-lr": 0.006, "large-81x3": 0.003, "fine": 0.006, "large-fine": 0.006}
RECIPE_RATE = 0.003  # a model whose own rate this is was trained in `gap`
# Of the tuned recipe: tried on held-out images, until the best is not the last; and the best of each model.
TUNED_RATES = {"std": (0.004, 0.002, 0.008), "tcp": (0.004, 0.002, 0.008, 0.016, 0.032)}
TUNED_RATE = {"std": 0.004, "tcp": 0.016}
# A rate that is best for 4 epochs may be too high for 30: slices that learn C times as fast have the highest of all.
LONG_RATES = {
    "joint-sqrt-lr": (0.006,),
    "joint-full-lr": (0.003, 0.006),
    "std-28": (0.006, 0.003),
    "std": (0.006, 0.003),
}
# Each deep network beside the one of 4 blocks, both at the rate of the latter.
DEPTH_RATES = {"large-54x9": 0.003, "large-81x3": 0.003, "sqrt-36x7": 0.006, "joint-sqrt-lr": 0.006}
DEPTH_RATES |= {"std-32x9": 0.006, "std": 0.006, "std-20x8": 0.006, "std-28": 0.006, "large-deep": 0.003}


def planned() -> list[Planned]:
    """Every run of the study, the most important first."""
    models = SMALL | LARGE
    paper = {part: [run for run in planned_in_the_paper() if run.group == part] for part in PARTS}
    return [
        *(Planned("screen", name, FULL, (*HELD_OUT, SHORT, *models[name])) for name in SCREENED),
        *(Planned("gap", name, FULL, models[name]) for name in models),
        *(
            Planned("rate", f"{name}-{rate}", FULL, (*HELD_OUT, SHORT, *models[name], f"optimizer.lr={rate}"))
            for name, rate in (*product(RATED, RATES), *product(VARIED, RATES[:1]), *EXTRA_RATES)
        ),
        *(
            Planned("own", name, FULL, (*models[name], f"optimizer.lr={OWN_RATE[name]}"))
            for name in OWN_RATE
            if OWN_RATE[name] != RECIPE_RATE
        ),
        *(
            Planned("depth", name, FULL, (*HELD_OUT, *(models | DEEP)[name], f"optimizer.lr={rate}"))
            for name, rate in DEPTH_RATES.items()
        ),
        *(
            Planned("long", f"{name}-{rate}", FULL, (*HELD_OUT, LONG, *models[name], f"optimizer.lr={rate}"))
            for name, rates in LONG_RATES.items()
            for rate in rates
        ),
        *(
            Planned("final", name, FULL, (*models[name], f"optimizer.lr={OWN_RATE[name]}", LONG), seed)
            for seed, name in product(SEEDS, FINALISTS)
        ),
        *paper["paper"],
        *_tuned_rates(),
        *pairs("tuned", TUNED, ("data.name=cifar10", "precision=bfloat16"), TUNED_RATE),
        *_proxy(),
        *small.planned(),
        *(run for part in ("svhn", "stl10", "full") for run in paper[part]),
    ]


def _tuned_rates() -> list[Planned]:
    """Short runs of the tuned recipe at several rates, on images held out of the 10,000."""
    changes = ("data.name=cifar10", "precision=bfloat16", "data.options.val_fraction=0.2", LONG)
    return [
        Planned("tuned-rate", f"{name}-{rate}", TUNED, (*model, *changes, f"optimizer.lr={rate}"))
        for name, model in MODELS.items()
        for rate in TUNED_RATES[name]
    ]


def _proxy() -> list[Planned]:
    """Both recipes with and without warm-up, on digits that lie on photographs, seed by seed."""
    data = ("data.name=digits-on-photos", "data.options={level: hard}", "augment.flip=0", "schedule.epochs=30")
    return [
        Planned("proxy", f"{name}-{label}", recipe, (*model, *data, f"schedule.warmup_epochs={warmup}"), seed)
        for seed in SEEDS
        for label, recipe, warmup in (
            ("paper", PAPER, 0),
            ("paper-warm", PAPER, 3),
            ("tuned", TUNED, 3),
            ("tuned-cold", TUNED, 0),
        )
        for name, model in MODELS.items()
    ]


STUDY = Study("classification", planned, measured, write)
