"""Windows around labelled pixels as a set of images, so that everything that takes images takes scenes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from typing_extensions import Self

from tcpvit.data.image_set import Batch, Images, crop_boxes, resample
from tcpvit.data.scenes.scene import Scene
from tcpvit.data.scenes.splits import check_window
from tcpvit.data.scenes.windows import cut_windows


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
        """Of the bands in use, in nanometres."""
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
                f"numbers; fill them, mark their bands as bad, or take the label of the pixel away"
            )
        if crops is not None:
            windows = resample(windows, crop_boxes(crops, self.window, self.window), "bilinear")
        return Batch(windows, chosen.labels)

    def subset(self, rows: Tensor) -> Self:
        """The windows at `rows`."""
        return replace(self, indices=self.indices[torch.as_tensor(rows, dtype=torch.int64)])
