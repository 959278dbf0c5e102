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

    def subset(self, rows: Tensor) -> VolumeFiles:
        """The files at `rows`."""
        return replace(self, files=tuple(self.files[i] for i in rows.tolist()), indices=self.indices[rows])

    def fetch(self, rows: Tensor, crops: Tensor | None = None) -> Batch:
        """Read the files at `rows`; a bad one is left out and named."""
        images, kept, bad = [], [], []
        for position, row in enumerate(rows.tolist()):
            try:
                images.append(self._read(self.files[row]))
                kept.append(position)
            except (OSError, ValueError) as error:
                bad.append(str(error))
        stacked = torch.from_numpy(np.stack(images)) if images else torch.empty(0, *self.shape, dtype=self.dtype)
        return Batch(
            stacked, torch.zeros(len(images), dtype=torch.int64), torch.tensor(kept) if bad else None, tuple(bad)
        )

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
