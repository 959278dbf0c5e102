"""Windows around pixels, cut from the scene when they are needed: batches to train on, and the whole scene in strips.

The scene is never copied or padded as a whole. At its border windows are reflected, without repeating the border pixel.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tcpvit.data.scenes.scene import Scene
from tcpvit.data.scenes.splits import Part, SceneSplit, check_window
from tcpvit.data.scenes.statistics import SceneStatistics

Integers = NDArray[np.int64]

# The eight symmetries of a square: (row, column) of the window -> offsets in the scene.
SYMMETRIES = np.array(
    [[[s, 0], [0, t]] for s in (1, -1) for t in (1, -1)] + [[[0, s], [t, 0]] for s in (1, -1) for t in (1, -1)]
)


class SceneWindows(NamedTuple):
    """A batch of the whole scene: row and column of each pixel (n, 2), and its window (n, channels, w, w)."""

    pixels: Integers
    windows: Tensor


def cut_windows(
    scene: Scene,
    pixels: Integers,
    window: int,
    statistics: SceneStatistics | None = None,
    symmetries: Integers | None = None,
) -> Tensor:
    """Windows (n, channels, w, w), float32, around pixels (n, 2); each turned by its one of the eight symmetries.

    With `statistics` the bands are standardised (or projected), else they are as stored.
    """
    check_window(window)
    radius = window // 2
    offsets = np.indices((window, window)) - radius  # (2, w, w)
    if symmetries is None:
        places = pixels[:, :, None, None] + offsets  # (n, 2, w, w)
    else:
        places = pixels[:, :, None, None] + np.einsum("nab,bij->naij", SYMMETRIES[symmetries], offsets)
    rows, columns = reflect(places[:, 0], scene.shape[0]), reflect(places[:, 1], scene.shape[1])
    values = scene.data[rows, columns]  # (n, w, w, B)
    values = values.astype(np.float32) if statistics is None else statistics.apply(values)
    return torch.from_numpy(np.ascontiguousarray(values.transpose(0, 3, 1, 2)))


def reflect(index: Integers, size: int) -> Integers:
    """Indices inside [0, size) for any index: -1 is 1, size is size - 2, and so on back and forth."""
    if size == 1:
        return np.zeros_like(index)
    index = np.abs(index) % (2 * size - 2)
    return np.minimum(index, 2 * size - 2 - index)


class SceneBatches:
    """Iterate over (windows, targets) of a part of a split: float32 (n, channels, w, w), and classes from 0, int64.

    Every batch is a function of the seed, the epoch and its number; `set_epoch` chooses where to go on. `augment`
    turns and mirrors each window by one of the eight symmetries of the square; `noise` is the standard deviation of
    Gaussian noise, in units of each standardised band.
    """

    def __init__(
        self,
        scene: Scene,
        split: SceneSplit,
        part: Part,
        batch_size: int,
        *,
        statistics: SceneStatistics,
        window: int | None = None,
        shuffle: bool = False,
        augment: bool = False,
        noise: float = 0.0,
        seed: int = 0,
    ):
        labels = scene.require_labels()
        split.check_labels(labels)
        self.window = split.window if window is None else window
        check_window(self.window)
        if self.window > split.window:
            raise ValueError(f"the split keeps windows of {split.window} pixels apart, {self.window} is wider")
        if batch_size < 1 or seed < 0 or not noise >= 0:
            raise ValueError(
                f"batches need batch_size ≥ 1, seed ≥ 0 and noise ≥ 0, got {batch_size}, {seed} and {noise}"
            )
        self.pixels = split.pixels(part)
        if not len(self.pixels):
            raise ValueError(f"the split has no {part} pixels")
        self.targets = torch.from_numpy(labels[tuple(self.pixels.T)].astype(np.int64) - 1)
        self.scene, self.statistics, self.batch_size = scene, statistics, batch_size
        self.shuffle, self.augment, self.noise, self.seed = shuffle, augment, noise, seed
        self.epoch, self.start = 0, 0

    def __len__(self) -> int:
        """Batches in an epoch."""
        return -(-len(self.pixels) // self.batch_size)

    def set_epoch(self, epoch: int, start: int = 0) -> None:
        """Choose the epoch to iterate over, from batch `start` on."""
        self.epoch, self.start = epoch, start

    def order(self) -> Integers:
        """The pixels of the epoch in order."""
        if not self.shuffle:
            return np.arange(len(self.pixels))
        return np.random.default_rng((self.seed, self.epoch)).permutation(len(self.pixels))

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = self.order()
        for number in range(self.start, len(self)):
            chosen = order[number * self.batch_size : (number + 1) * self.batch_size]
            random = np.random.default_rng((self.seed, self.epoch, 1 + number))
            turns = random.integers(8, size=len(chosen)) if self.augment else None
            windows = cut_windows(self.scene, self.pixels[chosen], self.window, self.statistics, turns)
            if self.noise:
                windows += self.noise * torch.from_numpy(random.standard_normal(windows.shape, np.float32))
            yield windows, self.targets[torch.from_numpy(chosen)]


def scene_windows(
    scene: Scene,
    window: int,
    batch_size: int,
    statistics: SceneStatistics | None = None,
    *,
    rows: int = 16,
    columns: int = 256,
) -> Iterator[SceneWindows]:
    """The windows of all pixels, tile by tile of `rows` × `columns`: memory does not depend on the size of the scene.

    Each tile is read and standardised once with its margin; batches of `batch_size` windows are cut from it.
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
            tile = tile.astype(np.float32) if statistics is None else statistics.apply(tile)
            views = np.lib.stride_tricks.sliding_window_view(tile, (window, window), (0, 1))  # (rows, columns, C, w, w)
            places = np.indices((bottom - top, right - left)).reshape(2, -1).T
            for first in range(0, len(places), batch_size):
                some = places[first : first + batch_size]
                windows = np.ascontiguousarray(views[some[:, 0], some[:, 1]])
                yield SceneWindows(some + np.array([top, left]), torch.from_numpy(windows))


def _tile(scene: Scene, top: int, bottom: int, left: int, right: int) -> NDArray[np.generic]:
    """Rows [top, bottom) and columns [left, right) of the scene, reflected where they lie outside."""
    rows = reflect(np.arange(top, bottom), scene.shape[0])
    columns = reflect(np.arange(left, right), scene.shape[1])
    first_row, first_column = rows.min(), columns.min()
    inside = scene.data[first_row : rows.max() + 1, first_column : columns.max() + 1]
    return np.asarray(inside)[np.ix_(rows - first_row, columns - first_column)]
