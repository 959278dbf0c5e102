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

from tcpvit.data.image_set import Batch, Example, Images


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
        """Zeros, because the labels are not known."""
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
        return Batch.of(map(self._read, rows.tolist()), self.shape, self.dtype)

    def _read(self, row: int) -> Example | str:
        file = self.files[row]
        try:
            voxels = as_trained(self.read(file), file, self.shape[0], self.dtype)
            if self.targets and self.read_mask is not None:
                return voxels, self.read_mask(self.targets[row], file)
            return voxels, np.array(0)
        except (OSError, ValueError) as error:
            return str(error)


def as_trained(voxels: NDArray[Any], file: str | Path, channels: int, dtype: torch.dtype) -> NDArray[Any]:
    """Voxels (C, T, H, W) in the type of the training volumes, on whose scale the model's mean and deviation are."""
    if voxels.shape[0] != channels:
        shape = "×".join(map(str, voxels.shape))
        raise ValueError(
            f"{file} has {voxels.shape[0]} channels, where {channels} are expected; channels come first, in {shape}"
        )
    name = str(dtype).removeprefix("torch.")
    if str(voxels.dtype) != name and name != "float32":
        raise ValueError(
            f"{file} holds {voxels.dtype}, where {name} is expected; convert it as the training volumes were"
        )
    return voxels.astype(name, copy=False)
