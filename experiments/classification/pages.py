"""What the program writes for the classification study: tables and figures, none of its sentences."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from experiments.classification.labels import FINE, PLUS, PRESETS, WIDE
from experiments.classification.tables import (
    Runs,
    at_own_rate,
    best_ways,
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
from experiments.seeds import on_common_seeds
from tcpvit.compare.classification import draw_pair
from tcpvit.compare.study import Places, Record
from tcpvit.figures.style import save_figure
from tcpvit.files import read_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHORT = {
    "std": "width 48",
    "std-28": "width 28",
    "paper": "the paper's",
    PLUS: "plus",
    WIDE: "wide",
    FINE: "sub-patch",
    "tcp-44k": "44k",
    "std-44k": "44k",
    "tcp-120k": "120k",
}
MS = "ms an image, forward"
STEM = "classification_"  # of the figures
TIMES = Path("bench/classification.json")  # beside the records: measured in one interleaved run
SMALL_TIMES = Path("bench/small.json")


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
            "small": markdown(
                *(
                    small_table(group(records, name), _all_times(places, SMALL_TIMES))
                    for name in ("small-long", "small")
                )
            ),
            "trials": markdown(held_out_table("trials", group(records, "small-screen"))),
        },
        "classification_runs.md": {
            "rates": markdown(choice_table(records)),
            "own": markdown(gap_table(own.values(), times)),
            "time": markdown(time_table(own, by_model(final))),
            "one rate": markdown(gap_table(by_model(gap).values(), times)),
            "factors": markdown(effect_table("factors", factors(gap), gap, deviation)),
            "changes": markdown(effect_table("changes", changes(short), short, deviation)),
            "changes of sub-patch": markdown(effect_table("fine", changes(short, FINE), short, deviation)),
            "depths": markdown(effect_table("depths", depths(records), deep, deviation)),
            "tuned rates": markdown(held_out_table("tuned-rate", tuned)),
            "runs": markdown(runs_table(records)),
        },
    }


# ---------------------------------------------------------------------------------------------------- figure


def _times(places: Places) -> dict[str, float]:
    """Milliseconds an image by model, if they were measured."""
    return {name: row["forward_ms"] for name, row in _all_times(places, TIMES).items()}


def _all_times(places: Places, file: Path) -> dict[str, dict[str, float]]:
    """What was measured of each model."""
    path = places.results.parent / file
    return {row["name"]: row for row in read_json(path)["rows"]} if path.is_file() else {}


def draw(records: list[Record], times: dict[str, float]) -> Figure | None:
    """Finalists; every model of 12 epochs at its own rate if that was run, else at the common one; all short runs."""
    final = _on_seeds_of_presets(settled(group(records, "final"), judges(records)))
    own = at_own_rate(records)
    gap = by_model(group(records, "gap")) | {runs[0]["name"]: runs for runs in own.values()}
    names = {own[model][0]["name"] if model in own else model: said for model, said in SHORT.items()}
    rows: dict[str, dict[str, Point]] = {}
    small, long = (by_model(group(records, name)) for name in ("small", "small-long"))
    short = best_ways(short_runs(records))
    for runs, named in ((long, SHORT), (final, SHORT), (gap, names), (small, SHORT), (short, SHORT)):
        if runs:
            one = next(iter(runs.values()))[0]
            title = f"{one['measured_on'].split()[0]} top-1 (%), {one['epochs']} epochs"
            points = {name: _point(found, named.get(name, ""), times) for name, found in runs.items()}
            rows[title] = points | rows.get(title, {})  # with `--epochs`, several parts may share a row
    drawn = {title: list(points.values()) for title, points in rows.items()}
    return draw_frontier(drawn, ["parameters", MS] if times else ["parameters"]) if drawn else None


def _on_seeds_of_presets(runs: Runs) -> Runs:
    """Our presets and the dense models on the seeds that all of them have; another model if it has these seeds too."""
    ours = [name for name in PRESETS if not name.startswith("paper") and name in runs]
    common = on_common_seeds({name: runs[name] for name in ours})
    seeds = {run["seed"] for found in common.values() for run in found}
    others = {name: [run for run in found if run["seed"] in seeds] for name, found in runs.items() if name not in ours}
    return {name: found for name, found in (common | others).items() if found and len(found) == len(seeds)}


def _point(runs: list[Record], name: str, times: dict[str, float]) -> Point:
    """A model with its name in the figure, if it has one, and its time, if it was measured."""
    one, top1 = runs[0], [100 * run["top1_last"] for run in runs]
    network, deviation = model_of(one), stdev(top1) if len(top1) > 1 else 0.0
    costs = {"parameters": float(one["parameters"])} | ({MS: times[network]} if network in times else {})
    return Point(name, one["model"][:3], costs, fmean(top1), bool(name), deviation)
