"""The page of the classification study: tables, figures and plain words, all from the records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from experiments.classification.labels import FINE, LABELS, LEGEND, PAPER_EPOCHS, PLUS, PRESETS, WIDE
from experiments.classification.tables import (
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
    depths,
    effect_table,
    factors,
    final_table,
    gap_table,
    group,
    held_out_table,
    judges,
    lead,
    mean_top1,
    model_of,
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
from experiments.classification.words import images_of, in_short, sorted_out, with_time
from experiments.figures.frontier import Point, draw_frontier
from tcpvit.compare.intervals import ABOUT, on_common_seeds, percent, seeds_of, signed
from tcpvit.compare.study import Places, Record, curve_of, figure_block, write_block
from tcpvit.figures.curves import draw_curves
from tcpvit.figures.style import save_figure
from tcpvit.files import read_json, write_atomically
from tcpvit.tables import Ratio, Table, render

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHORT = {"std": "width 48", "std-28": "width 28", "paper": "the paper's", PLUS: "plus", WIDE: "wide", FINE: "S"}
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
MS = "ms an image, forward"
SHIPPED = 0  # the seed of the weights in the zoo
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
    write_atomically(page, ("\n".join(_lines(records, places.results.name, times, figures)) + "\n").encode())
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
        "Each model at the learning rate that runs on held-out training images chose, in ours with a factor for "
        "slice-wise weights (`optimizer.slice_lr_scale`). The last epoch counts; differences are in points, over the "
        "seeds that both models have."
    )
    shipped = {name: run for name in (PLUS, WIDE) if name in runs for run in runs[name] if run["seed"] == SHIPPED}
    if shipped:
        presets = " and ".join(f"`{PRESETS[name]}` ({percent([run['top1_last']])})" for name, run in shipped.items())
        table.notes.append(
            f"The weights of {presets}, seed {SHIPPED}, come with the library: `tcpvit eval {PRESETS[PLUS]} "
            "--pretrained --dataset cifar10` measures them again."
        )
    return render([table], "markdown")


def _lines(records: list[Record], folder: str, times: dict[str, float], drawn: Iterable[str]) -> Iterable[str]:
    gap, final, short = group(records, "gap"), group(records, "final"), short_runs(records)
    own, best, deviation = at_own_rate(records), settled(final, judges(records)), seed_deviation(records)
    yield "# Classification: how far the gap closes"
    yield ""
    yield (
        f"Written by `tcpvit reproduce classification` from the files in `results/{folder}`; each of them names "
        "its command, seed, epochs and commit. Accuracies are those of the **last** epoch, so that no epoch is picked "
        "by its test accuracy; the best epoch, picked on the test images themselves as the paper does, stands beside."
    )
    yield ""
    yield LEGEND
    yield ""
    yield from in_short(records, best)
    yield from _section(
        "Finalists",
        [final_table(final), target_table(best)],
        "One schedule for all, each model at the learning rate that held-out training images chose (below). Three "
        f"seeds of each are planned. {ABOUT}",
    )
    yield from with_time(own, by_model(final))
    yield from _section(
        "How the rates of the finalists were chosen",
        [choice_table(records)],
        "Top-1 in per cent of each learning rate that was tried, on 5,000 training images that were held out (bold: "
        "the best of several), and the rate of the finals. One seed each; no test image was looked at. "
        f"{_second_round(records)}",
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
            "First the finalists, presets and dense models over the seeds that all of them have, with the deviation if "
            "there are several, and others that have these seeds too; then "
            "the models of the two tables above, at their own rate where that was run, else at the common one; last "
            "all models of the short runs, on held-out training images, at the best rate tried. The order changes "
            "with the length of training: the first row counts, and where it has one seed, the table of finalists. "
            "Deeper networks, of other runs, have a table of their own below."
        )
        yield ""
        about = " “plus” and “wide” are our presets, points without a name the other models of the study."
        yield figure_block(f"{STEM}frontier", "Accuracy against parameters and time, CIFAR-10.", about)
        yield ""
    yield from _effects("From the paper's model to ours", "factors", factors(gap), gap, deviation, RATE_CAVEAT)
    about = f"The model is `{PRESETS[PLUS]}`, trained as {LABELS[PLUS]}."
    yield from _effects("One change to the best small model", "changes", changes(short), short, deviation, about)
    if of_fine := changes(short, FINE):
        yield from _effects("One change to S", "changes_of_fine", of_fine, short, deviation, "All of about its size.")
    about = (
        "Networks with as many parameters, deeper and narrower. Four epochs say little of deep ones, so these runs "
        "have 12; each deep network has the learning rate of the one that it is compared with."
    )
    deep = group(records, "depth")
    yield from _effects("Width against depth", "depths", depths(records), deep, deviation, about)
    yield from _section("Short runs that chose", [held_out_table("short", short)])
    yield from _section(
        "The paper's protocol",
        [paper_table(records)],
        f"10,000 training images, 2,000 test images and {PAPER_EPOCHS} epochs, AdamW at lr 0.01 without warm-up; "
        "full CIFAR-10 has 200 epochs in the paper, and `tcpvit reproduce classification --only full` repeats them for "
        "whoever has a GPU. CIFAR-10 ran in bfloat16. `tuned` is the recipe tuned-classification on the same images: "
        "its train losses are with label smoothing, and its accuracies those of averaged weights.",
    )
    tuned = group(records, "tuned-rate")
    if tuned:
        yield "The rates of the tuned recipe were chosen on training images that were held out:"
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
        "warm-up alone can make the 14 points that the paper finds between the two models. This is a proxy, not SVHN; "
        "its runs are short, their digits are never flipped, and both models have the tuned recipe's own rate.",
    )


def _second_round(records: list[Record]) -> str:
    """What the longer of the runs that choose cannot claim."""
    if not group(records, "long"):
        return ""
    known = by_model(group(records, "long"))
    lacking = [LABELS[name].partition(":")[0] for name in by_model(group(records, "final")) if name not in known]
    without = f" {'; '.join(lacking)}: no such runs." if lacking else ""
    found = ahead(known, "joint-sqrt-lr", PLUS)
    chosen = (
        f" In them √C is {signed(fmean(found))} points ahead of C as the factor of J's slices, with a "
        f"standard error of {standard_error(mean_top1(known[PLUS]), images_of(known[PLUS])):.1f}."
        if found
        else ""
    )
    return f"The runs as long as the finals came later than the finals' first seeds.{chosen}{without}"


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


def _effects(
    heading: str, name: str, effects: list[Effect], records: list[Record], deviation: float, about: str
) -> Iterable[str]:
    """What changes make, as a table and in plain words."""
    yield from _section(heading, [effect_table(name, effects, records, deviation)], about)
    if effects:
        for said, chosen in sorted_out(effects, chance(effects, images_of(records), deviation)).items():
            yield f"**{said[0].upper()}{said[1:]}:** {'; '.join(chosen)}."
            yield ""


# ---------------------------------------------------------------------------------------------------- figure


def _times(path: Path) -> dict[str, float]:
    """Milliseconds an image by model, if they were measured."""
    if not path.is_file():
        return {}
    return {row["name"]: row["forward_ms"] for row in read_json(path)["rows"]}


def _frontier(records: list[Record], times: dict[str, float]) -> Figure | None:
    """Finalists; every model of 12 epochs at its own rate if that was run, else at the common one; all short runs."""
    final = _on_seeds_of_presets(settled(group(records, "final"), judges(records)))
    own = at_own_rate(records)
    gap = by_model(group(records, "gap")) | {runs[0]["name"]: runs for runs in own.values()}
    names = {own[model][0]["name"] if model in own else model: said for model, said in SHORT.items()}
    rows: dict[str, dict[str, Point]] = {}
    for runs, named in ((final, SHORT), (gap, names), (best_ways(short_runs(records)), SHORT)):
        if runs:
            one = next(iter(runs.values()))[0]
            title = f"{one['measured_on'].split()[0]} top-1 (%), {one['epochs']} epochs"
            points = {name: _point(found, named.get(name, ""), times) for name, found in runs.items()}
            rows[title] = points | rows.get(title, {})  # with `--epochs`, several parts may share a row
    drawn = {title: list(points.values()) for title, points in rows.items()}
    return draw_frontier(drawn, ["parameters", MS] if times else ["parameters"]) if drawn else None


def _on_seeds_of_presets(runs: Runs) -> Runs:
    """Presets and dense models on the seeds that all of them have; another model if it has these seeds too."""
    common = on_common_seeds({name: found for name, found in runs.items() if name in SAID})
    seeds = {run["seed"] for found in common.values() for run in found}
    others = {name: [run for run in found if run["seed"] in seeds] for name, found in runs.items() if name not in SAID}
    return {name: found for name, found in (common | others).items() if found and len(found) == len(seeds)}


def _point(runs: list[Record], name: str, times: dict[str, float]) -> Point:
    """A model with its name in the figure, if it has one, and its time, if it was measured."""
    one, top1 = runs[0], [100 * run["top1_last"] for run in runs]
    network, deviation = model_of(one), stdev(top1) if len(top1) > 1 else 0.0
    costs = {"parameters": float(one["parameters"])} | ({MS: times[network]} if network in times else {})
    return Point(name, one["model"][:3], costs, fmean(top1), bool(name), deviation)


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
