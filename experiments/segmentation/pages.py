"""What the program writes for the segmentation study: tables and figures, none of its sentences."""

from __future__ import annotations

from pathlib import Path

from experiments.figures.efficiency import compression_cost
from experiments.pages import NOTHING, Blocks, figure, markdown, write_pages
from experiments.seeds import on_common_seeds
from experiments.segmentation import tables
from experiments.segmentation.figures import PHOTOGRAPHS, draw_all
from tcpvit.compare.intervals import signed
from tcpvit.compare.segmentation import PAIR, PAPER, PARAMETERS, performance_table
from tcpvit.compare.study import Places
from tcpvit.files import read_json
from tcpvit.tables import Written

TIMES = Path("bench/segmentation.json")  # beside the records, written by benchmarks/segmentation.py
PARTS = {"whole": "All training images", "subset": "The subset", "augmented": "The subset, augmented"}
CAPTIONS = {
    "seg_params": "Parameters: (a) in all, (b) stacked by component, (c) component by component (fig:seg_params).",
    "seg_curves": "Training loss, validation loss and validation mIoU against the epoch (fig:seg_curves).",
    "seg_confusion": "Confusion matrices of the validation pixels, rows in per cent of the truth (fig:seg_confusion).",
    "seg_visual": "Validation images at even distances in the list: input, truth, and both models (fig:seg_visual).",
    "seg_errors": "Errors on the same images: light green is right, dark red wrong, grey ignored (fig:seg_errors).",
    "seg_efficiency": "Parameters against mIoU, all training images (fig:seg_efficiency).",
    "seg_efficiency_subset": "Parameters against mIoU on the subset.",
}


def write(places: Places) -> list[Path]:
    """Draw the figures and fill the pages."""
    files = draw_all(places, places.records())
    return [*write_pages(places, blocks(places), {}), *files]


def blocks(places: Places) -> dict[str, Blocks]:
    """The blocks of the page, and of the page with all runs and times."""
    records = places.records()
    runs = {part: tables.runs_of(records, part) for part in (*PARTS, "faster")}
    drawings = {
        name: figure(name, caption, places.pages, "webp" if name in PHOTOGRAPHS else "svg")
        for name, caption in CAPTIONS.items()
    }
    shown = ("seg_curves", "seg_visual", "seg_efficiency_subset")
    return {
        "segmentation.md": {
            "subset": _seeds("subset", runs),
            "augmented": _seeds("augmented", runs),
            "performance": _performance(runs["whole"]),
            "parameters": markdown(
                tables.parameter_table({label: tables.PRESETS[n] for n, label in tables.LABELS.items()})
            ),
            **{name: drawings[name] for name in shown},
        },
        "segmentation_runs.md": {
            "rates": markdown(tables.rate_table(runs["subset"], runs["faster"])),
            "work": markdown(tables.work_table({label.lower(): runs[part] for part, label in PARTS.items()})),
            "times": _times(places.results.parent / TIMES),
            **{name: drawing for name, drawing in drawings.items() if name not in shown},
            "runs": markdown(tables.runs_table(records)),
        },
    }


def _seeds(part: str, runs: dict[str, tables.Runs]) -> str:
    return markdown(tables.seeds_table(f"seg_{part}", PARTS[part], runs[part])) if any(runs[part].values()) else NOTHING


def _performance(runs: tables.Runs) -> str:
    """The paper's table and its measure of efficiency, over the seeds of both."""
    runs = on_common_seeds({name: runs[name] for name in PAIR})
    table = performance_table(runs)
    if tables.has_pair(runs):
        points = [(runs[name][0]["parameters"], tables.percents(runs[name], "miou")) for name in PAIR]
        paper = [(PARAMETERS[i], [PAPER["miou"][i]]) for i in range(2)]
        ours, theirs = (Written(signed(compression_cost(*pair), 3).lstrip("+")) for pair in (points, paper))
        table.add("η, points of mIoU lost for each per cent of parameters saved", None, None, ours, None, None, theirs)
    return markdown(table)


def _times(times: Path) -> str:
    """The measured time of a batch by part, beside what the FLOPs allow."""
    if not times.is_file():
        return NOTHING
    bench = read_json(times)
    found = [tables.step_table(bench, precision) for precision in ("float32", "bfloat16")]
    about = f"`{bench['command']}`, {bench['date']}, commit {bench['commit']}, torch {bench['versions']['torch']}."
    return f"{markdown(*found, tables.decoder_table(bench))}\n\n{about}"
