"""Segmentations beside their images: what was found, and where it is wrong (paper, figs. seg_visual, seg_errors).

Colours differ in lightness too, and a line runs around what is found, so that they can be told apart without colour.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tcpvit.figures.masks import ERRORS, IGNORED, UNKNOWN, overlay, rgb
from tcpvit.figures.style import COLUMN_WIDTH, GREEN, house_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GAP, CAPTION, TITLE, LEGEND = 0.03, 0.12, 0.2, 0.22  # inches; a caption stands below its panel

Masks = Sequence[np.ndarray]  # (H, W) class ids, 255 where the truth ignores
Captions = Mapping[str, Sequence[str]]  # of each model, one for each image


def draw_segmentations(
    images: Sequence[np.ndarray], truths: Masks, predictions: Mapping[str, Masks], captions: Captions
) -> Figure:
    """A row for each image (H, W, 3): itself, the truth, and what each model found; class 1 is shown in green."""
    with house_style() as Figure:
        titles = ["input", "truth", *predictions]
        figure, panels = _grid(Figure, titles, len(images), LEGEND)
        for i, (image, truth, row) in enumerate(zip(images, truths, panels, strict=True)):
            row[0].imshow(image)
            _draw_overlay(row[1], image, truth)
            for panel, (model, masks) in zip(row[2:], predictions.items(), strict=True):
                _draw_overlay(panel, image, masks[i])
                _write_caption(panel, captions[model][i])
        _draw_legend(figure, {"pet": GREEN, "ignored": UNKNOWN})
        return figure


def draw_errors(
    images: Sequence[np.ndarray], truths: Masks, predictions: Mapping[str, Masks], captions: Captions
) -> Figure:
    """A row for each image (H, W, 3): itself, and a map of each model's errors."""
    with house_style() as Figure:
        figure, panels = _grid(Figure, ["input", *predictions], len(images), LEGEND)
        for i, (image, truth, row) in enumerate(zip(images, truths, panels, strict=True)):
            row[0].imshow(image)
            for panel, (model, masks) in zip(row[1:], predictions.items(), strict=True):
                panel.imshow(error_map(truth, masks[i]), interpolation="nearest")
                _write_caption(panel, captions[model][i])
        _draw_legend(figure, ERRORS)
        return figure


def error_map(truth: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """(H, W, 3) uint8: light green where right, dark red where wrong, grey where the truth is ignored.

    >>> error_map(np.array([[0, 1, 255]]), np.array([[0, 0, 1]])).tolist()
    [[[181, 227, 191], [178, 24, 43], [154, 154, 154]]]
    """
    kinds = np.where(truth == IGNORED, 2, (truth != predicted).astype(int))
    return np.array([rgb(color) for color in ERRORS.values()], dtype=np.uint8)[kinds]


def _grid(Figure: Any, titles: Sequence[str], rows: int, below: float) -> tuple[Figure, list[list[Any]]]:
    """A figure of one column's width with square panels, a title above each column and room below."""
    if rows == 0:
        raise ValueError("a figure of segmentations needs at least one image, got none")
    width, columns = COLUMN_WIDTH, len(titles)
    side = (width - GAP * (columns - 1)) / columns
    height = TITLE + rows * (side + CAPTION + GAP) + below
    figure = Figure(figsize=(width, height))
    panels = []
    for i in range(rows):
        bottom = height - TITLE - (i + 1) * side - i * (CAPTION + GAP)
        places = [(k * (side + GAP) / width, bottom / height, side / width, side / height) for k in range(columns)]
        panels.append([figure.add_axes(place) for place in places])
    for panel, title in zip(panels[0], titles, strict=True):
        panel.set_title(title, pad=3, fontsize=8)
    for row in panels:
        for panel in row:
            panel.set_axis_off()
    return figure, panels


def _draw_overlay(panel: Any, image: np.ndarray, mask: np.ndarray) -> None:
    panel.imshow(overlay(image, mask))
    found = mask == 1
    if found.any() and not found.all():
        panel.contour(found, levels=[0.5], colors="white", linewidths=0.7)


def _write_caption(panel: Any, text: str) -> None:
    panel.text(0.5, -0.02, text, transform=panel.transAxes, fontsize=6.5, ha="center", va="top")


def _draw_legend(figure: Figure, colors: Mapping[str, str]) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=color, label=label) for label, color in colors.items()]
    figure.legend(handles=handles, loc="lower center", ncols=len(handles), handlelength=1.0, borderaxespad=0.1)
