"""The tables of the classification study, from its records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from tcpvit.studies.intervals import between, interval, leads, signed, spread, verdict
from tcpvit.studies.study import Record
from tcpvit.tables import Table, Written
from tcpvit.training.progress import duration

LEGEND = (
    "**J**: joint attention and a c-product patch embedding (`t_linear`). **F**: slice-wise weights learn C times as "
    "fast as the others (`optimizer.slice_lr_scale=full`). **D**: and decay no faster (weight decay divided by C). "
    "`tcp_vit_cifar_plus` is J, `tcp_vit_cifar_wide` is J at width 81 with 3 heads a slice."
)
LABELS = {
    "std": "Std-ViT, width 48",
    "std-less-decay": "Std-ViT, width 48, a third of the decay",
    "std-28": "Std-ViT, width 28: the dense ViT of TCP-ViT's size",
    "std-28-less-decay": "Std-ViT, width 28, a third of the decay",
    "paper": "TCP-ViT as in the paper",
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
    "large-81x3": "J, F, width 81, 3 heads a slice",
    "large-sqrt": "J, width 81, 3 heads a slice, slices learn √C times as fast",
    "large-less-decay": "J, F, D, width 81, 3 heads a slice",
    "large-63x3": "J, F, width 63, 7 blocks, 3 heads a slice",
    "large-deep": "J, F, 12 blocks",
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
# The same round the best small model, by short runs: what is changed in it, and the run that has the change.
CHANGES = (
    ("attention slice by slice", "fast-slice"),
    ("no patch embedding", "fast-none"),
    ("slices learn √C times as fast", "joint-sqrt-lr"),
    ("slices learn as fast as the rest", "joint"),
    ("no transform instead of the DCT", "fast-identity"),
    ("Haar instead of the DCT", "fast-haar"),
    ("a learned transform that starts at the DCT", "fast-learned"),
    ("the data's own transform instead of the DCT", "fast-data"),
    ("GELU in the spatial domain", "fast-spatial"),
    ("2 heads a slice instead of 4", "fast-heads-2"),
    ("8 heads a slice instead of 4", "fast-heads-8"),
    ("width 54 with 3 blocks (and 3 heads) instead of 48 with 4", "fast-shallow"),
    ("width 42 with 5 blocks (and 2 heads) instead of 48 with 4", "fast-deep"),
    ("slices are shuffled", "fast-shuffle"),
    ("slices are mixed, from random rotations", "fast-mix"),
    ("slices are mixed, from the identity", "fast-mix-start"),
    ("a norm over all slices", "fast-norm"),
    ("a norm over all slices, and a shuffle", "fast-norm-shuffle"),
    ("two factors with a shuffle between, which learn as fast as the rest", "two-factor"),
    ("two factors with a shuffle between, which learn 2C times as fast", "fast-two-factor"),
    ("two factors with a shuffle between, which learn √(2C) times as fast", "fast-two-factor-sqrt"),
    ("weight decay divided by C", "fast-less-decay"),
    ("width 45, where 5 % of the features read all slices", "fast-partial"),
    ("width 72 with tube 6 and 3 blocks, mixed, a norm over all slices", "fast-wide-72x6"),
    ("width 64 with tube 8 and 5 blocks, mixed, a norm over all slices", "fast-deep-64x8"),
)
Effect = tuple[str, float, float]  # what is changed, top-1 before and after
Runs = dict[str, list[Record]]  # of each model, by seed
PLUS, WIDE = "joint-full-lr", "large-81x3"
PRESETS = {"std": "std_vit_cifar", "paper": "tcp_vit_cifar", PLUS: "tcp_vit_cifar_plus", WIDE: "tcp_vit_cifar_wide"}
TARGETS = {  # of one model against another: in words, and by how many points
    (PLUS, "std-28"): ("at most 44.5K parameters: 3 points ahead of the dense ViT of that size", 3.0),
    (PLUS, "std"): ("the same within 2 points of Std-ViT", -2.0),
    (WIDE, "std"): ("with Std-ViT's parameters: 2 points ahead of it", 2.0),
}
QUOTED = {"cifar10": (61.8, 63.6), "svhn": (49.8, 63.8), "stl10": (52.5, 55.9), "full": (78.7, 73.4)}


def group(records: Iterable[Record], name: str) -> list[Record]:
    """The records of one part of the study."""
    return [record for record in records if record["group"] == name]


def short_runs(records: Iterable[Record]) -> list[Record]:
    """Those that choose, on training pictures that were held out."""
    return [record for record in records if record["group"] in ("screen", "rate")]


def judges(records: Iterable[Record]) -> list[Record]:
    """The held-out runs that choose for the finals: as long as these, or where a model has none of them, short ones."""
    records = list(records)
    long = group(records, "long")
    models = {_same(record) for record in long}
    return long + [record for record in short_runs(records) if _same(record) not in models]


def settled(runs: Iterable[Record], short: Iterable[Record]) -> Runs:
    """The runs of each model; of several rates to train it at, those of the rate its short runs prefer.

    >>> low, high = ({"name": "std", "lr": lr, "top1_last": top1} for lr, top1 in ((0.003, 0.72), (0.006, 0.7)))
    >>> settled([low, high], [low | {"top1_last": 0.5}, high | {"top1_last": 0.6}]) == {"std": [high]}
    True
    """
    liked = {way: mean_top1(found) for way, found in _ways(short).items()}
    models: dict[str, dict[tuple[str, float], list[Record]]] = {}
    for (name, lr), found in _ways(runs).items():
        models.setdefault(_same(found[0]), {})[name, lr] = found
    return {model: found[max(found, key=lambda way: liked.get(way, 0.0))] for model, found in models.items()}


def at_own_rate(records: list[Record]) -> Runs:
    """The 12-epoch runs of each model as its short runs prefer; those of `own` also without short runs."""
    short = short_runs(records)
    known = set(_ways(short))
    gap = [record for record in group(records, "gap") if (record["name"], record["lr"]) in known]
    return settled(gap + group(records, "own"), short)


def _ways(records: Iterable[Record]) -> dict[tuple[str, float], list[Record]]:
    """Runs by name of the model and learning rate."""
    ways: dict[tuple[str, float], list[Record]] = {}
    for record in records:
        ways.setdefault((_model(record), record["lr"]), []).append(record)
    return ways


def _model(record: Record) -> str:
    """The model of a run that is named after its rate too."""
    name: str = record["name"]
    return name.removesuffix(f"-{record['lr']}")


def _same(record: Record) -> str:
    """The model of a run, whatever the rate of its slices."""
    name = _model(record)
    return SAME.get(name, name)


def mean_top1(runs: Iterable[Record]) -> float:
    """Of the last epochs, over the seeds."""
    return fmean(run["top1_last"] for run in runs)


def gap_table(runs: Iterable[list[Record]], times: dict[str, float]) -> Table:
    """Every model of the study with its runs, best first, beside the two dense ones."""
    rows = sorted(runs, key=mean_top1, reverse=True)
    columns = ["model", "parameters", "lr", "top-1, last", "best", "to Std-ViT", "to dense 28", "ms", "CPU time"]
    table = Table("gap", title([run for found in rows for run in found]), columns)
    top = {_same(found[0]): mean_top1(found) for found in rows}
    for found in rows:
        one, model = found[0], _same(found[0])
        spent = [run["cpu_seconds"] for run in found if run["cpu_seconds"]]
        table.add(
            LABELS.get(one["name"], one["name"]),
            one["parameters"],
            Written(f"{one['lr']:g}"),
            percent([run["top1_last"] for run in found]),
            percent([run["top1_best"] for run in found]),
            points(top[model], top.get("std")),
            points(top[model], top.get("std-28")),
            Written(f"{times[model]:.3f}") if model in times else None,
            Written(duration(fmean(spent))) if spent else None,
            strong=model in ("std", "std-28"),
        )
    if times:
        table.notes.append("ms: a picture's forward at batch 64, one thread, all models in one interleaved run")
    return table


def factors(gap: list[Record]) -> list[Effect]:
    """What each change makes where both runs are there, on test pictures."""
    top = {name: mean_top1(found) for (name, _), found in _ways(gap).items()}
    return [(what, top[before], top[after]) for what, before, after in FACTORS if before in top and after in top]


def changes(short: list[Record]) -> list[Effect]:
    """What each change to the best small model makes: short runs, held-out pictures, at that model's rate."""
    top = {way: mean_top1(found) for way, found in _ways(short).items()}
    rates = [lr for name, lr in top if name == PLUS]
    if not rates:
        return []
    rate = max(rates, key=lambda lr: top[PLUS, lr])
    return [(what, top[PLUS, rate], top[name, rate]) for what, name in CHANGES if (name, rate) in top]


def chance(effects: list[Effect], pictures: int) -> float:
    """Two standard errors, in points, of the difference of two accuracies that were measured on so many pictures each.

    >>> round(chance([("", 0.5, 0.5)], 5000), 6)
    2.0
    """
    top1 = fmean(after for _, _, after in effects)
    return 200 * (2 * top1 * (1 - top1) / pictures) ** 0.5


def effect_table(name: str, effects: list[Effect], records: list[Record]) -> Table:
    """Each change with its points, the greatest gain first."""
    table = Table(name, title(records), ["change", "from", "to", "points"])
    for what, before, after in sorted(effects, key=lambda effect: effect[1] - effect[2]):
        table.add(what, percent([before]), percent([after]), points(after, before))
    if effects:
        pictures = records[0]["measured_images"]
        table.notes.append(
            f"one run each, measured on {pictures:,} pictures: a difference below {chance(effects, pictures):.1f} "
            "points may be chance (two standard errors)"
        )
    return table


def held_out_table(name: str, runs: list[Record]) -> Table:
    """Runs that were measured on held-out training pictures, best first."""
    columns = ["model", "parameters", "learning rate", "train loss", "top-1 on held-out pictures"]
    table = Table(name, title(runs), columns)
    for (model, lr), found in sorted(_ways(runs).items(), key=lambda item: -mean_top1(item[1])):
        top1 = percent([run["top1_last"] for run in found])
        label, rate = LABELS.get(model, model), Written(f"{lr:g}")
        table.add(label, found[0]["parameters"], rate, _loss(found, "train_loss"), top1)
    return table


def seeds_table(records: list[Record], name: str) -> Table:
    """Means and deviations over the seeds."""
    columns = ["model", "parameters", "lr", "seeds", "top-1, last", "best", "train loss", "test loss"]
    table = Table(name, title(records), columns)
    for (label, lr), runs in _ways(records).items():
        table.add(
            LABELS.get(label, label),
            runs[0]["parameters"],
            Written(f"{lr:g}"),
            len(runs),
            percent([run["top1_last"] for run in runs]),
            percent([run["top1_best"] for run in runs]),
            _loss(runs, "train_loss"),
            _loss(runs, "test_loss"),
        )
    return table


def _loss(runs: list[Record], name: str) -> Written:
    return Written(f"{fmean(run[name] for run in runs):.3f}")


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
                _loss(runs, "train_loss"),
                _loss(runs, "test_loss"),
                said,
            )
    return table


def target_table(runs: Runs) -> Table:
    """The targets of the study, with what our presets reached: means over the seeds that both models have."""
    columns = ["target", "preset", "reached", "95 % interval", "seeds", "verdict"]
    table = Table("targets", "What was to be reached, and what was", columns)
    for (model, to), (what, needed) in TARGETS.items():
        found = ahead(runs, model, to)
        if found:
            cells = (Written(signed(fmean(found))), Written(between(interval(found))), len(found))
            table.add(what, f"`{PRESETS[model]}`", *cells, verdict(found, needed))
    return table


def ahead(runs: Runs, model: str, to: str) -> list[float]:
    """By how many points one model is ahead of another at the last epoch, seed by seed."""
    return leads(runs.get(model, []), runs.get(to, []), "top1_last")


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
    measured = one["measured_on"].split()[0]
    recipes = " and ".join(dict.fromkeys(record["recipe"] for record in records))
    return (
        f"{one['dataset']}, {one['train_images']:,} training and {one['measured_images']:,} {measured} pictures, "
        f"{one['epochs']} epochs, {recipes}, seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
    )
