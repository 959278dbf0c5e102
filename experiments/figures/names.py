"""Names beside the points of a panel, where they cover the fewest other names, markers and lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

MARK = 3.5  # points of the page around the middle of a marker that a name leaves free
# Where a name begins (right of its marker), ends (left of it) or has its middle, and its base; in points of the page.
OFFSETS = (5, -2), (-5, -2), (0, -10), (0, 5), (4, 3), (-4, 3), (4, -8), (-4, -8)
ALIGN = {1: "left", 0: "center", -1: "right"}  # by the sign of an offset
Place = tuple[float, float]


def write_names(
    panel: Any, named: Mapping[str, Place], points: ArrayLike, line: ArrayLike, *, size: float = 6.5
) -> None:
    """Write names at their places, clear of points and of the line through some corners (data coordinates).

    The figure has to be laid out before (`figure.draw_without_rendering()`).
    """

    def on_page(places: ArrayLike) -> NDArray[np.float64]:  # (n, 2), in points of the page
        return panel.transData.transform(places) * 72 / panel.figure.dpi

    marks = on_page(points)
    taken = [np.concatenate([marks - MARK, marks + MARK], 1), np.tile(_along(on_page(line)), 2)]
    ends = panel.bbox.x0 * 72 / panel.figure.dpi, panel.bbox.x1 * 72 / panel.figure.dpi

    def covered(box: NDArray[np.float64]) -> int:
        beyond = int(box[0] < ends[0]) + int(box[2] > ends[1])
        return beyond + sum(_overlaps(box, others) for others in taken)

    for name, place in named.items():
        boxes = {offset: _box(name, size, on_page(place), offset) for offset in OFFSETS}
        offset = min(boxes, key=lambda each: covered(boxes[each]))
        taken.append(boxes[offset][None])
        align = ALIGN[np.sign(offset[0])]
        panel.annotate(name, place, offset, textcoords="offset points", ha=align, fontsize=size)


def _box(name: str, size: float, place: NDArray[np.float64], offset: Place) -> NDArray[np.float64]:
    """Left, bottom, right and top of a name, about."""
    (x, y), wide = place + offset, 0.6 * size * len(name)
    left = x - wide * (1 - np.sign(offset[0])) / 2
    return np.array([left, y, left + wide, y + size])


def _along(corners: NDArray[np.float64]) -> NDArray[np.float64]:
    """Many points of the line through some corners (n, 2)."""
    steps = np.linspace(0, len(corners) - 1, 50 * len(corners))
    return np.stack([np.interp(steps, range(len(corners)), values) for values in corners.T], 1)


def _overlaps(box: NDArray[np.float64], others: NDArray[np.float64]) -> int:
    """How many of the boxes (n, 4) overlap that one.

    >>> _overlaps(np.array([0.0, 0, 2, 1]), np.array([[1.0, 0, 3, 1], [2.5, 0, 3, 1]]))
    1
    """
    return int(((box[:2] < others[:, 2:]) & (others[:, :2] < box[2:])).all(1).sum())
