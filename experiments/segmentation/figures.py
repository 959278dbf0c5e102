"""The figures of the segmentation study, from its records, and for the images from the weights of its runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from experiments.figures.efficiency import draw_efficiency
from experiments.figures.parameters import draw_parameter_column
from experiments.figures.segmentations import draw_errors, draw_segmentations
from experiments.seeds import on_common_seeds
from experiments.segmentation.tables import (
    LABELS,
    LEVELS,
    PRESETS,
    components,
    has_pair,
    percents,
    runs_of,
    shown_group,
)
from tcpvit.compare.segmentation import PAIR, Runs, draw_pair
from tcpvit.compare.study import Places, Record
from tcpvit.data import IGNORE, Batches
from tcpvit.figures.style import save_figure
from tcpvit.inference import load_model
from tcpvit.training.build import load_splits
from tcpvit.training.metrics import image_mious

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 5  # images
EFFICIENCY = {"seg_efficiency": "whole", "seg_efficiency_subset": "subset"}  # over the seeds that all models have
PHOTOGRAPHS = ("seg_visual", "seg_errors")  # which no drawing format keeps small


def draw_all(places: Places, records: Sequence[Record]) -> list[Path]:
    """Write every figure that there are numbers for: drawings as SVG, photographs as WebP."""
    figures = {"seg_params": _draw_parameters()}
    for name, group in EFFICIENCY.items():
        runs = on_common_seeds(runs_of(records, group))
        if has_pair(runs):
            figures[name] = _draw_efficiency(runs)
    if shown := shown_group(records):
        runs = runs_of(records, shown)
        figures |= {f"seg_{name}": figure for name, figure in draw_pair(runs).items()}
        figures |= _draw_images([places.runs / runs[name][0]["key"] for name in PAIR])
    return [
        path
        for name, figure in figures.items()
        for path in save_figure(figure, places.pages / name, ["webp" if name in PHOTOGRAPHS else "svg"])
    ]


def _draw_parameters() -> Figure:
    """The parameters of every model by component."""
    leaves = {part: part.replace(" and", "\nand") for part in LEVELS if part not in ("total", "backbone")}
    parts = {
        label: {name: components(PRESETS[model])[part] for part, name in leaves.items()}
        for model, label in LABELS.items()
    }
    return draw_parameter_column(parts)


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
