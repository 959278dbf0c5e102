"""Files of volumes or clips as a set for prediction: read when fetched, bad ones named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tcpvit.data.image_set import Batch, Images


@dataclass(frozen=True, eq=False)
class VolumeFiles(Images):
    """Files without labels, or with the files of their masks; `read` makes (C, T, H, W) of one.

    `read_mask` makes (T, H, W) of the file of a mask and of its volume.
    """

    unit: ClassVar[str] = "volumes"

    files: tuple[str, ...]
    read: Callable[[str], NDArray[Any]]
    shape: tuple[int, ...]  # (C, T, H, W)
    dtype: torch.dtype = torch.uint8
    targets: tuple[str, ...] = ()  # the masks, if there are any
    read_mask: Callable[[str, str], NDArray[Any]] | None = None

    def __len__(self) -> int:
        return len(self.files)

    @property
    def labels(self) -> Tensor:
        """Not known."""
        return torch.zeros(len(self), dtype=torch.int64)

    @property
    def image_shape(self) -> tuple[int, ...]:
        """(C, T, H, W)."""
        return self.shape

    def subset(self, rows: Tensor) -> VolumeFiles:
        """The files at `rows`."""
        files, targets = (tuple(some[i] for i in rows.tolist()) if some else () for some in (self.files, self.targets))
        return replace(self, files=files, targets=targets, indices=self.indices[rows])

    def fetch(self, rows: Tensor, crops: Tensor | None = None) -> Batch:
        """Read the files at `rows`; a bad one is left out and named."""
        images, masks, kept, bad = [], [], [], []
        for position, row in enumerate(rows.tolist()):
            try:
                voxels = self._read(self.files[row])
                if self.targets and self.read_mask is not None:
                    masks.append(self.read_mask(self.targets[row], self.files[row]))
                images.append(voxels)
                kept.append(position)
            except (OSError, ValueError) as error:
                bad.append(str(error))
        stacked = torch.from_numpy(np.stack(images)) if images else torch.empty(0, *self.shape, dtype=self.dtype)
        targets = torch.from_numpy(np.stack(masks)) if masks else torch.zeros(len(images), dtype=torch.int64)
        return Batch(stacked, targets, torch.tensor(kept) if bad else None, tuple(bad))

    def _read(self, file: str) -> NDArray[Any]:
        return as_trained(self.read(file), file, self.shape[0], self.dtype)


def as_trained(voxels: NDArray[Any], file: str | Path, channels: int, dtype: torch.dtype) -> NDArray[Any]:
    """Voxels (C, T, H, W) in the type of the training volumes, on whose scale the model's mean and deviation are."""
    if voxels.shape[0] != channels:
        raise ValueError(f"{file} has {voxels.shape[0]} channels, where {channels} are expected")
    name = str(dtype).removeprefix("torch.")
    if str(voxels.dtype) != name and name != "float32":
        raise ValueError(
            f"{file} holds {voxels.dtype}, where {name} is expected; convert it as the training volumes were"
        )
    return voxels.astype(name, copy=False)
