"""Windows around pixels, cut from the scene when they are needed: some of them, or the whole scene tile by tile.

`WindowSet` makes those around labelled pixels a set of images, so that everything that takes images takes scenes.

The scene is never copied or padded as a whole. At its border windows are reflected, without repeating the border pixel;
a pixel without data is replaced by the one in the centre of its window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import Self

from tcpvit.data.image_set import Batch, Images, crop_boxes, resample
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
    around = _around(pixels, window, scene)
    values = _good(scene.data[around], scene)  # (n, w, w, B)
    windows = torch.from_numpy(np.ascontiguousarray(values.transpose(0, 3, 1, 2), np.float32))
    return windows if scene.missing is None else _filled(windows, scene.missing[around])


def _around(pixels: Integers, window: int, scene: Scene) -> tuple[Integers, Integers]:
    """Rows (n, w, 1) and columns (n, 1, w) of the windows around pixels (n, 2)."""
    offsets = np.arange(window) - window // 2
    rows, columns = (reflect(pixels[:, axis, None] + offsets, scene.shape[axis]) for axis in (0, 1))
    return rows[:, :, None], columns[:, None]


def _filled(windows: Tensor, missing: NDArray[np.bool_]) -> Tensor:
    """Windows (n, C, w, w) with their centre wherever `missing` (n, w, w) says that there is no data."""
    centre = windows.shape[-1] // 2
    lacking = torch.from_numpy(missing).to(windows.device)[:, None]
    return torch.where(lacking, windows[:, :, centre, centre, None, None], windows)


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
                windows, pixels = views[row, column], some + np.array([top, left])
                if scene.missing is not None:
                    windows = _filled(windows, scene.missing[_around(pixels, window, scene)])
                yield SceneWindows(pixels, windows)


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


@dataclass(frozen=True, eq=False)
class WindowSet(Images):
    """A window of the scene around each of some labelled pixels, with the class of the pixel.

    `indices` are the numbers of the pixels, row · width + column. Windows are cut when they are fetched.
    """

    unit: ClassVar[str] = "windows"
    metric: ClassVar[str | None] = "oa"

    scene: Scene
    window: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_window(self.window)
        if not (self.scene.require_labels().flat[self.indices.numpy()] > 0).all():
            raise ValueError(f"some pixels of {self.source} have no label")

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def dtype(self) -> torch.dtype:
        """Values are taken as they are, whatever their type in the file."""
        return torch.float32

    @property
    def labels(self) -> Tensor:
        """(N,) classes from 0."""
        labels = self.scene.require_labels().flat[self.indices.numpy()]
        return torch.from_numpy(labels.astype(np.int64) - 1)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Bands in use, and the window twice."""
        return len(self.scene.good_bands), self.window, self.window

    @property
    def wavelengths(self) -> tuple[float, ...] | None:
        """The wavelengths of the bands in use, in nanometres."""
        known = self.scene.wavelengths
        return None if known is None else tuple(known[self.scene.good_bands].tolist())

    @property
    def pixels(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Row and column of each pixel, (N, 2)."""
        return np.stack(np.divmod(self.indices.numpy(), self.scene.shape[1]), 1)

    def fetch(self, rows: Tensor, crops: Tensor | None = None) -> Batch:
        """The windows at `rows`; with `crops` a part of each, enlarged to the whole."""
        chosen = replace(self, indices=self.indices[rows])
        windows = cut_windows(self.scene, chosen.pixels, self.window)
        if self.scene.data.dtype.kind == "f" and not windows.isfinite().all():
            bad = int((~windows.flatten(1).isfinite().all(1)).nonzero()[0])
            row, column = chosen.pixels[bad].tolist()
            raise ValueError(
                f"the window around row {row}, column {column} of {self.scene.name} holds values that are no finite "
                f"numbers; fill them, declare them as no data, or mark their bands as bad"
            )
        if crops is not None:
            windows = resample(windows, crop_boxes(crops, self.window, self.window), "bilinear")
        return Batch(windows, chosen.labels)

    def subset(self, rows: Tensor) -> Self:
        """The windows at `rows`."""
        return replace(self, indices=self.indices[torch.as_tensor(rows, dtype=torch.int64)])
