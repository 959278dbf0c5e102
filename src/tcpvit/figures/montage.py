"""Slices of a volume, or frames of a clip, as one image."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpvit.figures.masks import overlay

GAP = 2  # pixels between slices
SMALLEST = 96  # pixels: smaller slices are enlarged pixel by pixel


def montage(voxels: NDArray[Any], mask: NDArray[Any] | None = None, most: int = 16) -> NDArray[np.uint8]:
    """Evenly chosen slices of (C, T, H, W) in rows, (H', W', 3), with the classes of a mask (T, H, W) tinted.

    >>> montage(np.zeros((1, 9, 10, 20), dtype=np.uint8), most=4).shape
    (102, 202, 3)
    """
    depth = voxels.shape[1]
    count = min(most, depth)
    chosen = [int((i + 0.5) * depth / count) for i in range(count)]
    colours = _as_colour(voxels[:, chosen])  # (n, H, W, 3)
    if mask is not None:
        colours = np.stack([overlay(c, mask[t], edges=True) for c, t in zip(colours, chosen, strict=True)])
    times = max(1, math.ceil(SMALLEST / max(colours.shape[1:3])))
    colours = colours.repeat(times, 1).repeat(times, 2)
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    height, width = (side + GAP for side in colours.shape[1:3])
    sheet = np.full((rows * height - GAP, columns * width - GAP, 3), 255, dtype=np.uint8)
    for i, image in enumerate(colours):
        y, x = (i // columns) * height, (i % columns) * width
        sheet[y : y + height - GAP, x : x + width - GAP] = image
    return sheet


def _as_colour(voxels: NDArray[Any]) -> NDArray[np.uint8]:
    """(C, n, H, W) -> (n, H, W, 3): three channels as colours, else the first as grey, between its extremes."""
    shown = voxels if len(voxels) == 3 else np.repeat(voxels[:1], 3, 0)
    if shown.dtype != np.uint8:
        low, high = float(shown.min()), float(shown.max())
        shown = ((shown - low) * (255 / max(high - low, 1e-12))).astype(np.uint8)
    return np.ascontiguousarray(shown.transpose(1, 2, 3, 0))


def caption_bar(text: str, width: int, height: int = 36) -> NDArray[np.uint8]:
    """A white bar, (height, width, 3), with a text in it, its letters in fonts that have them."""
    from tcpvit.figures.style import house_style
    from tcpvit.fonts import letters_for

    letters = letters_for([text])
    with house_style(letters.families) as Figure:
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        figure = Figure(figsize=(width / 100, height / 100), dpi=100)
        figure.text(
            0.5, 0.5, letters.shortened(text, width // 9), ha="center", va="center", fontsize=9, parse_math=False
        )
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        return np.asarray(canvas.buffer_rgba())[:, :, :3].copy()
