"""Windows around pixels, cut from the scene when they are needed: some of them, or the whole scene tile by tile.

The scene is never copied or padded as a whole. At its border windows are reflected, without repeating the border pixel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tcpvit.data.scenes.scene import Scene
from tcpvit.data.scenes.splits import check_window

ROWS, COLUMNS = 16, 256  # of a tile
Integers = NDArray[np.int64]


class SceneWindows(NamedTuple):
    """A batch of the whole scene: row and column of each pixel (n, 2), and its window (n, channels, w, w)."""

    pixels: Integers
    windows: Tensor


def cut_windows(scene: Scene, pixels: Integers, window: int) -> Tensor:
    """Windows (n, good bands, w, w), float32, as stored, around pixels (n, 2)."""
    check_window(window)
    radius = window // 2
    offsets = np.arange(window) - radius
    rows = reflect(pixels[:, :1] + offsets, scene.shape[0])  # (n, w)
    columns = reflect(pixels[:, 1:] + offsets, scene.shape[1])
    values = _good(scene.data[rows[:, :, None], columns[:, None]], scene)  # (n, w, w, B)
    return torch.from_numpy(np.ascontiguousarray(values.transpose(0, 3, 1, 2), np.float32))


def reflect(index: Integers, size: int) -> Integers:
    """Indices inside [0, size) for any index: -1 is 1, size is size - 2, and so on back and forth."""
    if size == 1:
        return np.zeros_like(index)
    index = np.abs(index) % (2 * size - 2)
    return np.minimum(index, 2 * size - 2 - index)


def scene_windows(
    scene: Scene,
    window: int,
    batch_size: int,
    prepare: Callable[[Tensor], Tensor] | None = None,
    *,
    rows: int = ROWS,
    columns: int = COLUMNS,
) -> Iterator[SceneWindows]:
    """The windows of all pixels, tile by tile of `rows` × `columns`: memory does not depend on the size of the scene.

    Each tile is read once with its margin, (1, good bands, h, w); `prepare` may change its channels, as normalisation
    does, once for all windows that share a pixel. Batches of `batch_size` windows are cut from what it returns.
    """
    check_window(window)
    if min(batch_size, rows, columns) < 1:
        raise ValueError(f"batch_size, rows and columns should be at least 1, got {batch_size}, {rows}, {columns}")
    radius = window // 2
    height, width, _ = scene.shape
    for top in range(0, height, rows):
        for left in range(0, width, columns):
            bottom, right = min(top + rows, height), min(left + columns, width)
            tile = _tile(scene, top - radius, bottom + radius, left - radius, right + radius)
            tile = tile if prepare is None else prepare(tile)
            views = tile[0].unfold(1, window, 1).unfold(2, window, 1).movedim(0, 2)  # (rows, columns, C, w, w)
            places = np.indices((bottom - top, right - left)).reshape(2, -1).T
            for first in range(0, len(places), batch_size):
                some = places[first : first + batch_size]
                row, column = torch.from_numpy(np.ascontiguousarray(some.T)).to(tile.device)
                yield SceneWindows(some + np.array([top, left]), views[row, column])


def _tile(scene: Scene, top: int, bottom: int, left: int, right: int) -> Tensor:
    """Rows [top, bottom) and columns [left, right) of the scene, reflected where they lie outside: (1, bands, h, w)."""
    rows = reflect(np.arange(top, bottom), scene.shape[0])
    columns = reflect(np.arange(left, right), scene.shape[1])
    first_row, first_column = rows.min(), columns.min()
    inside = np.asarray(scene.data[first_row : rows.max() + 1, first_column : columns.max() + 1])
    values = _good(inside, scene)[np.ix_(rows - first_row, columns - first_column)]
    return torch.from_numpy(np.ascontiguousarray(values.transpose(2, 0, 1), np.float32))[None]


def _good(values: NDArray[np.generic], scene: Scene) -> NDArray[np.generic]:
    """The values (..., bands) of the bands that are not bad."""
    return values if scene.bad_bands is None else values[..., scene.good_bands]
