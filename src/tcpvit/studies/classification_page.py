"""The page of the classification study: tables, figures and plain words, all from the records."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from tcpvit.figures.curves import Curve, draw_curves
from tcpvit.figures.frontier import Point, draw_frontier
from tcpvit.figures.style import save_figure
from tcpvit.studies.classification_tables import (
    CENTRE,
    LABELS,
    QUOTED,
    SHORT_SHOWS,
    SHOWS,
    Effect,
    at_own_rate,
    best_runs,
    changes,
    effect_table,
    factors,
    gap_table,
    group,
    paper_table,
    percent,
    screen_table,
    seeds_table,
    sizes,
    target_table,
    title,
)
from tcpvit.studies.intervals import signed
from tcpvit.studies.study import Places, Record, write_block
from tcpvit.tables import Ratio, Table, render

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHORT = {"std": "Std-ViT", "std-28": "Std-ViT, width 28", "joint-full-lr": "tcp_vit_cifar_plus"}  # beside points
SHORT |= {"large-81x3": "tcp_vit_cifar_wide"}
PRESETS = {  # in the README, where people look for what to use
    "std": "`std_vit_cifar`, dense",
    "std-28": "the same, 28 wide: the dense ViT of TCP-ViT's size",
    "paper": "`tcp_vit_cifar`, as in the paper",
    "joint-full-lr": "`tcp_vit_cifar_plus`: joint attention, c-product patch embedding, slices learn C times as fast",
    "large-81x3": "`tcp_vit_cifar_wide`: the same, 81 wide instead of 48",
    "large-deep": "`tcp_vit_cifar_plus` with 12 blocks",
}
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
    page.write_text("\n".join(_lines(records, times, figures)) + "\n", encoding="utf-8")
    readme = places.pages.parent.parent / "README.md"
    return [page, *files, *write_block(readme, "classification", _summary(records))]


def _summary(records: list[Record]) -> str:
    """For the README: the dense models, the paper's, and the best of ours at both sizes: finalists, if there are."""
    final, own = group(records, "final"), at_own_rate(records)
    shown = final if all(sizes(best_runs(final))) else own
    runs = best_runs(shown)
    table = Table("summary", title(shown), ["model", "parameters", "of Std-ViT", "top-1"])
    for name in ("std", "std-28", "paper", *sizes(runs)):
        if name is not None and name in runs:
            parameters = runs[name][0]["parameters"]
            ratio = Ratio.of(parameters, runs["std"][0]["parameters"]) if "std" in runs else None
            top1 = percent([run["top1_last"] for run in runs[name]])
            table.add(PRESETS.get(name) or LABELS[name], parameters, ratio, top1)
    return render([table], "markdown")


def _lines(records: list[Record], times: dict[str, float], drawn: Iterable[str]) -> Iterable[str]:
    yield "# Classification: what closes the gap"
    yield ""
    yield (
        "Written by `tcpvit reproduce classification` from the files in `results/classification`; each of them names "
        "its command, seed, epochs and commit. Accuracies are those of the **last** epoch, which nothing was chosen "
        "by; the best epoch, chosen on the test pictures themselves as the paper does, stands beside it."
    )
    yield ""
    gap, own, final = group(records, "gap"), at_own_rate(records), group(records, "final")
    short = group(records, "screen") + group(records, "rate")
    yield from _section(
        "Finalists: 30 epochs",
        [seeds_table(final, "final"), target_table(final)],
        "Each model at its own learning rate: the best of the short runs below, which never saw a test picture. The "
        "schedule is one for all; three seeds are planned, the table says how many were run.",
    )
    yield from _section(
        "12 epochs, each model at its own learning rate",
        [gap_table(own, times), target_table(own)],
        "A TCP-ViT without short runs at two rates has that of J, slices learn C times as fast.",
    )
    yield from _section(
        "12 epochs, every model at one learning rate",
        [gap_table(gap, times)],
        "All at lr 0.003. The short runs below say that the dense models learn better at a higher one: compare the TCP "
        "models with one another here.",
    )
    if "frontier" in drawn:
        yield "## The frontier"
        yield ""
        yield "![Accuracy against parameters and time of each model](classification_frontier.png)"
        yield ""
    found = factors(gap)
    yield from _section(
        "From the paper's model to ours, one factor at a time",
        [effect_table("factors", "12 epochs, test pictures, lr 0.003", found, SHOWS)],
    )
    yield from _words(found, SHOWS)
    found = changes(short)
    yield from _section(
        "One change at a time to the best small model",
        [effect_table("changes", "4 epochs, held-out pictures, at that model's rate", found, SHORT_SHOWS)],
        f"The model is `tcp_vit_cifar_plus` ({LABELS[CENTRE]}).",
    )
    yield from _words(found, SHORT_SHOWS)
    yield from _section("Short runs that chose", [screen_table(short)])
    yield from _section(
        "The paper's protocol",
        [paper_table(records)],
        "10,000 training and 2,000 test pictures, 150 epochs, AdamW at lr 0.01 without warm-up, in bfloat16. `tuned` "
        "is the recipe tuned-classification on the same pictures.",
    )
    yield from _conclusions(records)
    if "curves" in drawn:
        yield "![Losses and accuracy of Std-ViT and TCP-ViT over the paper's 150 epochs](classification_curves.png)"
        yield ""
    yield from _section(
        "A proxy for SVHN",
        [seeds_table(group(records, "proxy"), "proxy")],
        "SVHN is not at hand. Digits on photographs (hard level) stand in for it, to see whether lr 0.01 without "
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


def _words(effects: list[Effect], shows: float) -> Iterable[str]:
    """Which changes matter, said plainly."""
    gains = [(what, 100 * (after - before)) for what, before, after in effects]
    for said, chosen in (
        ("What helps", [f"{what} ({signed(gain)})" for what, gain in gains if gain >= shows]),
        ("What hurts", [f"{what} ({signed(gain)})" for what, gain in gains if gain <= -shows]),
        ("What makes no difference that one run can show", [what for what, gain in gains if abs(gain) < shows]),
    ):
        if chosen:
            yield f"**{said}:** {'; '.join(chosen)}."
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
    overfits = "Std-ViT overfits, as the paper says" if test["std"] > 2 * train["std"] else "Std-ViT does not overfit"
    yield (
        f"**Which conclusions survive:** TCP-ViT is {_ahead(best['tcp'], best['std'])} Std-ViT at the best epoch, "
        f"{_ahead(last['tcp'], last['std'])} it at the last; in the paper it is {_ahead(quoted['tcp'], quoted['std'])} "
        f"it. {overfits}: it ends at a train loss of {train['std']:.2f} and a test loss of {test['std']:.2f}, TCP-ViT "
        f"at {train['tcp']:.2f} and {test['tcp']:.2f}. Our Std-ViT is {_ahead(best['std'], quoted['std'])} the "
        f"paper's, our TCP-ViT {_ahead(best['tcp'], quoted['tcp'])} the paper's."
    )
    yield ""


def _ahead(mine: float, theirs: float) -> str:
    """Two accuracies in words.

    >>> _ahead(0.61, 0.58), _ahead(0.58, 0.61)
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
    own = at_own_rate(records)
    names = {record["name"] for record in own}  # at its own rate a model counts as it can be
    gap = own + [record for record in group(records, "gap") if record["name"] not in names]
    chosen = []
    for name, (run, *_) in best_runs(gap).items():
        costs = {"parameters": float(run["parameters"])}
        if name in times:
            costs["ms a picture, forward"] = times[name]
        chosen.append(Point(SHORT.get(name, name), run["model"][:3], costs, 100 * run["top1_last"]))
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
                label: [_curve(run["history"], column, scale) for run in runs if run["name"] == name]
                for name, label in models.items()
            }
            for title, (column, scale) in panels.items()
        }
    )


def _curve(history: list[Record], column: str, scale: float) -> Curve:
    rows = [row for row in history if column in row]
    return [row["epoch"] for row in rows], [scale * row[column] for row in rows]
