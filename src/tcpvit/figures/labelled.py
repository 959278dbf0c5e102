"""Images with what a model says about them: a sheet of many, or one with its likeliest labels as bars."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tcpvit.figures.style import BLUE, FAINT, house_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CELL, CAPTION, GAP = 0.95, 0.32, 0.08  # inches
PLAIN: dict[str, Any] = {"parse_math": False}  # files and classes may be called $_$
SMALL = 100  # pixels: smaller images are enlarged pixel by pixel


def draw_sheet(images: Sequence[Any], captions: Sequence[tuple[str, str]], *, columns: int = 8) -> Figure:
    """Images (H, W, 3) in rows, each under its caption: a line in bold and a small one.

    >>> import numpy
    >>> figure = draw_sheet([numpy.zeros((4, 6, 3), "uint8")] * 3, [("seven", "a.png")] * 3, columns=2)
    >>> len(figure.axes)
    3
    """
    if not images or len(images) != len(captions):
        raise ValueError(f"a sheet has a caption for each image, got {len(images)} and {len(captions)}")
    columns = min(columns, len(images))
    rows = math.ceil(len(images) / columns)
    width, height = columns * CELL + GAP, rows * (CELL + CAPTION)
    with house_style() as Figure:
        figure = Figure(figsize=(width, height))
        for i, (image, (first, second)) in enumerate(zip(images, captions, strict=True)):
            row, column = divmod(i, columns)
            left, bottom = column * CELL + GAP, height - (row + 1) * (CELL + CAPTION) + GAP
            side = CELL - GAP
            panel = figure.add_axes((left / width, bottom / height, side / width, side / height))
            panel.set_axis_off()
            _show(panel, image)
            middle = (left + side / 2) / width
            figure.text(middle, (bottom + side + 0.16) / height, first, ha="center", weight="bold", **PLAIN)
            below = (bottom + side + 0.04) / height
            figure.text(middle, below, _shortened(second, 18), ha="center", fontsize=5.5, **PLAIN)
        return figure


def draw_labelled(image: Any, labels: Sequence[str], probabilities: Sequence[float], title: str = "") -> Figure:
    """An image (H, W, 3) beside its likeliest labels, the first on top, with their probabilities as bars."""
    with house_style() as Figure:
        figure = Figure(figsize=(5.2, 2.4))
        left, right = figure.add_axes((0.02, 0.04, 0.44, 0.84)), figure.add_axes((0.51, 0.04, 0.45, 0.84))
        for panel in (left, right):
            panel.set_axis_off()
        _show(left, image)
        rows = range(len(labels))
        right.barh(rows, [1] * len(labels), 0.3, color=FAINT)
        right.barh(rows, probabilities, 0.3, color=BLUE)
        for row, label, probability in zip(rows, labels, probabilities, strict=True):
            right.text(0, row - 0.24, _shortened(label, 24), weight="normal" if row else "bold", **PLAIN)
            right.text(1, row - 0.24, f"{100 * probability:.1f} %", ha="right")
        right.set_xlim(0, 1)
        right.set_ylim(max(len(labels), 3) - 0.75, -0.6)
        figure.suptitle(_shortened(title, 60), fontsize=8, **PLAIN)
        return figure


def _show(panel: Any, image: Any) -> None:
    enlarged = max(image.shape[:2]) < SMALL
    panel.imshow(image, interpolation="nearest" if enlarged else "antialiased")


def _shortened(text: str, width: int) -> str:
    """The text, its middle left out if it is longer.

    >>> _shortened("holiday/2024/beach.jpeg", 13)
    'holida…h.jpeg'
    """
    half = (width - 1) // 2
    return text if len(text) <= width else f"{text[:half]}…{text[-half:]}"
