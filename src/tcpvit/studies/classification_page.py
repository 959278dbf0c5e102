"""The page of the classification study: tables, figures and plain words, all from the records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from tcpvit.figures.curves import draw_curves
from tcpvit.figures.frontier import Point, draw_frontier
from tcpvit.figures.style import save_figure
from tcpvit.studies.classification_labels import LABELS, LEGEND, PLUS, PRESETS, QUOTED, RECIPES, TARGETS, WIDE
from tcpvit.studies.classification_tables import (
    PAIR,
    Effect,
    Runs,
    ahead,
    at_own_rate,
    best_ways,
    by_model,
    chance,
    changes,
    choice_table,
    effect_table,
    factors,
    final_table,
    gap_table,
    group,
    held_out_table,
    judges,
    lead,
    mean_top1,
    paper_table,
    proxy_table,
    rate_of,
    seed_deviation,
    settled,
    short_runs,
    standard_error,
    target_table,
    title,
)
from tcpvit.studies.intervals import (
    ABOUT,
    between,
    interval,
    leads,
    on_common_seeds,
    percent,
    seeds_of,
    signed,
    verdict,
)
from tcpvit.studies.study import Places, Record, curve_of, figure_block, write_block
from tcpvit.tables import Ratio, Table, render
from tcpvit.training.checkpoint import write_atomically
from tcpvit.training.run import read_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHORT = {"std": "width 48", "std-28": "width 28", "paper": "the paper's", PLUS: "plus", WIDE: "wide"}  # in the figure
SAID = {  # in the README, where people look for what to use
    "std": "`std_vit_cifar`, dense",
    "std-28": "the same, 28 wide: the dense ViT of TCP-ViT's size",
    "paper": "`tcp_vit_cifar`, as in the paper",
    PLUS: "`tcp_vit_cifar_plus`: joint attention, c-product patch embedding",
    WIDE: "`tcp_vit_cifar_wide`: the same, 81 wide, 3 heads a slice",
}
COLUMNS = ["parameters", "of Std-ViT", "lr", "seeds", "top-1", "against Std-ViT"]
RATE_CAVEAT = (
    "All at the recipe's rate, which is not the best of each: that slices learn faster is also a higher rate for them. "
    "The next table has the other models at the rate of the best."
)
NO_DIFFERENCE = "no difference that one run can show"
MS = "ms a picture, forward"
STEM = "classification_"  # of the figures
TIMES = Path("bench/classification.json")  # beside the records: measured in one interleaved run


def write(places: Places) -> list[Path]:
    """Write `classification.md` and its figures."""
    records = places.records()
    times = _times(places.results.parent / TIMES)
    page = places.pages / "classification.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    drawn = {"frontier": _frontier(records, times), "curves": _curves(records)}
    figures = {name: figure for name, figure in drawn.items() if figure is not None}
    files = [file for name, figure in figures.items() for file in save_figure(figure, page.with_name(f"{STEM}{name}"))]
    write_atomically(page, ("\n".join(_lines(records, times, figures)) + "\n").encode())
    return [page, *files, *write_block(places.readme, "classification", _summary(records))]


def _summary(records: list[Record]) -> str:
    """For the README: the dense models, the paper's and ours; the finalists, if all of ours and the dense ones are."""
    final = settled(group(records, "final"), judges(records))
    runs = final if {"std", "std-28", PLUS, WIDE} <= set(final) else at_own_rate(records)
    shown = [name for name in SAID if name in runs]
    table = Table("summary", title([run for name in shown for run in runs[name]]), ["model", *COLUMNS])
    for name in shown:
        one, top1 = runs[name][0], percent([run["top1_last"] for run in runs[name]])
        ratio = Ratio.of(one["parameters"], runs["std"][0]["parameters"]) if "std" in runs else None
        against = lead(runs, name, "std") if name != "std" else None
        table.add(SAID[name], one["parameters"], ratio, rate_of(one), seeds_of(runs[name]), top1, against)
    table.notes.append(
        "Each model at the learning rate that runs on held-out training pictures chose, in ours with a factor for "
        "slice-wise weights (`optimizer.slice_lr_scale`). The last epoch counts; differences are in points, over the "
        "seeds that both models have."
    )
    return render([table], "markdown")


def _lines(records: list[Record], times: dict[str, float], drawn: Iterable[str]) -> Iterable[str]:
    gap, final, short = group(records, "gap"), group(records, "final"), short_runs(records)
    own, best, deviation = at_own_rate(records), settled(final, judges(records)), seed_deviation(records)
    yield "# Classification: how far the gap closes"
    yield ""
    yield (
        "Written by `tcpvit reproduce classification` from the files in `results/classification`; each of them names "
        "its command, seed, epochs and commit. Accuracies are those of the **last** epoch, so that no epoch is picked "
        "by its test accuracy; the best epoch, picked on the test pictures themselves as the paper does, stands beside."
    )
    yield ""
    yield LEGEND
    yield ""
    yield from _in_short(records, best, changes(short), deviation)
    yield from _section(
        "Finalists",
        [final_table(final), target_table(best)],
        "One schedule for all, each model at the learning rate that held-out training pictures chose (below). Three "
        f"seeds of each are planned. {ABOUT}",
    )
    yield from _with_time(own, by_model(final))
    yield from _section(
        "How the rates of the finalists were chosen",
        [choice_table(records)],
        "Top-1 in per cent of each learning rate that was tried, on 5,000 training pictures that were held out (bold: "
        "the best of several), and the rate of the finals. One seed each; no test picture was looked at.",
    )
    yield from _section(
        "Each model at its own learning rate",
        [gap_table(own.values(), times), target_table(own)],
        "Shorter than the finals. The rate is the best of those that were tried in short runs; a model without "
        "short runs has that of `tcp_vit_cifar_plus`.",
    )
    yield from _section(
        "Every model at one learning rate",
        [gap_table(by_model(gap).values(), times)],
        "Models that prefer a higher rate, by the short runs below, are at a disadvantage here.",
    )
    if "frontier" in drawn:
        yield "## The frontier"
        yield ""
        yield (
            "Above the models of the two tables, on test pictures, at their own rate where that was run, else at the "
            "common one; below all models of the short runs, on held-out training pictures, at the best rate tried."
        )
        yield ""
        about = " Seed 0; “plus” and “wide” are our presets, and points without a name the other models of the study."
        yield figure_block(f"{STEM}frontier", "Accuracy against parameters and time, CIFAR-10.", about)
        yield ""
    yield from _effects("From the paper's model to ours", "factors", factors(gap), gap, deviation, RATE_CAVEAT)
    about = f"The model is `{PRESETS[PLUS]}`, trained as {LABELS[PLUS]}."
    yield from _effects("One change to the best small model", "changes", changes(short), short, deviation, about)
    yield from _section("Short runs that chose", [held_out_table("short", short)])
    yield from _section(
        "The paper's protocol",
        [paper_table(records)],
        "10,000 training pictures, 2,000 test pictures and 150 epochs, AdamW at lr 0.01 without warm-up; full CIFAR-10 "
        "has 200 epochs. CIFAR-10 ran in bfloat16. `tuned` is the recipe tuned-classification on the same pictures: "
        "its train losses are with label smoothing, and its accuracies those of averaged weights.",
    )
    tuned = group(records, "tuned-rate")
    if tuned:
        yield "The rates of the tuned recipe were chosen on training pictures that were held out:"
        yield ""
        yield render([held_out_table("tuned-rate", tuned)], "markdown")
        yield ""
    if "curves" in drawn:
        yield figure_block(f"{STEM}curves", "Losses and accuracy of Std-ViT and TCP-ViT over the paper's schedule.")
        yield ""
    yield from _section(
        "A proxy for SVHN",
        [proxy_table(group(records, "proxy"))],
        "Where SVHN is not at hand, digits on photographs (hard level) stand in for it, to see whether lr 0.01 without "
        "warm-up alone can make the 14 points that the paper finds between the two models. This is a proxy, not SVHN.",
    )


def _section(title: str, tables: Sequence[Table], words: str = "") -> Iterable[str]:
    """A heading with its tables, or the honest word that nothing was run."""
    yield f"## {title}"
    yield ""
    if words:
        yield words
        yield ""
    full = [table for table in tables if table.rows]
    yield render(full, "markdown") if full else "Not run here yet; the command above runs it."
    yield ""


# ---------------------------------------------------------------------------------------------------- words


def _in_short(records: list[Record], best: Runs, effects: list[Effect], deviation: float) -> Iterable[str]:
    """The answers, before the tables that they come from."""
    lines = list(_on_targets(best))
    if effects:
        found = _sorted_out(effects, chance(effects, _pictures(short_runs(records)), deviation))
        rest = len(found.pop(NO_DIFFERENCE, []))
        told = "".join(f" {said}: {'; '.join(chosen)}." for said, chosen in found.items())
        lines.append(f"Of {len(effects)} changes to the best small model,{told} The other {rest}: {NO_DIFFERENCE}.")
    lines += [*_conclusions(records), *_with_care(records), *_on_the_proxy(by_model(group(records, "proxy")))]
    if lines:
        yield "## In short"
        yield ""
        yield from (f"- {line}" for line in lines)
        yield ""


def _on_targets(runs: Runs) -> Iterable[str]:
    for (model, to), (_, needed) in TARGETS.items():
        found = ahead(runs, model, to)
        if found:
            one, base = runs[model][0], LABELS[to].partition(":")[0]
            size = f"{one['parameters']:,} against {runs[to][0]['parameters']:,} parameters"
            yield (
                f"`{PRESETS[model]}` against {base}, {size}, after {one['epochs']} epochs: {signed(fmean(found))} "
                f"points (asked: {signed(needed)}): {verdict(found, needed)}."
            )


def _effects(
    heading: str, name: str, effects: list[Effect], records: list[Record], deviation: float, about: str
) -> Iterable[str]:
    """What changes make, as a table and in plain words."""
    yield from _section(heading, [effect_table(name, effects, records, deviation)], about)
    if effects:
        for said, chosen in _sorted_out(effects, chance(effects, _pictures(records), deviation)).items():
            yield f"**{said[0].upper()}{said[1:]}:** {'; '.join(chosen)}."
            yield ""


def _pictures(records: list[Record]) -> int:
    """How many pictures measure runs that were made alike."""
    return int(records[0]["measured_images"])


def _sorted_out(effects: list[Effect], shows: float) -> dict[str, list[str]]:
    """Changes by what they do, where that is more than chance may make.

    >>> _sorted_out([("slices that meet", 0.5, 0.6), ("a shuffle", 0.6, 0.59)], shows=2.0)
    {'what helps': ['slices that meet (+10.0)'], 'no difference that one run can show': ['a shuffle (−1.0)']}
    """
    gains = [(f"{what} ({signed(100 * (after - before))})", 100 * (after - before)) for what, before, after in effects]
    found = {
        "what helps": [said for said, gain in gains if gain >= shows],
        "what hurts": [said for said, gain in gains if gain <= -shows],
        NO_DIFFERENCE: [said for said, gain in gains if abs(gain) < shows],
    }
    return {said: chosen for said, chosen in found.items() if chosen}


def _with_time(early: Runs, late: Runs) -> Iterable[str]:
    """How our leads change with the length of the training, slices at one rate, over seeds that all four runs have."""
    found = []
    for model, to in TARGETS:
        pair = {name: early[name] for name in (model, to) if name in early}
        later = {f"{name} later": late.get(runs[0]["name"], []) for name, runs in pair.items()}
        runs = on_common_seeds(pair | later)
        before, after = ahead(runs, model, to), ahead(runs, f"{model} later", f"{to} later")
        if before and after:
            names = f"{LABELS[pair[model][0]['name']]} against {LABELS[to].partition(':')[0]}"
            found.append(f"{names}: {signed(fmean(before))}, then {signed(fmean(after))} points")
    if found:
        epochs = [next(iter(runs.values()))[0]["epochs"] for runs in (early, late)]
        yield f"**With longer training**, {epochs[0]} and {epochs[1]} epochs on the same seeds: {'; '.join(found)}."
        yield ""


def _conclusions(records: list[Record]) -> Iterable[str]:
    """Which of the paper's conclusions our runs of its protocol share."""
    runs = by_model(group(records, "paper"))
    if set(runs) != set(PAIR):
        return
    runs = on_common_seeds({name: runs[name] for name in PAIR})
    best, last, train, test = (
        {name: fmean(run[key] for run in found) for name, found in runs.items()}
        for key in ("top1_best", "top1_last", "train_loss", "test_loss")
    )
    quoted = {name: said / 100 for name, said in zip(runs, QUOTED["cifar10"], strict=True)}
    pictures, at_best = runs["tcp"][0]["measured_images"], leads(runs["tcp"], runs["std"], "top1_best")
    sure = f", 95 % interval {between(interval(at_best))}" if len(at_best) > 1 else ""
    error = standard_error(best["tcp"], pictures)
    overfits = "Std-ViT overfits, as the paper says" if test["std"] > 2 * train["std"] else "Std-ViT does not overfit"
    yield (
        f"With the paper's own protocol TCP-ViT is {_told(best['tcp'], best['std'])} Std-ViT at the best epoch{sure}, "
        f"{_told(last['tcp'], last['std'])} it at the last; in the paper it is {_told(quoted['tcp'], quoted['std'])} "
        f"it. Seeds: {len(at_best)}; {pictures:,} test pictures alone make a standard error of {error:.1f} points. "
        f"{overfits}: it ends at a train loss of {train['std']:.2f} and a test loss of {test['std']:.2f}, TCP-ViT at "
        f"{train['tcp']:.2f} and {test['tcp']:.2f}. Our Std-ViT is {_told(best['std'], quoted['std'])} the paper's, "
        f"our TCP-ViT {_told(best['tcp'], quoted['tcp'])} the paper's."
    )


def _with_care(records: list[Record]) -> Iterable[str]:
    """Whether the order of the paper's two models is that of a recipe with care, too."""
    parts = ("paper", "tuned")
    found = {f"{part} {name}": runs for part in parts for name, runs in by_model(group(records, part)).items()}
    runs = on_common_seeds(found)
    if len(runs) < 2 * len(PAIR) or not all(runs.values()):
        return
    best = {part: {name: fmean(run["top1_best"] for run in runs[f"{part} {name}"]) for name in PAIR} for part in parts}
    order = {part: tops["tcp"] >= tops["std"] for part, tops in best.items()}
    gains = {name: signed(100 * (best["tuned"][name] - best["paper"][name])) for name in PAIR}
    yield (
        f"With the tuned recipe on the same pictures, each model at its own rate, TCP-ViT is "
        f"{_told(best['tuned']['tcp'], best['tuned']['std'])} Std-ViT at the best epoch (seeds: "
        f"{seeds_of(runs['tuned tcp'])}): against the paper's recipe Std-ViT gains {gains['std']} points and "
        f"TCP-ViT {gains['tcp']}. The paper's order of the two "
        f"{'is the same' if order['paper'] == order['tuned'] else 'turns round'}."
    )


def _on_the_proxy(runs: Runs) -> Iterable[str]:
    """Whether a high rate without warm-up alone can make the lead that the paper finds on SVHN."""
    by_recipe = {name: ahead(runs, f"tcp-{name}", f"std-{name}") for name in RECIPES}
    if not all(by_recipe.values()):
        return
    found = {name: fmean(points) for name, points in by_recipe.items()}
    std, warm = (100 * mean_top1(runs[name]) for name in ("std-paper", "std-paper-warm"))
    quoted = QUOTED["svhn"][1] - QUOTED["svhn"][0]
    pictures = _pictures(runs["tcp-tuned"])
    error = standard_error(mean_top1(runs["tcp-tuned"]), pictures)
    alone = found["paper"] >= quoted and found["paper"] - found["paper-warm"] >= 2 * error
    told = "; ".join(f"{signed(found[name])} with {said}" for name, said in RECIPES.items())
    yield (
        f"SVHN's proxy, TCP-ViT against Std-ViT in points: {told} ({pictures:,} pictures, a standard error of "
        f"{error:.1f}). A rate of 0.01 without warm-up {'makes' if alone else 'does not make'} a difference as large "
        f"as the paper's {quoted:.1f} points on SVHN: Std-ViT ends at {std:.1f} % with it, where chance is 10 %, and "
        f"at {warm:.1f} % after a warm-up."
    )


def _told(mine: float, theirs: float) -> str:
    """Two accuracies in words.

    >>> _told(0.61, 0.58), _told(0.58, 0.61)
    ('3.0 points ahead of', '3.0 points behind')
    """
    return f"{abs(100 * (mine - theirs)):.1f} points {'ahead of' if mine >= theirs else 'behind'}"


# ---------------------------------------------------------------------------------------------------- figure


def _times(path: Path) -> dict[str, float]:
    """Milliseconds a picture by model, if they were measured."""
    if not path.is_file():
        return {}
    return {row["name"]: row["forward_ms"] for row in read_json(path)["rows"]}


def _frontier(records: list[Record], times: dict[str, float]) -> Figure | None:
    """Every model at its own rate if that was run, else at the common one; below, every model of the short runs."""
    own = at_own_rate(records)
    long = by_model(group(records, "gap")) | {runs[0]["name"]: runs for runs in own.values()}
    names = {own[model][0]["name"] if model in own else model: said for model, said in SHORT.items()}
    rows = {}
    for runs, named in ((long, names), (best_ways(short_runs(records)), SHORT)):
        if runs:
            epochs = next(iter(runs.values()))[0]["epochs"]
            points = [_point(found, named.get(name, ""), times.get(name)) for name, found in runs.items()]
            rows[f"top-1 (%), {epochs} epochs"] = points
    return draw_frontier(rows, ["parameters", MS] if times else ["parameters"]) if rows else None


def _point(runs: list[Record], name: str, ms: float | None) -> Point:
    """A model with its name in the figure, if it has one, and its time, if it was measured."""
    costs = {"parameters": float(runs[0]["parameters"])} | ({MS: ms} if ms is not None else {})
    return Point(name, runs[0]["model"][:3], costs, 100 * mean_top1(runs), named=bool(name))


def _curves(records: list[Record]) -> Figure | None:
    """Losses and accuracy over the paper's schedule: does Std-ViT overfit?"""
    runs = group(records, "paper")
    panels = {"train loss": ("train_loss", 1), "test loss": ("val_loss", 1), "test top-1 (%)": ("val_top1", 100)}
    if {run["name"] for run in runs} != set(PAIR):
        return None
    return draw_curves(
        {
            title: {
                label: [curve_of(run, column, scale) for run in runs if run["name"] == name]
                for name, label in PAIR.items()
            }
            for title, (column, scale) in panels.items()
        }
    )
