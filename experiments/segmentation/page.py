"""The page of the segmentation study: a template, filled from the records; what is missing was not run here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from string import Template
from typing import Any

from experiments.figures.efficiency import compression_cost
from experiments.segmentation import tables
from experiments.segmentation.figures import EFFICIENCY, SHOWN, draw_all
from tcpvit.compare.intervals import ABOUT, leads, on_common_seeds, seeds_of, signed, spread
from tcpvit.compare.study import Places, Record, figure_block, write_block
from tcpvit.files import read_json, write_atomically
from tcpvit.tables import Table, as_text, render

TIMES = Path("bench/segmentation.json")  # beside the records, written by benchmarks/segmentation.py
TEMPLATE = Path(__file__).with_name("segmentation.md")
ASKED = {"whole": "All training images", "subset": "The subset", "augmented": "The subset, augmented"}
GROUPS = ASKED | {"faster": "The subset, three times the rate"}
CAPTIONS = {
    "seg_params": "Parameters: (a) in all, (b) stacked by component, (c) component by component (fig:seg_params).",
    "seg_curves": "Training loss, validation loss and validation mIoU against the epoch (fig:seg_curves).",
    "seg_confusion": "Confusion matrices of the validation pixels, rows in per cent of the truth (fig:seg_confusion).",
    "seg_visual": f"{SHOWN} validation images at even distances in the list, not chosen by result: input, truth, and "
    "what both models find, with the mIoU of the image (fig:seg_visual).",
    "seg_errors": "Errors on the same images: light green is right, dark red wrong, grey ignored (fig:seg_errors).",
    "seg_efficiency": "Parameters against mIoU, all training images (fig:seg_efficiency).",
    "seg_efficiency_subset": "Parameters against mIoU on the subset.",
}
OF_SHOWN = ("seg_curves", "seg_confusion", "seg_visual", "seg_errors")  # of the part that has both models


def write(places: Places) -> list[Path]:
    """Write the figures and the page."""
    records = places.records()
    page = places.pages / "segmentation.md"
    written = draw_all(places, records)
    write_atomically(page, text(records, places.pages, places.results.parent / TIMES).encode())
    return [page, *written, *write_block(places.readme, "segmentation", summary(records))]


def summary(records: Sequence[Record]) -> str:
    """For the README: the paper's two models beside its own numbers, which took far longer, and all on the subset."""
    whole, subset, augmented = (tables.runs_of(records, group) for group in ASKED)
    first = _markdown(tables.summary_table(whole)) if tables.has_pair(whole) else _not_run("whole")
    leading = tables.lead_table(subset, augmented)
    return "\n\n".join([first, _markdown(leading)] if leading.rows else [first])


def text(records: Sequence[Record], pages: Path, times: Path | None = None) -> str:
    """The whole page; figures are shown if they lie in `pages`, and the times of a step if they were measured."""
    runs = {group: tables.runs_of(records, group) for group in GROUPS}
    shown = tables.shown_group(records)
    about = dict.fromkeys(OF_SHOWN, f" {GROUPS[shown]}, {runs[shown]['std'][0]['epochs']} epochs.") if shown else {}
    if shown:
        about["seg_visual"] += _over_all(runs[shown])
    for name, group in EFFICIENCY.items():
        about[name] = f" Seeds: {seeds_of(on_common_seeds(runs[group])['std'])}."
    slots = {
        "budget": _budget(records),
        "intervals": ABOUT,
        "parameters": _markdown(tables.parameter_table()),
        "models": _models(),
        "work": _markdown(tables.work_table({label.lower(): runs[group] for group, label in ASKED.items()})),
        "steps": _steps(times),
        "performance": _performance(runs["whole"]),
        "subset": _seeds("subset", runs["subset"]),
        "augmented": _seeds("augmented", runs["augmented"]),
        "faster": _faster(runs["subset"], runs["faster"]),
        "goals": _markdown(tables.goals_table(*(runs[group] for group in ASKED))),
        "runs": _markdown(tables.runs_table(records)) if records else "Nothing was run here yet.",
        "commands": _commands(records),
        **{f"figure_{name}": _figure(name, pages, about.get(name, "")) for name in CAPTIONS},
    }
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(slots)


def _over_all(runs: tables.Runs) -> str:
    """The means that a few images need not share."""
    means = (f"{spread(tables.percents(runs[name], 'image_miou'))} ({tables.LABELS[name]})" for name in tables.PAIR)
    return f" Over all {runs['std'][0]['test_images']:,} images the mean is {' and '.join(means)}."


def _budget(records: Sequence[Record]) -> str:
    """How much was trained, against the paper's schedule."""
    lines = [f"**The budget.** The paper trains for {tables.PAPER_EPOCHS} epochs. Here:", ""]
    for group, label in GROUPS.items():
        found = [record for record in records if record["group"] == group]
        if not found:
            lines.append(f"- {label}: not run here.")
            continue
        epochs, images = (_listed([record[key] for record in found]) for key in ("epochs", "train_images"))
        seeds = sorted({len(runs) for runs in tables.runs_of(records, group).values() if runs})
        lines.append(
            f"- {label}: {epochs} epochs, {images} training and {found[0]['test_images']:,} validation images, "
            f"{' to '.join(map(str, sorted({seeds[0], seeds[-1]})))} seed{'s' * (seeds[-1] > 1)} of each model."
        )
    if precisions := sorted({record["precision"] for record in records}):
        lines += ["", f"All were trained in {' or '.join(precisions)}, the paper's in mixed precision too."]
    if any(record["epochs"] < tables.PAPER_EPOCHS for record in records):
        lines += [
            "",
            "With fewer epochs than the paper's, our numbers can be compared with each other, not with its own.",
        ]
    return "\n".join(lines)


def _models() -> str:
    """What our own models change, read off their configs."""
    lines = []
    for name in ("plus", "full"):
        changed = ", ".join(f"`{key}` = {value}" for key, value in tables.changed_options(name).items())
        trained = "".join(f", trained with `{change}`" for change in tables.OWN.get(name, ()))
        lines.append(
            f"- **{tables.LABELS[name]}** (`{tables.PRESETS[name]}`) is the paper's TCP-ViT with {changed}{trained}."
        )
    return "\n".join(lines)


def _steps(times: Path | None) -> str:
    """The measured time of a batch by part, beside what the FLOPs allow."""
    if times is None or not times.is_file():
        return "The time of a step by part was not measured here; `python benchmarks/segmentation.py` does."
    bench = read_json(times)
    found = [_markdown(tables.step_table(bench, precision)) for precision in ("float32", "bfloat16")]
    about = f"`{bench['command']}`, {bench['date']}, commit {bench['commit']}, torch {bench['versions']['torch']}."
    return "\n\n".join([*found, tables.decoder_words(bench), about])


def _performance(runs: tables.Runs) -> str:
    if not any(runs[name] for name in tables.PAIR):
        return _not_run("whole")
    runs = on_common_seeds(runs)
    table = tables.performance_table(runs)
    found = leads(runs["tcp"], runs["std"], "miou")
    if found:
        points = [(runs[name][0]["parameters"], tables.percents(runs[name], "miou")) for name in tables.PAIR]
        paper = [(tables.PAPER_PARAMETERS["total"][i], [tables.PAPER["miou"][i]]) for i in range(2)]
        ours, theirs = (signed(compression_cost(*pair), 3).lstrip("+") for pair in (points, paper))
        side = "below" if fmean(found) < 0 else "above"
        table.notes.append(
            f"At its best epoch TCP-ViT is {abs(fmean(found)):.2f} points {side} Std-ViT in mIoU, with "
            f"{points[1][0] / points[0][0]:.3f} of its parameters: η = {ours} (paper: {theirs})."
        )
    return _markdown(table)


def _seeds(group: str, runs: tables.Runs) -> str:
    if not any(runs.values()):
        return _not_run(group)
    return _markdown(tables.seeds_table(f"seg_{group}", GROUPS[group], runs))


def _faster(subset: tables.Runs, faster: tables.Runs) -> str:
    if not any(faster.values()):
        return _not_run("faster")
    return _markdown(tables.rate_table(subset, faster))


def _figure(name: str, pages: Path, about: str) -> str:
    if not (pages / f"{name}.png").is_file():
        return f"*Not run here: {CAPTIONS[name]}*"
    return figure_block(name, CAPTIONS[name], about)


def _commands(records: Sequence[Record]) -> str:
    threads, versions = (_listed([record[key] for record in records]) for key in ("threads", "torch"))
    where = f"Threads of a run: {threads}; torch {versions}.\n\n" if records else ""
    return (
        f"{where}Every record has its command, seed, commit, curve and confusion matrix. To run it again:\n\n"
        "```console\n"
        "$ tcpvit data download oxford-pet\n"
        "$ tcpvit reproduce segmentation --plan\n"
        "$ tcpvit reproduce segmentation --only whole\n"
        "$ tcpvit reproduce segmentation --only whole --epochs 150   # the paper's own schedule\n"
        "```"
    )


def _not_run(group: str) -> str:
    return f"Not run here: `tcpvit reproduce segmentation --only {group}` does it."


def _listed(values: Sequence[Any]) -> str:
    """Each value once.

    >>> _listed([5879, 2000, 2000])
    '2,000 or 5,879'
    """
    return " or ".join(map(as_text, sorted(set(values))))


def _markdown(table: Table) -> str:
    return render([table], "markdown")
