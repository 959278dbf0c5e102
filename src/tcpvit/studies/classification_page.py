"""The page of the classification study: tables, figures and plain words, all from the records."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from tcpvit.figures.curves import draw_curves
from tcpvit.figures.frontier import Point, draw_frontier
from tcpvit.figures.style import save_figure
from tcpvit.studies.classification_tables import (
    LABELS,
    LEGEND,
    PLUS,
    PRESETS,
    QUOTED,
    RECIPES,
    TARGETS,
    WIDE,
    Effect,
    Runs,
    ahead,
    at_own_rate,
    chance,
    changes,
    effect_table,
    factors,
    gap_table,
    group,
    held_out_table,
    judges,
    mean_top1,
    paper_table,
    percent,
    seeds_table,
    settled,
    short_runs,
    target_table,
    title,
)
from tcpvit.studies.intervals import between, interval, leads, signed
from tcpvit.studies.study import Places, Record, curve_of, write_block
from tcpvit.tables import Ratio, Table, Written, render
from tcpvit.training.checkpoint import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHORT = {**PRESETS, "std": "Std-ViT", "std-28": "Std-ViT, width 28"}  # beside the points of the figure
SAID = {  # in the README, where people look for what to use
    "std": "`std_vit_cifar`, dense",
    "std-28": "the same, 28 wide: the dense ViT of TCP-ViT's size",
    "paper": "`tcp_vit_cifar`, as in the paper",
    PLUS: "`tcp_vit_cifar_plus`: joint attention, c-product patch embedding",
    WIDE: "`tcp_vit_cifar_wide`: the same, 81 wide, 3 heads a slice",
}
COLUMNS = ["parameters", "of Std-ViT", "lr", "seeds", "top-1"]
RATE_CAVEAT = (
    "All at the recipe's rate, which is not the best of each: that slices learn faster is also a higher rate for them. "
    "The next table has the other models at the rate of the best."
)
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
        table.add(SAID[name], one["parameters"], ratio, _rate(one), len(runs[name]), top1)
    table.notes.append(
        "Each model at the learning rate that runs on held-out training pictures chose, in ours with a factor for "
        "slice-wise weights (`optimizer.slice_lr_scale`). The last epoch counts."
    )
    return render([table], "markdown")


def _rate(run: Record) -> Written:
    """The learning rate, and the factor of the slices.

    >>> _rate({"lr": 0.006, "changes": ["optimizer.slice_lr_scale=sqrt"]})
    '0.006, slices ×√C'
    """
    scales = {"optimizer.slice_lr_scale=full": ", slices ×C", "optimizer.slice_lr_scale=sqrt": ", slices ×√C"}
    return Written(f"{run['lr']:g}{''.join(scales.get(change, '') for change in run['changes'])}")


def _lines(records: list[Record], times: dict[str, float], drawn: Iterable[str]) -> Iterable[str]:
    yield "# Classification: what closes the gap"
    yield ""
    yield (
        "Written by `tcpvit reproduce classification` from the files in `results/classification`; each of them names "
        "its command, seed, epochs and commit. Accuracies are those of the **last** epoch, which nothing was chosen "
        "by; the best epoch, chosen on the test pictures themselves as the paper does, stands beside it."
    )
    yield ""
    yield LEGEND
    yield ""
    gap, final, short = group(records, "gap"), group(records, "final"), short_runs(records)
    own, best = at_own_rate(records), settled(final, judges(records))
    yield from _section(
        "Finalists",
        [seeds_table(final, "final"), target_table(best)],
        "Each model at the learning rate that its runs on held-out training pictures prefer, which saw no test "
        "picture; the schedule is one for all. Three seeds are planned; the table says how many were run.",
    )
    yield from _with_time(own, best)
    yield from _section(
        "Runs that chose the rates of the finalists",
        [held_out_table("long", group(records, "long"))],
        "As long as the finals. A model that is not here has the rate that its short runs below prefer.",
    )
    yield from _section(
        "Each model at its own learning rate",
        [gap_table(own.values(), times), target_table(own)],
        "Shorter than the finalists. The rate is the best of those that were tried in short runs; a model without "
        "short runs has that of `tcp_vit_cifar_plus`.",
    )
    yield from _section(
        "Every model at one learning rate",
        [gap_table([[record] for record in gap], times)],
        "Models that prefer a higher rate, by the short runs below, are at a disadvantage here: dense ones most.",
    )
    if "frontier" in drawn:
        yield "## The frontier"
        yield ""
        yield "The models of the two tables above, at their own rate where that was run, else at the common one."
        yield ""
        yield "![Accuracy against parameters and time of each model](classification_frontier.png)"
        yield ""
    yield from _effects("From the paper's model to ours", "factors", factors(gap), gap, RATE_CAVEAT)
    about = f"The model is `{PRESETS[PLUS]}`: {LABELS[PLUS]}."
    yield from _effects("One change to the best small model", "changes", changes(short), short, about)
    yield from _section("Short runs that chose", [held_out_table("short", short)])
    yield from _section(
        "The paper's protocol",
        [paper_table(records)],
        "10,000 training pictures, 2,000 test pictures and 150 epochs, AdamW at lr 0.01 without warm-up; full CIFAR-10 "
        "has 200 epochs. CIFAR-10 ran in bfloat16. `tuned` is the recipe tuned-classification on the same pictures.",
    )
    yield from _conclusions(records)
    if "curves" in drawn:
        yield "![Losses and accuracy of Std-ViT and TCP-ViT over the paper's schedule](classification_curves.png)"
        yield ""
    yield from _section(
        "A proxy for SVHN",
        [seeds_table(group(records, "proxy"), "proxy")],
        "Where SVHN is not at hand, digits on photographs (hard level) stand in for it, to see whether lr 0.01 without "
        "warm-up alone can make the 14 points that the paper finds between the two models. This is a proxy, not SVHN.",
    )
    yield from _by_recipe(group(records, "proxy"))


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


def _effects(heading: str, name: str, effects: list[Effect], records: list[Record], about: str) -> Iterable[str]:
    """What changes make, as a table and in plain words."""
    yield from _section(heading, [effect_table(name, effects, records)], about)
    if not effects:
        return
    gains = [(what, 100 * (after - before)) for what, before, after in effects]
    shows = chance(effects, records[0]["measured_images"])
    for said, chosen in (
        ("What helps", [f"{what} ({signed(gain)})" for what, gain in gains if gain >= shows]),
        ("What hurts", [f"{what} ({signed(gain)})" for what, gain in gains if gain <= -shows]),
        ("What makes no difference that one run can show", [what for what, gain in gains if abs(gain) < shows]),
    ):
        if chosen:
            yield f"**{said}:** {'; '.join(chosen)}."
            yield ""


def _with_time(early: Runs, late: Runs) -> Iterable[str]:
    """How our leads change with the length of the training."""
    found = []
    for model, to in TARGETS:
        before, after = ahead(early, model, to), ahead(late, model, to)
        if before and after:
            name = LABELS[to].partition(":")[0]
            found.append(f"`{PRESETS[model]}` to {name}: {signed(fmean(before))}, then {signed(fmean(after))} points")
    if found:
        epochs = [next(iter(runs.values()))[0]["epochs"] for runs in (early, late)]
        yield f"**With longer training**, {epochs[0]} and {epochs[1]} epochs: {'; '.join(found)}."
        yield ""


def _conclusions(records: list[Record]) -> Iterable[str]:
    """Which of the paper's conclusions our runs of its protocol share."""
    runs = {name: [run for run in group(records, "paper") if run["name"] == name] for name in ("std", "tcp")}
    if not all(runs.values()):
        return
    best, last, train, test = (
        {name: fmean(run[key] for run in found) for name, found in runs.items()}
        for key in ("top1_best", "top1_last", "train_loss", "test_loss")
    )
    quoted = {name: said / 100 for name, said in zip(runs, QUOTED["cifar10"], strict=True)}
    pictures, at_best = runs["tcp"][0]["measured_images"], leads(runs["tcp"], runs["std"], "top1_best")
    sure = f", 95 % interval {between(interval(at_best))}" if len(at_best) > 1 else ""
    error = 100 * (2 * best["tcp"] * (1 - best["tcp"]) / pictures) ** 0.5
    overfits = "Std-ViT overfits, as the paper says" if test["std"] > 2 * train["std"] else "Std-ViT does not overfit"
    yield (
        f"**Which conclusions survive:** TCP-ViT is {_told(best['tcp'], best['std'])} Std-ViT at the best epoch{sure}, "
        f"{_told(last['tcp'], last['std'])} it at the last; in the paper it is {_told(quoted['tcp'], quoted['std'])} "
        f"it. Seeds: {len(at_best)}; {pictures:,} test pictures alone make a standard error of {error:.1f} points. "
        f"{overfits}: it ends at a train loss of {train['std']:.2f} and a test loss of {test['std']:.2f}, TCP-ViT at "
        f"{train['tcp']:.2f} and {test['tcp']:.2f}. Our Std-ViT is {_told(best['std'], quoted['std'])} the paper's, "
        f"our TCP-ViT {_told(best['tcp'], quoted['tcp'])} the paper's."
    )
    yield ""


def _by_recipe(proxy: list[Record]) -> Iterable[str]:
    """How far TCP-ViT is ahead of Std-ViT by recipe."""
    runs = settled(proxy, [])
    by_recipe = {said: ahead(runs, f"tcp-{name}", f"std-{name}") for name, said in RECIPES.items()}
    found = [f"{signed(fmean(points))} with {said}" for said, points in by_recipe.items() if points]
    if found:
        yield f"**TCP-ViT to Std-ViT, in points:** {'; '.join(found)}."
        yield ""


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
    return {row["name"]: row["forward_ms"] for row in json.loads(path.read_text(encoding="utf-8"))["rows"]}


def _frontier(records: list[Record], times: dict[str, float]) -> Figure | None:
    one_rate = settled(group(records, "gap"), [])
    chosen = []
    for name, runs in (one_rate | at_own_rate(records)).items():  # at its own rate a model counts as it can be
        costs = {"parameters": float(runs[0]["parameters"])}
        if name in times:
            costs["ms a picture, forward"] = times[name]
        top1, kind = 100 * mean_top1(runs), runs[0]["model"][:3]
        chosen.append(Point(SHORT.get(name, name), kind, costs, top1, named=name in SHORT))
    panels = ["parameters", "ms a picture, forward"] if times else ["parameters"]
    return draw_frontier(chosen, panels) if chosen else None


def _curves(records: list[Record]) -> Figure | None:
    """Losses and accuracy over the paper's schedule: does Std-ViT overfit?"""
    runs = group(records, "paper")
    panels = {"train loss": ("train_loss", 1), "test loss": ("val_loss", 1), "test top-1 (%)": ("val_top1", 100)}
    models = {"std": "Std-ViT", "tcp": "TCP-ViT"}
    if {run["name"] for run in runs} != set(models):
        return None
    return draw_curves(
        {
            title: {
                label: [curve_of(run, column, scale) for run in runs if run["name"] == name]
                for name, label in models.items()
            }
            for title, (column, scale) in panels.items()
        }
    )
