"""The paper's segmentation experiment (Section 5.2): its pair on Oxford-IIIT Pet, its table and figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from tcpvit.analysis import count_parameters
from tcpvit.compare.comparison import curves_of, sum_matrices
from tcpvit.compare.intervals import leads, signed, spread
from tcpvit.compare.study import Finished, Places, Planned, Record, Study
from tcpvit.data.oxford_pet import CLASSES
from tcpvit.figures.bars import draw_parameter_bars
from tcpvit.figures.confusion import draw_confusions
from tcpvit.figures.curves import draw_curves
from tcpvit.models import create_model
from tcpvit.tables import Cell, Ratio, Table, Written

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RECIPE = "paper-segmentation"
PAIR = {"std": "Std-ViT", "tcp": "TCP-ViT"}
PRESETS = {"std": "std_vit_pet", "tcp": "tcp_vit_pet"}
MIXED = "precision=bfloat16"  # as in the paper, which trains in mixed precision
NOT_RUN = Written("not run here")
COLUMNS = ("epoch", "lr", "train_loss", "train_accuracy", "val_loss", "val_miou", "val_boundary_iou", "seconds")
MEANS = ("miou", "mdice", "pixel_accuracy", "image_miou", "boundary_iou", "loss")
CURVES = {
    "(a) training loss": ("train_loss", 1),
    "(b) validation loss": ("val_loss", 1),
    "(c) validation mIoU (%)": ("val_miou", 100),
}
# tab:seg_performance of the paper: Std-ViT, TCP-ViT and the difference as it is printed there, from numbers with more
# digits. Its "Background" is our pet, its "Foreground" our background.
PARAMETERS = (1_570_978, 751_586)
PAPER = {
    "miou": (87.8, 86.8, -1.0),
    "mdice": (93.5, 92.9, -0.6),
    "pixel_accuracy": (94.2, 93.6, -0.6),
    "iou_background": (91.7, 90.9, -0.8),
    "iou_pet": (84.0, 82.7, -1.3),
    "dice_background": (95.7, 95.2, -0.4),
    "dice_pet": (91.3, 90.5, -0.8),
}
METRICS = {
    "miou": "mIoU",
    "mdice": "mDice",
    "pixel_accuracy": "pixel accuracy",
    "iou_background": "IoU: background (the paper's \u201cForeground\u201d row)",
    "iou_pet": "IoU: pet (the paper's \u201cBackground\u201d row)",
    "dice_background": "Dice: background (the paper's \u201cForeground\u201d row)",
    "dice_pet": "Dice: pet (the paper's \u201cBackground\u201d row)",
    "image_miou": "mIoU by image, mean",
    "boundary_iou": "boundary IoU, mean of both classes",
}

Runs = dict[str, list[Record]]  # of each model, by seed


def planned() -> list[Planned]:
    """Both models with the paper's recipe, seed by seed."""
    return [
        Planned("paper", name, RECIPE, (f"model.name={preset}", MIXED), seed)
        for seed in range(3)
        for name, preset in PRESETS.items()
    ]


def measured(finished: Finished) -> Record:
    """Metrics of the best epoch in fractions, the curves, and the confusion matrix (rows: the truth)."""
    result, test = finished.result, finished.result["test"]
    by_class = {
        f"{metric}_{label}": value
        for metric, values in test["by_class"].items()
        for label, value in zip(CLASSES, values, strict=True)
    }
    return {
        **{name: test[name] for name in MEANS},
        **by_class,
        "best_epoch": int(result["best"]["epoch"]),
        "miou_last": result["last"]["val_miou"],
        "confusion": test["confusion"],
        "classes": list(CLASSES),
        "history": [{name: row[name] for name in COLUMNS if name in row} for row in finished.history],
    }


def runs_of(records: Iterable[Record], group: str, models: Iterable[str] = PAIR) -> Runs:
    """The records of a part of the study by model; models that were not run have none."""
    found: Runs = {name: [] for name in models}
    for record in sorted(records, key=lambda record: record["seed"]):
        if record["group"] == group and record["name"] in found:
            found[record["name"]].append(record)
    return found


def performance_table(runs: Runs) -> Table:
    """tab:seg_performance: Std-ViT and TCP-ViT beside the paper's numbers."""
    columns = ["per cent", "Std-ViT", "TCP-ViT", "Δ", "paper: Std-ViT", "paper: TCP-ViT", "paper: Δ"]
    table = Table("seg_performance", "Performance (tab:seg_performance)", columns)
    for metric, label in METRICS.items():
        cells = [spread_of(runs[name], metric) for name in PAIR]
        found = leads(runs["tcp"], runs["std"], metric)
        paper: list[Cell] = [None] * 3
        if metric in PAPER:
            std, tcp, gap = PAPER[metric]
            paper = [Written(f"{std:.1f}"), Written(f"{tcp:.1f}"), Written(signed(gap))]
        table.add(label, *cells, Written(signed(fmean(found))) if found else None, *paper, strong=metric == "miou")
    ours = [runs[name][0]["parameters"] if runs[name] else None for name in PAIR]
    table.add("parameters", *ours, Ratio.of(ours[1], ours[0]), *PARAMETERS, Ratio.of(PARAMETERS[1], PARAMETERS[0]))
    return table


def spread_of(runs: Sequence[Record], metric: str) -> Written:
    """The mean in per cent, with the deviation over seeds."""
    return Written(spread([100 * run[metric] for run in runs])) if runs else NOT_RUN


def draw_pair(runs: Runs) -> dict[str, Figure]:
    """fig:seg_curves and fig:seg_confusion, the latter summed over the seeds."""
    panels = curves_of({label: [run["history"] for run in runs[name]] for name, label in PAIR.items()}, CURVES)
    matrices = {label: sum_matrices([run["confusion"] for run in runs[name]]) for name, label in PAIR.items()}
    confusions = draw_confusions(matrices, runs["std"][0]["classes"], in_column=True)
    return {"curves": draw_curves(panels, in_column=True), "confusion": confusions}


def write(places: Places) -> list[Path]:
    """Write `segmentation.md` with the table, and the figures that there are records for."""
    runs = runs_of(places.records(), "paper")
    counts = {PAIR[name]: count_parameters(create_model(preset)).components for name, preset in PRESETS.items()}
    figures = {"parameters": draw_parameter_bars(counts)} | (draw_pair(runs) if all(runs.values()) else {})
    return places.write("segmentation", performance_table(runs), figures)


STUDY = Study("segmentation", planned, measured, write)
