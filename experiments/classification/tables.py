"""The tables of the classification study, from its records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean, variance

from experiments.classification.labels import (
    CHANGES,
    DEPTHS,
    FACTORS,
    FINALISTS,
    FINE,
    LABELS,
    PLUS,
    PRESETS,
    SAME,
    TRANSFORMS,
    WIDE,
)
from experiments.seeds import named_seeds, on_common_seeds
from tcpvit.compare.classification import PAIR, PARTS, Part, cells_of
from tcpvit.compare.classification import paper_table as table_of_the_paper
from tcpvit.compare.intervals import (
    between,
    interval,
    leads,
    percent,
    seeds_of,
    signed,
)
from tcpvit.compare.study import Record
from tcpvit.tables import Ratio, Table, Written, duration

Effect = tuple[str, float, float]  # what is changed, top-1 before and after
Runs = dict[str, list[Record]]  # of each model, by seed
AGAINST = {"against Std-ViT": "std", "against dense 28": "std-28"}  # columns, and whom they compare with
MILLISECONDS = ("forward_ms", "training_ms")
FINAL_ORDER = ("std", "std-28", "paper", "paper-norm", *FINALISTS)


def group(records: Iterable[Record], name: str) -> list[Record]:
    """The records of one part of the study."""
    return [record for record in records if record["group"] == name]


def short_runs(records: Iterable[Record]) -> list[Record]:
    """Those that choose, on training images that were held out."""
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
        ways.setdefault((model_of(record), record["lr"]), []).append(record)
    return ways


def by_model(records: Iterable[Record]) -> Runs:
    """Runs by name of the model, in a part of the study that trains each at one rate."""
    return {name: found for (name, _), found in _ways(records).items()}


def best_ways(records: Iterable[Record]) -> Runs:
    """The runs of each model at the best of the rates that were tried."""
    best: Runs = {}
    for (name, _), found in _ways(records).items():
        best[name] = max(best.get(name, found), found, key=mean_top1)
    return best


def model_of(record: Record) -> str:
    """The model of a run that is named after its rate too."""
    name: str = record["name"]
    return name.removesuffix(f"-{record['lr']}")


def _same(record: Record) -> str:
    """The model of a run, whatever the rate of its slices."""
    name = model_of(record)
    return SAME.get(name, name)


def mean_top1(runs: Iterable[Record]) -> float:
    """Of the last epochs, over the seeds."""
    return fmean(run["top1_last"] for run in runs)


def lead(mine: Runs, model: str, to: str, *, sure: bool = False) -> Written | None:
    """How far a model is ahead of another, over the seeds that both have; with its 95 % interval if asked for.

    >>> lead({"a": [{"seed": 0, "top1_last": 0.6}], "b": [{"seed": 0, "top1_last": 0.5}]}, "a", "b")
    '+10.0'
    """
    found = ahead(mine, model, to)
    if not found or model == to:
        return None
    ends = interval(found) if sure else None
    return Written(signed(fmean(found)) + (f" {between(ends)}" if ends else ""))


def gap_table(runs: Iterable[list[Record]], times: dict[str, float]) -> Table:
    """Every model of the study with its runs, best first, beside the two dense ones."""
    rows = sorted(runs, key=mean_top1, reverse=True)
    columns = ["model", "parameters", "lr", "top-1, last", "best", *AGAINST, "ms", "CPU time"]
    table = Table("gap", title([run for found in rows for run in found]), columns)
    by_name = {model_of(found[0]): found for found in rows}
    for name, found in by_name.items():
        one = found[0]
        spent = [run["cpu_seconds"] for run in found if run["cpu_seconds"]]
        table.add(
            LABELS.get(name, name),
            one["parameters"],
            Written(f"{one['lr']:g}"),
            percent([run["top1_last"] for run in found]),
            percent([run["top1_best"] for run in found]),
            *(lead(by_name, name, to) for to in AGAINST.values()),
            Written(f"{times[name]:.3f}") if name in times else None,
            Written(duration(fmean(spent))) if spent else None,
            strong=name in AGAINST.values(),
        )
    if times:
        table.notes.append("ms: an image's forward at batch 64, one thread, all models in one interleaved run")
    return table


def factors(gap: list[Record]) -> list[Effect]:
    """What each change makes where both runs are there, on test images."""
    return _effects(FACTORS, by_model(gap))


def _effects(steps: Iterable[tuple[str, str, str]], runs: Runs) -> list[Effect]:
    """Top-1 before and after each step, over the seeds that both models have."""
    found = []
    for what, before, after in steps:
        pair = on_common_seeds({name: runs.get(name, []) for name in (before, after)})
        if all(pair.values()):
            found.append((what, mean_top1(pair[before]), mean_top1(pair[after])))
    return found


def changes(short: list[Record]) -> list[Effect]:
    """What each change to TCP-ViT+ makes: short runs, at that model's rate."""
    best = best_ways(short).get(PLUS)
    return _effects(CHANGES, by_model(run for run in short if run["lr"] == best[0]["lr"])) if best else []


def depths(records: list[Record]) -> list[Effect]:
    """What a deeper and narrower network of as many parameters makes, on held-out images."""
    return _effects(DEPTHS, by_model(group(records, "depth")))


def seed_deviation(records: Iterable[Record]) -> float:
    """The deviation of the last accuracy over seeds, in points, pooled over the finalists that have several.

    >>> runs = [{"group": "final", "name": "std", "lr": 0.1, "top1_last": top1} for top1 in (0.70, 0.72)]
    >>> round(seed_deviation(runs), 3), seed_deviation([])
    (1.414, 0.0)
    """
    several = [found for found in _ways(group(records, "final")).values() if len(found) > 1]
    return fmean(variance([100 * run["top1_last"] for run in found]) for found in several) ** 0.5 if several else 0.0


def standard_error(top1: float, images: int) -> float:
    """Of the difference of two accuracies near `top1` that were measured on so many images each, in points.

    >>> round(standard_error(0.5, 5000), 6)
    1.0
    """
    return 100 * (2 * top1 * (1 - top1) / images) ** 0.5


def chance(effects: list[Effect], images: int, deviation: float = 0.0) -> float:
    """Two standard errors, in points, of the difference of two runs: of the images that measure it, and of the seeds.

    >>> round(chance([("", 0.5, 0.5)], 5000), 6)
    2.0
    """
    error = standard_error(fmean(after for _, _, after in effects), images)
    return 2 * (error**2 + 2 * deviation**2) ** 0.5


def effect_table(name: str, effects: list[Effect], records: list[Record], deviation: float) -> Table:
    """Each change with its points, the greatest gain first."""
    table = Table(name, title(records), ["change", "from", "to", "points"])
    for what, before, after in sorted(effects, key=lambda effect: effect[1] - effect[2]):
        table.add(what, percent([before]), percent([after]), points(after, before))
    if effects:
        table.notes.append(
            f"Below {chance(effects, records[0]['measured_images'], deviation):.1f} points a difference may be chance."
        )
    return table


def that_show(effects: list[Effect], records: list[Record], deviation: float) -> list[Effect]:
    """The changes that make more than chance may, and those of the transform."""
    least = chance(effects, records[0]["measured_images"], deviation) if effects else 0.0
    return [e for e in effects if abs(100 * (e[2] - e[1])) >= least or e[0] in TRANSFORMS]


def held_out_table(name: str, runs: list[Record]) -> Table:
    """Runs that were measured on held-out training images, best first."""
    columns = ["model", "parameters", "learning rate", "train loss", "top-1 on held-out images"]
    table = Table(name, title(runs), columns)
    for (model, lr), found in sorted(_ways(runs).items(), key=lambda item: -mean_top1(item[1])):
        top1 = percent([run["top1_last"] for run in found])
        label, rate = LABELS.get(model, model), Written(f"{lr:g}")
        table.add(label, found[0]["parameters"], rate, _loss(found, "train_loss"), top1)
    return table


def final_table(records: list[Record]) -> Table:
    """Every finalist: means and deviations over its seeds, differences with 95 % intervals over common seeds."""
    columns = ["model", "parameters", "lr", "seeds", "top-1, last", *AGAINST, "train loss", "test loss"]
    table = Table("final", title(records), columns)
    runs = by_model(records)
    for name in dict.fromkeys(name for name in FINAL_ORDER if name in runs):
        one, top1 = runs[name][0], percent([run["top1_last"] for run in runs[name]])
        beside = (lead(runs, name, to, sure=True) for to in AGAINST.values())
        losses = (_loss(runs[name], key) for key in ("train_loss", "test_loss"))
        rate = Written(f"{one['lr']:g}")
        table.add(LABELS[name], one["parameters"], rate, seeds_of(runs[name]), top1, *beside, *losses)
    return table


def small_table(records: list[Record], times: dict[str, dict[str, float]]) -> Table:
    """The best network of each size beside its dense twin, with the milliseconds that an image takes."""
    columns = ["model", "parameters", "ms an image, forward", "training step", "seeds", "top-1, last", "against dense"]
    table = Table("small", title(records), [*columns, "train loss", "test loss"])
    runs = by_model(records)
    for name, found in runs.items():
        measured = [Written(f"{times[name][key]:.2f}") if name in times else None for key in MILLISECONDS]
        losses = (_loss(found, key) for key in ("train_loss", "test_loss"))
        top1 = percent([run["top1_last"] for run in found])
        beside = lead(runs, name, name.replace("tcp", "std").replace("-mixed", ""), sure=True)  # trained alike
        table.add(LABELS[name], found[0]["parameters"], *measured, seeds_of(found), top1, beside, *losses)
    return table


def summary_table(records: list[Record]) -> Table:
    """For the README: the dense models, the paper's and ours; the finalists, if all of ours and the dense ones are."""
    final = settled(group(records, "final"), judges(records))
    runs = final if {"std", "std-28", PLUS, WIDE} <= set(final) else at_own_rate(records)
    shown = [name for name in PRESETS if name in runs]
    columns = ["model", "parameters", "of Std-ViT", "lr", "seeds", "top-1", "against Std-ViT"]
    table = Table("summary", title([run for name in shown for run in runs[name]]), columns)
    for name in shown:
        one, top1 = runs[name][0], percent([run["top1_last"] for run in runs[name]])
        ratio = Ratio.of(one["parameters"], runs["std"][0]["parameters"]) if "std" in runs else None
        table.add(
            PRESETS[name], one["parameters"], ratio, rate_of(one), seeds_of(runs[name]), top1, lead(runs, name, "std")
        )
    return table


def time_table(early: Runs, late: Runs) -> Table:
    """How leads change with the length of the training, over seeds that all four runs have."""
    table = Table("time", "Lead in points, by epochs of training", ["model", "against", "short", "long", "seeds"])
    for model, to in ((PLUS, "std-28"), (PLUS, "std"), (WIDE, "std"), (FINE, "std-28"), (FINE, "std")):
        pair = {name: early[name] for name in (model, to) if name in early}
        later = {f"{name} later": late.get(found[0]["name"], []) for name, found in pair.items()}
        runs = on_common_seeds(pair | later)
        before, after = lead(runs, model, to), lead(runs, f"{model} later", f"{to} later")
        if before is not None and after is not None:
            cells = [
                f"{lead} ({found[0]['epochs']} epochs)"
                for lead, found in ((before, pair[model]), (after, later[f"{model} later"]))
            ]
            table.add(
                LABELS[pair[model][0]["name"]],
                LABELS[to].partition(":")[0],
                *map(Written, cells),
                seeds_of(runs[model]),
            )
    return table


def runs_table(records: list[Record]) -> Table:
    """Every record, so that none is lost."""
    columns = [
        "run",
        "model",
        "parameters",
        "images",
        "epochs",
        "lr",
        "seed",
        "measured on",
        "top-1, last",
        "best",
        "commit",
    ]
    table = Table("runs", "Every run", columns)
    for record in records:
        accuracies = (percent([record[key]]) for key in ("top1_last", "top1_best"))
        about = (
            record["parameters"],
            record["train_images"],
            record["epochs"],
            Written(f"{record['lr']:g}"),
            record["seed"],
        )
        commit = (record["commit"] or "–")[:9]
        table.add(
            record["key"],
            LABELS.get(model_of(record), record["model"]),
            *about,
            record["measured_on"].split()[0],
            *accuracies,
            commit,
        )
    return table


def proxy_table(records: list[Record]) -> Table:
    """Both models with each recipe."""
    table = Table("proxy", title(records), ["model and recipe", "lr", "seeds", "top-1, last", "best", "train loss"])
    for name, runs in by_model(records).items():
        rate, _, seeds, best, last, train_loss, _ = cells_of(runs)
        table.add(LABELS.get(name, name), rate, seeds, last, best, train_loss)
    return table


def choice_table(records: list[Record]) -> Table:
    """How the rates of the finalists were chosen: the accuracy of each rate that was tried, on held-out images."""
    groups = {"short": short_runs(records), "long": group(records, "long")}
    said = {key: f"{runs[0]['epochs']} epochs" for key, runs in groups.items() if runs}
    table = Table(
        "choice", "Top-1 (%) on held-out training images by learning rate", ["model", *said.values(), "finals"]
    )
    for name, runs in by_model(group(records, "final")).items():
        tried = [{rate: found for (model, rate), found in _ways(groups[key]).items() if model == name} for key in said]
        table.add(LABELS[name], *map(_tried, tried), Written(f"{runs[0]['lr']:g}{_edge(runs[0]['lr'], tried)}"))
    return table


def _edge(rate: float, tried: Iterable[Iterable[float]]) -> str:
    """A word of warning on a rate beyond which none was tried.

    >>> _edge(0.003, [[0.003, 0.006], [0.003]]), _edge(0.006, [[0.003, 0.006, 0.012]])
    (', the lowest tried', '')
    """
    rates = {each for part in tried for each in part} | {rate}
    if len(rates) == 1:
        return ", the only one tried"
    return {min(rates): ", the lowest tried", max(rates): ", the highest tried"}.get(rate, "")


def _tried(rates: dict[float, list[Record]]) -> Written | None:
    """Each rate with its accuracy in per cent, the best one bold if there is a choice.

    >>> _tried({0.006: [{"top1_last": 0.5}], 0.003: [{"top1_last": 0.6}]})
    '**0.003: 60.0**, 0.006: 50.0'
    """
    texts = {rate: f"{rate:g}: {100 * mean_top1(found):.1f}" for rate, found in sorted(rates.items())}
    best = max(rates, key=lambda rate: mean_top1(rates[rate])) if len(rates) > 1 else None
    return Written(", ".join(f"**{text}**" if rate == best else text for rate, text in texts.items())) or None


def _loss(runs: list[Record], name: str) -> Written:
    return Written(f"{fmean(run[name] for run in runs):.3f}")


def paper_table(records: list[Record]) -> Table:
    """The paper's table, with the tuned recipe beside it, and what was run instead of its 200 epochs."""
    first, *others = PARTS.items()
    table = table_of_the_paper(records, dict([first, ("tuned", Part("CIFAR-10 subset, tuned recipe")), *others]))
    for name, runs in full_set(records).items() if not group(records, "full") else ():
        table.add(f"instead: recipe {runs[0]['recipe']}", PAIR[name], *cells_of(runs), None, level=1)
    return table


def full_set(records: list[Record]) -> Runs:
    """The paper's two models on all of CIFAR-10, as long as both were trained alike there."""
    for part in ("full", "final", "gap"):
        runs = by_model(group(records, part))
        found = {name: runs.get(name, runs.get("paper" if name == "tcp" else name, [])) for name in PAIR}
        if all(found.values()):
            return on_common_seeds(found)
    return {}


def rate_of(run: Record) -> Written:
    """The learning rate, and the factor of the slices.

    >>> rate_of({"lr": 0.006, "changes": ["optimizer.slice_lr_scale=sqrt"]})
    '0.006, slices ×√C'
    """
    scales = {"optimizer.slice_lr_scale=full": ", slices ×C", "optimizer.slice_lr_scale=sqrt": ", slices ×√C"}
    return Written(f"{run['lr']:g}{''.join(scales.get(change, '') for change in run['changes'])}")


def ahead(runs: Runs, model: str, to: str) -> list[float]:
    """By how many points one model is ahead of another at the last epoch, seed by seed."""
    return leads(runs.get(model, []), runs.get(to, []), "top1_last")


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
    measured = one["measured_on"].split()[0]
    recipes = " and ".join(dict.fromkeys(record["recipe"] for record in records))
    seeds = {named_seeds(found) for found in _ways(records).values()}  # one, if all models have the same
    of_seeds = f", {seeds.pop()}" if len(seeds) == 1 else ""
    return (
        f"{one['dataset']}, {one['train_images']:,} training and {one['measured_images']:,} {measured} images, "
        f"{one['epochs']} epochs, {recipes}{of_seeds}"
    )
