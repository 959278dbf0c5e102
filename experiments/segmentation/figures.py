"""The six figures of the segmentation study, from its records, and for the images from the weights of its runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from experiments.figures.efficiency import draw_efficiency
from experiments.segmentation.tables import (
    LABELS,
    LEVELS,
    PAIR,
    Runs,
    components,
    has_pair,
    percents,
    runs_of,
    shown_group,
)
from tcpvit.compare.intervals import on_common_seeds
from tcpvit.compare.study import Places, Record, curve_of
from tcpvit.data import IGNORE, Batches
from tcpvit.figures.bars import draw_parameter_bars
from tcpvit.figures.confusion import draw_confusions
from tcpvit.figures.curves import draw_curves
from tcpvit.figures.masks import draw_errors, draw_segmentations
from tcpvit.figures.style import save_figure
from tcpvit.inference import load_model
from tcpvit.training.build import load_splits
from tcpvit.training.metrics import image_mious

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 5  # images
EFFICIENCY = {"seg_efficiency": "whole", "seg_efficiency_subset": "subset"}  # over the seeds that all models have
CURVES = {
    "(a) training loss": ("train_loss", 1),
    "(b) validation loss": ("val_loss", 1),
    "(c) validation mIoU (%)": ("val_miou", 100),
}


def draw_all(places: Places, records: Sequence[Record]) -> list[Path]:
    """Write every figure that there are numbers for, as SVG and PNG."""
    figures = {"seg_params": _draw_parameters()}
    for name, group in EFFICIENCY.items():
        runs = on_common_seeds(runs_of(records, group))
        if has_pair(runs):
            figures[name] = _draw_efficiency(runs)
    if shown := shown_group(records):
        runs = runs_of(records, shown)
        figures |= {"seg_curves": _draw_curves(runs), "seg_confusion": _draw_confusions(runs)}
        figures |= _draw_images([places.runs / runs[name][0]["key"] for name in PAIR])
    return [path for name, figure in figures.items() for path in save_figure(figure, places.pages / name)]


def _draw_parameters() -> Figure:
    leaves = [part for part in LEVELS if part not in ("total", "backbone")]
    names = {"embeddings and tokens": "embeddings\nand tokens"}
    parts = {}
    for name in LABELS:  # all of them, so that each has its colour in every figure
        counts = components(name)
        parts[LABELS[name]] = {names.get(part, part): counts[part] for part in leaves}
    return draw_parameter_bars(parts, in_column=True)


def _draw_curves(runs: Runs) -> Figure:
    panels = {
        title: {LABELS[name]: [curve_of(run, column, scale) for run in runs[name]] for name in PAIR}
        for title, (column, scale) in CURVES.items()
    }
    return draw_curves(panels, in_column=True)


def _draw_confusions(runs: Runs) -> Figure:
    matrices = {LABELS[name]: torch.tensor([run["confusion"] for run in runs[name]]).sum(0).tolist() for name in PAIR}
    return draw_confusions(matrices, runs["std"][0]["classes"], in_column=True)


def _draw_efficiency(runs: Runs) -> Figure:
    points = {
        LABELS[name]: (of_model[0]["parameters"], percents(of_model, "miou"))
        for name, of_model in runs.items()
        if of_model
    }
    return draw_efficiency(points)


def _draw_images(folders: Sequence[Path]) -> dict[str, Figure]:
    """Predictions and errors on validation images at even distances in the list; nothing without weights or data."""
    if not all((folder / "result.json").is_file() for folder in folders):
        return {}
    models = [load_model(folder) for folder in folders]
    assert models[0].recipe is not None
    try:
        pets = load_splits(models[0].recipe.data).test
    except FileNotFoundError:
        return {}
    pets = models[0].prepare(pets.subset(torch.linspace(0, len(pets) - 1, min(SHOWN, len(pets))).long()))
    images, truths = next(iter(Batches(pets, SHOWN)))
    predictions, mious, wrongs = {}, {}, {}
    for name, trained in zip(PAIR, models, strict=True):
        with torch.inference_mode():
            found = trained.model(images).argmax(1)
        predictions[LABELS[name]] = list(found.numpy())
        mious[LABELS[name]] = [
            f"mIoU {100 * miou:.1f}" for miou in image_mious(found, truths, len(pets.classes)).tolist()
        ]
        wrongs[LABELS[name]] = [f"{share:.1f} % wrong" for share in map(_percent_wrong, found, truths)]
    pixels = list(pets.fetch(torch.arange(len(pets))).images.movedim(1, -1).numpy())
    masks = list(truths.numpy())
    return {
        "seg_visual": draw_segmentations(pixels, masks, predictions, mious),
        "seg_errors": draw_errors(pixels, masks, predictions, wrongs),
    }


def _percent_wrong(found: torch.Tensor, truth: torch.Tensor) -> float:
    counted = truth != IGNORE
    return 100 * ((found != truth) & counted).sum().item() / max(counted.sum().item(), 1)
