"""What the program writes for the classification study: tables and figures, none of its sentences."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from experiments.classification.labels import FINE, PLUS, WIDE
from experiments.classification.tables import (
    at_own_rate,
    by_model,
    changes,
    choice_table,
    depths,
    effect_table,
    factors,
    final_table,
    gap_table,
    group,
    held_out_table,
    judges,
    model_of,
    paper_table,
    proxy_table,
    runs_table,
    seed_deviation,
    settled,
    short_runs,
    small_table,
    summary_table,
    that_show,
    time_table,
)
from experiments.figures.frontier import Point, draw_frontier
from experiments.pages import Blocks, figure, markdown, write_pages
from tcpvit.compare.classification import draw_pair
from tcpvit.compare.study import Places, Record
from tcpvit.figures.style import save_figure
from tcpvit.files import read_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHORT = {
    "std": "dense 48",
    "std-28": "dense 28",
    "paper": "the paper's",
    "paper-norm": "the paper's, one norm",
    PLUS: "plus",
    WIDE: "wide",
    FINE: "sub-patch",
    "tcp-44k": "TCP 44k, shared",
    "std-44k": "dense 44k",
    "tcp-44k-mixed": "TCP 44k",
    "tcp-120k": "TCP 120k, shared",
    "tcp-120k-mixed-smooth": "TCP 120k",
    "std-120k": "dense 120k",
}
MS = "ms an image, forward"
STEM = "classification_"  # of the figures
TIMES = Path("bench/classification.json")  # beside the records: measured in one interleaved run


def write(places: Places) -> list[Path]:
    """Draw the figures and fill the pages."""
    records = places.records()
    drawn = {"frontier": draw(records, _times(places)), "curves": draw_pair(group(records, "paper"))}
    files = [
        file
        for name, found in drawn.items()
        if found is not None
        for file in save_figure(found, places.pages / f"{STEM}{name}", ["svg"])
    ]
    return [*write_pages(places, blocks(places), readme(places)), *files]


def readme(places: Places) -> Blocks:
    """The block of the README."""
    return {"classification": markdown(summary_table(places.records()))}


def blocks(places: Places) -> dict[str, Blocks]:
    """The blocks of the page, and of the page with all runs."""
    records, times, pages = places.records(), _times(places), places.pages
    gap, final, short = group(records, "gap"), group(records, "final"), short_runs(records)
    own, deviation = at_own_rate(records), seed_deviation(records)
    deep, tuned = group(records, "depth"), group(records, "tuned-rate")
    shown = effect_table("changes", that_show(changes(short), short, deviation), short, deviation)
    return {
        "classification.md": {
            "finalists": markdown(final_table(final)),
            "frontier": figure(f"{STEM}frontier", "Accuracy against parameters and time, CIFAR-10.", pages),
            "changes": markdown(shown),
            "paper": markdown(paper_table(records)),
            "curves": figure(
                f"{STEM}curves", "Std-ViT and TCP-ViT over the paper's schedule, three seeds each.", pages
            ),
            "proxy": markdown(proxy_table(group(records, "proxy"))),
        },
        "small.md": {
            "small": markdown(small_table(group(records, "small"), _all_times(places))),
            "trials": markdown(held_out_table("trials", group(records, "small-screen"))),
            "remedies": markdown(held_out_table("remedies", group(records, "small-regularise"))),
            "structures": markdown(held_out_table("structures", group(records, "small-structure"))),
        },
        "classification_runs.md": {
            "rates": markdown(choice_table(records)),
            "own": markdown(gap_table(own.values(), times)),
            "time": markdown(time_table(own, by_model(final))),
            "one rate": markdown(gap_table(by_model(gap).values(), times)),
            "factors": markdown(effect_table("factors", factors(gap), gap, deviation)),
            "changes": markdown(effect_table("changes", changes(short), short, deviation)),
            "depths": markdown(effect_table("depths", depths(records), deep, deviation)),
            "tuned rates": markdown(held_out_table("tuned-rate", tuned)),
            "runs": markdown(runs_table(records)),
        },
    }


# ---------------------------------------------------------------------------------------------------- figure


def _times(places: Places) -> dict[str, float]:
    """Milliseconds an image by model, if they were measured."""
    return {name: row["forward_ms"] for name, row in _all_times(places).items()}


def _all_times(places: Places) -> dict[str, dict[str, float]]:
    """What was measured of each model."""
    path = places.results.parent / TIMES
    return {row["name"]: row for row in read_json(path)["rows"]} if path.is_file() else {}


def draw(records: list[Record], times: dict[str, float]) -> Figure | None:
    """The finalists on test images, those of the small ViTs among them."""
    runs = settled(group(records, "final"), judges(records)) | by_model(group(records, "small"))
    points = [_point(found, SHORT.get(name, ""), times) for name, found in runs.items()]
    return draw_frontier("test top-1 (%)", points, ["parameters", MS] if times else ["parameters"]) if points else None


def _point(runs: list[Record], name: str, times: dict[str, float]) -> Point:
    """A model with its name in the figure, if it has one, and its time, if it was measured."""
    one, top1 = runs[0], [100 * run["top1_last"] for run in runs]
    network, deviation = model_of(one), stdev(top1) if len(top1) > 1 else 0.0
    costs = {"parameters": float(one["parameters"])} | ({MS: times[network]} if network in times else {})
    return Point(name, one["model"][:3], costs, fmean(top1), bool(name), deviation)
