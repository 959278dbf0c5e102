"""Volumes and clips as sets of images of three axes: in memory, (N, C, T, H, W), or as files, read when fetched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import Self

from tcpvit.data.image_set import Batch, Images, ImageSet
from tcpvit.data.images import Decoded, collect


@dataclass(frozen=True, eq=False)
class Volumes(ImageSet):
    """Volumes with a label each, or with masks of their shape."""

    unit: ClassVar[str] = "volumes"


@dataclass(frozen=True, eq=False)
class RankedVolumes(Volumes):
    """Volumes of classes of unequal size, where accuracy says little: the area under the ROC curve decides."""

    metric: ClassVar[str | None] = "auc"


@dataclass(frozen=True, eq=False)
class Clips(ImageSet):
    """Clips with a label each; the first of the three axes is the time."""

    unit: ClassVar[str] = "clips"


@dataclass(frozen=True, eq=False)
class VolumeFiles(Images):
    """Files without labels; `read` makes (C, T, H, W) of one."""

    unit: ClassVar[str] = "volumes"

    files: tuple[str, ...]
    read: Callable[[str], NDArray[Any]]
    shape: tuple[int, ...]  # (C, T, H, W)
    dtype: torch.dtype = torch.uint8

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

    def subset(self, rows: Tensor) -> Self:
        """The files at `rows`."""
        return replace(self, files=tuple(self.files[i] for i in rows.tolist()), indices=self.indices[rows])

    def fetch(self, rows: Tensor, crops: Tensor | None = None) -> Batch:
        """Read the files at `rows`; a bad one is left out and named."""
        return collect((self._decode(self.files[row]) for row in rows.tolist()), self.shape, self.dtype)

    def _decode(self, file: str) -> Decoded:
        try:
            return as_trained(self.read(file), file, self.shape[0], self.dtype), np.zeros((), dtype=np.int64)
        except (OSError, ValueError) as error:
            return str(error)


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
