"""Images with what a model says about them: a sheet of many, or one with its likeliest labels as bars."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tcpvit.figures.style import BLUE, FAINT, house_style, show_image
from tcpvit.fonts import letters_for, shorten

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CELL, CAPTION, GAP = 0.95, 0.32, 0.08  # inches
PLAIN: dict[str, Any] = {"parse_math": False}  # files and classes may be called $_$
WIDEST = 36  # letters of a caption
SMALL_LETTER = 0.048  # inches: the width of a small one


def draw_sheet(images: Sequence[Any], captions: Sequence[tuple[str, str]], *, columns: int = 8) -> Figure:
    """Images (H, W, 3) in rows, each under its caption: a line in bold and a small one.

    Long captions have wider cells, and fewer of them in a row.

    >>> import numpy
    >>> figure = draw_sheet([numpy.zeros((4, 6, 3), "uint8")] * 3, [("seven", "a.png")] * 3, columns=2)
    >>> len(figure.axes)
    3
    """
    if not images or len(images) != len(captions):
        raise ValueError(f"a sheet has a caption for each image, got {len(images)} and {len(captions)}")
    letters = letters_for(text for caption in captions for text in caption)
    with house_style(letters.families) as Figure:
        bold = [letters.shortened(first, WIDEST) for first, _ in captions]
        small = [letters.shown(second) for _, second in captions]
        probe = Figure()
        widest = max(_inches(probe, text, weight="bold") for text in bold)
        cell = max(CELL, widest + 2 * GAP)
        columns = max(1, min(columns, len(images), int(columns * CELL / cell)))
        rows = math.ceil(len(images) / columns)
        width, height = columns * cell + GAP, rows * (CELL + CAPTION)
        figure = Figure(figsize=(width, height))
        side = CELL - GAP
        for i, image in enumerate(images):
            row, column = divmod(i, columns)
            middle, bottom = (column + 0.5) * cell + GAP / 2, height - (row + 1) * (CELL + CAPTION) + GAP
            panel = figure.add_axes(((middle - side / 2) / width, bottom / height, side / width, side / height))
            panel.set_axis_off()
            show_image(panel, image)
            x, y = middle / width, bottom + side
            figure.text(x, (y + 0.16) / height, bold[i], ha="center", weight="bold", **PLAIN)
            file = shorten(small[i], int((cell - GAP) / SMALL_LETTER))
            figure.text(x, (y + 0.04) / height, file, ha="center", fontsize=5.5, **PLAIN)
        return figure


def draw_labelled(image: Any, labels: Sequence[str], probabilities: Sequence[float], title: str = "") -> Figure:
    """An image (H, W, 3) beside its likeliest labels, the first on top, with their probabilities as bars."""
    letters = letters_for([*labels, title])
    with house_style(letters.families) as Figure:
        figure = Figure(figsize=(5.2, 2.4))
        left, right = figure.add_axes((0.02, 0.04, 0.44, 0.84)), figure.add_axes((0.51, 0.04, 0.45, 0.84))
        for panel in (left, right):
            panel.set_axis_off()
        show_image(left, image)
        rows = range(len(labels))
        right.barh(rows, [1] * len(labels), 0.3, color=FAINT)
        right.barh(rows, probabilities, 0.3, color=BLUE)
        for row, label, probability in zip(rows, labels, probabilities, strict=True):
            right.text(0, row - 0.24, letters.shortened(label, 24), weight="normal" if row else "bold", **PLAIN)
            right.text(1, row - 0.24, f"{100 * probability:.1f} %", ha="right")
        right.set_xlim(0, 1)
        right.set_ylim(max(len(labels), 3) - 0.75, -0.6)
        figure.suptitle(letters.shortened(title, 60), fontsize=8, **PLAIN)
        return figure


def _inches(figure: Figure, text: str, **style: Any) -> float:
    """How wide a text is drawn."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    drawn = figure.text(0, 0, text, **style, **PLAIN)
    extent = drawn.get_window_extent(FigureCanvasAgg(figure).get_renderer())
    drawn.remove()
    return extent.width / figure.dpi
