"""The tables of the classification study, from its records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from tcpvit.studies.intervals import signed, spread
from tcpvit.studies.study import Record
from tcpvit.tables import Table, Written
from tcpvit.training.progress import duration

LABELS = {
    "std": "Std-ViT, width 48",
    "std-28": "Std-ViT, width 28: the dense ViT of TCP-ViT's size",
    "paper": "TCP-ViT as in the paper",
    "spatial": "the paper's, GELU in the spatial domain",
    "joint-none": "the paper's, joint attention",
    "t-linear": "the paper's, t_linear patch embedding",
    "joint": "joint attention and t_linear embedding (J)",
    "joint-spatial": "J, spatial GELU",
    "joint-shuffle": "J + shuffle",
    "joint-mix": "J + mix (rotations)",
    "joint-mix-norm": "J + mix + joint norm",
    "two-factor": "J, two-factor maps",
    "joint-sqrt-lr": "J, slices learn √C as fast",
    "joint-full-lr": "J, slices learn C times as fast",
    "mix-identity": "J + mix, no transform",
    "mix-haar": "J + mix, Haar",
    "mix-learned": "J + mix, learned transform",
    "mix-data": "J + mix, data-driven transform",
    "joint-heads-2": "J, 2 heads a slice",
    "joint-heads-8": "J, 8 heads a slice",
    "paper-full-lr": "the paper's, slices learn C times as fast",
    "fast-identity": "J, no transform, slices learn C times as fast",
    "fast-shallow": "width 54, 3 blocks, J, slices learn C times as fast",
    "fast-deep": "width 42, 5 blocks, J, slices learn C times as fast",
    "fast-heads-2": "J, 2 heads a slice, slices learn C times as fast",
    "fast-two-factor": "J, two-factor maps, slices learn C times as fast",
    "fast-two-factor-sqrt": "J, two-factor maps, slices learn √(2C) as fast",
    "fast-less-decay": "J, slices learn C times as fast and decay no faster (D)",
    "std-less-decay": "Std-ViT, width 48, a third of the decay",
    "std-28-less-decay": "Std-ViT, width 28, a third of the decay",
    "fast-shuffle": "J + shuffle, slices learn C times as fast",
    "fast-norm": "J + joint norm, slices learn C times as fast",
    "fast-norm-shuffle": "J + joint norm + shuffle, slices learn C times as fast",
    "fast-mix-start": "J + mix from the identity, slices learn C times as fast",
    "fast-spatial": "J, spatial GELU, slices learn C times as fast",
    "fast-heads-8": "J, 8 heads a slice, slices learn C times as fast",
    "fast-slice": "the paper's, t_linear patch embedding, slices learn C times as fast",
    "fast-none": "the paper's, joint attention, slices learn C times as fast",
    "fast-haar": "J, Haar, slices learn C times as fast",
    "fast-learned": "J, learned transform, slices learn C times as fast",
    "fast-data": "J, data-driven transform, slices learn C times as fast",
    "fast-partial": "width 45, J, 5 % of the features read all slices, slices learn C times as fast",
    "fast-mix": "J + mix, slices learn C times as fast (F)",
    "fast-wide-72x6": "width 72, tube 6, 3 blocks, mix, joint norm, F",
    "fast-deep-64x8": "width 64, tube 8, 5 blocks, mix, joint norm, F",
    "large-81x3": "width 81, tube 3, J, F",
    "large-sqrt": "width 81, tube 3, J, slices learn √C as fast",
    "large-less-decay": "width 81, tube 3, J, F, D",
    "large-deep": "J, 12 blocks, F",
    "large-63x3": "width 63, 7 blocks, J, F",
}
# The same models, trained in another way.
SAME = {"std-less-decay": "std", "std-28-less-decay": "std-28", "fast-less-decay": "joint-full-lr"}
SAME |= {"joint-sqrt-lr": "joint-full-lr", "large-less-decay": "large-81x3", "large-sqrt": "large-81x3"}
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
    ("slice weights learn √C as fast", "joint", "joint-sqrt-lr"),
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
# The same round the best small model, by short runs: what is changed in it, and the run that has the change.
CENTRE = "joint-full-lr"
CHANGES = (
    ("attention slice by slice", "fast-slice"),
    ("no patch embedding", "fast-none"),
    ("slices learn √C as fast", "joint-sqrt-lr"),
    ("slices learn as fast as the rest", "joint"),
    ("no transform instead of the DCT", "fast-identity"),
    ("Haar instead of the DCT", "fast-haar"),
    ("a learned transform that starts at the DCT", "fast-learned"),
    ("the data's own transform instead of the DCT", "fast-data"),
    ("GELU in the spatial domain", "fast-spatial"),
    ("2 heads a slice instead of 4", "fast-heads-2"),
    ("8 heads a slice instead of 4", "fast-heads-8"),
    ("width 54 with 3 blocks instead of 48 with 4", "fast-shallow"),
    ("width 42 with 5 blocks instead of 48 with 4", "fast-deep"),
    ("slices are shuffled", "fast-shuffle"),
    ("slices are mixed, from random rotations", "fast-mix"),
    ("slices are mixed, from the identity", "fast-mix-start"),
    ("a norm over all slices", "fast-norm"),
    ("a norm over all slices, and a shuffle", "fast-norm-shuffle"),
    ("two factors with a shuffle between", "fast-two-factor"),
    ("two factors, slices learn √(2C) as fast", "fast-two-factor-sqrt"),
    ("weight decay divided by C", "fast-less-decay"),
    ("width 45, where 5 % of the features read all slices", "fast-partial"),
    ("width 72 with tube 6 and 3 blocks, mixed, a norm over all slices", "fast-wide-72x6"),
    ("width 64 with tube 8 and 5 blocks, mixed, a norm over all slices", "fast-deep-64x8"),
)
SHOWS, SHORT_SHOWS = 1.0, 1.5  # points: smaller differences of single runs (12 epochs; 4 epochs) may be chance
Effect = tuple[str, float, float]  # what is changed, top-1 before and after
QUOTED = {"cifar10": (61.8, 63.6), "svhn": (49.8, 63.8), "stl10": (52.5, 55.9), "full": (78.7, 73.4)}


def group(records: Iterable[Record], name: str) -> list[Record]:
    """The records of one part of the study."""
    return [record for record in records if record["group"] == name]


def at_own_rate(records: list[Record]) -> list[Record]:
    """The run of each model at the rate that its short runs chose, and of `own` those that had none to choose from."""
    short: dict[str, list[Record]] = {}
    for record in group(records, "screen") + group(records, "rate"):
        short.setdefault(_model(record), []).append(record)
    chosen = {name: max(runs, key=lambda run: run["top1_last"])["lr"] for name, runs in short.items() if len(runs) > 1}
    own, gap = group(records, "own"), group(records, "gap")
    return [r for r in own if r["lr"] == chosen.get(r["name"], r["lr"])] + [
        r for r in gap if r["lr"] == chosen.get(r["name"])
    ]


def _model(record: Record) -> str:
    """The model of a run that is named after its rate too."""
    name: str = record["name"]
    return name.removesuffix(f"-{record['lr']}")


def gap_table(records: list[Record], times: dict[str, float]) -> Table:
    """Every model of the study, best first, beside the two dense ones."""
    columns = ["model", "parameters", "lr", "top-1, last", "best", "to Std-ViT", "to dense 28", "ms", "CPU time"]
    table = Table("gap", title(records), columns)
    top = {name: mean_top1(runs) for name, runs in best_runs(records).items()}
    for record in sorted(records, key=lambda record: -record["top1_last"]):
        name, last = record["name"], record["top1_last"]
        model = SAME.get(name, name)
        table.add(
            LABELS.get(name, name),
            record["parameters"],
            Written(f"{record['lr']:g}"),
            percent([last]),
            percent([record["top1_best"]]),
            points(last, top.get("std")),
            points(last, top.get("std-28")),
            Written(f"{times[model]:.3f}") if model in times else None,
            Written(duration(record["cpu_seconds"])) if record["cpu_seconds"] else None,
            strong=model in ("std", "std-28"),
        )
    if times:
        table.notes.append("ms: a picture's forward at batch 64, one thread, all models in one interleaved run")
    return table


def best_runs(records: Iterable[Record]) -> dict[str, list[Record]]:
    """The runs of each model; of several ways to train it, those of the best on average.

    >>> run = {"name": "std", "top1_last": 0.7}
    >>> less = {"name": "std-less-decay", "top1_last": 0.73}
    >>> best_runs([run, less]) == {"std": [less]}
    True
    """
    ways: dict[str, list[Record]] = {}
    for record in records:
        ways.setdefault(record["name"], []).append(record)
    best: dict[str, list[Record]] = {}
    for name, runs in ways.items():
        model = SAME.get(name, name)
        if model not in best or mean_top1(runs) > mean_top1(best[model]):
            best[model] = runs
    return best


def mean_top1(runs: Iterable[Record]) -> float:
    """Of the last epochs, over the seeds."""
    return fmean(run["top1_last"] for run in runs)


def factors(gap: list[Record]) -> list[Effect]:
    """What each change makes where both runs are there: 12 epochs, test pictures, one rate."""
    top = {record["name"]: record["top1_last"] for record in gap}
    return [(what, top[before], top[after]) for what, before, after in FACTORS if before in top and after in top]


def changes(short: list[Record]) -> list[Effect]:
    """What each change to the best small model makes: short runs, held-out pictures, at that model's rate."""
    centre = [record for record in short if _model(record) == CENTRE]
    if not centre:
        return []
    best = max(centre, key=lambda record: record["top1_last"])
    top = {_model(record): record["top1_last"] for record in short if record["lr"] == best["lr"]}
    return [(what, best["top1_last"], top[name]) for what, name in CHANGES if name in top]


def effect_table(name: str, title: str, effects: list[Effect], shows: float) -> Table:
    """Each change with its points, the greatest gain first."""
    table = Table(name, title, ["change", "from", "to", "points"])
    for what, before, after in sorted(effects, key=lambda effect: effect[1] - effect[2]):
        table.add(what, percent([before]), percent([after]), points(after, before))
    table.notes.append(f"one run each: a difference below {shows:.1f} points may be that of two seeds")
    return table


def screen_table(records: list[Record]) -> Table:
    """The short runs on held-out training pictures."""
    columns = ["model", "parameters", "learning rate", "top-1 on held-out pictures"]
    table = Table("screen", "4 epochs of 45,000 training pictures, measured on the other 5,000, seed 0", columns)
    for record in sorted(records, key=lambda record: -record["top1_last"]):
        label = LABELS.get(_model(record), record["name"])
        table.add(label, record["parameters"], Written(f"{record['lr']:g}"), percent([record["top1_last"]]))
    return table


def seeds_table(records: list[Record], name: str) -> Table:
    """Means and deviations over the seeds."""
    columns = ["model", "parameters", "seeds", "top-1, last", "best", "train loss", "test loss"]
    table = Table(name, title(records), columns)
    for label in dict.fromkeys(record["name"] for record in records):
        runs = [record for record in records if record["name"] == label]
        table.add(
            LABELS.get(label, label),
            runs[0]["parameters"],
            len(runs),
            percent([run["top1_last"] for run in runs]),
            percent([run["top1_best"] for run in runs]),
            round(fmean(run["train_loss"] for run in runs), 3),
            round(fmean(run["test_loss"] for run in runs), 3),
        )
    return table


def paper_table(records: list[Record]) -> Table:
    """tab:cls_sub and tab:cls_full: ours beside the paper's; what was not run says so."""
    columns = ["set and recipe", "model", "seeds", "top-1, best", "last", "train loss", "test loss", "the paper's"]
    table = Table("paper", "Std-ViT (119,194 parameters) and TCP-ViT (43,114)", columns)
    parts = {"paper": "cifar10", "tuned": None, "svhn": "svhn", "stl10": "stl10", "full": "full"}
    titles = {
        "paper": "CIFAR-10, paper recipe",
        "tuned": "CIFAR-10, tuned recipe",
        "svhn": "SVHN, paper recipe",
        "stl10": "STL-10, paper recipe",
        "full": "full CIFAR-10, 200 epochs",
    }
    for part, quoted in parts.items():
        for i, model in enumerate(("std", "tcp")):
            runs = [record for record in group(records, part) if record["name"] == model]
            said = Written(f"{QUOTED[quoted][i]} %") if quoted else None
            if not runs:
                table.add(titles[part], model, "not run here", None, None, None, None, said)
                continue
            table.add(
                titles[part],
                model,
                str(len(runs)),
                percent([run["top1_best"] for run in runs]),
                percent([run["top1_last"] for run in runs]),
                round(fmean(run["train_loss"] for run in runs), 3),
                round(fmean(run["test_loss"] for run in runs), 3),
                said,
            )
    return table


def sizes(runs: dict[str, list[Record]]) -> tuple[str | None, str | None]:
    """The best TCP models of at most 44.5K parameters, and of Std-ViT's, among the `best_runs`."""
    found: list[str | None] = []
    for least, most in ((0, 44_500), (116_000, 123_000)):
        fitting = [
            m for m, of in runs.items() if of[0]["model"].startswith("tcp") and least <= of[0]["parameters"] <= most
        ]
        found.append(max(fitting, key=lambda model: mean_top1(runs[model]), default=None))
    return found[0], found[1]


def target_table(records: list[Record]) -> Table:
    """The targets of the study, with what was reached: means over the seeds."""
    table = Table("targets", "What was to be reached, and what was", ["target", "best model", "reached", "met"])
    runs = best_runs(records)
    if not {"std", "std-28"} <= set(runs):
        return table
    small, large = sizes(runs)
    for best, what, to, needed in (
        (small, "at most 44.5K parameters: 3 points ahead of the dense ViT of that size", "std-28", 3.0),
        (small, "the same within 2 points of Std-ViT", "std", -2.0),
        (large, "with Std-ViT's parameters: 2 points ahead of it", "std", 2.0),
    ):
        if best is not None:
            ahead = 100 * (mean_top1(runs[best]) - mean_top1(runs[to]))
            label = LABELS.get(runs[best][0]["name"], best)
            table.add(what, label, Written(signed(ahead)), "yes" if ahead >= needed else "no")
    return table


def percent(values: Sequence[float]) -> Written:
    """The mean of fractions in percent, with the deviation if there are several.

    >>> percent([0.5]), percent([0.5, 0.6])
    ('50.0 %', '55.0 ± 7.1 %')
    """
    return Written(f"{spread([100 * value for value in values])} %")


def points(value: float, base: float | None) -> Written | None:
    """The difference in points.

    >>> points(0.64, 0.66)
    '−2.0'
    """
    return None if base is None else Written(signed(100 * (value - base)))


def title(records: Sequence[Record]) -> str:
    """What runs that were made alike have in common."""
    if not records:
        return ""
    one = records[0]
    seeds = sorted({record["seed"] for record in records})
    return (
        f"{one['dataset']}, {one['train_images']:,} training and {one['test_images']:,} test pictures, "
        f"{one['epochs']} epochs, recipe {one['recipe']}, seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
    )
