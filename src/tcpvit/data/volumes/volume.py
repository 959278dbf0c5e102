"""A volume from a file: its voxels in one orientation, and what it takes to write a mask back into the file's own.

Axes are (C, T, H, W): depth from feet to head, rows from back to front, columns from left to right, where a file says
which way its patient lies (RAS, as NIfTI and DICOM do); else as they are stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpvit.data.scenes.raster import check_growth
from tcpvit.memory import check_memory

DEFLATE = 1100  # times: the most that gzip can compress
MOST_CHANNELS = 64


@dataclass(frozen=True)
class Volume:
    """Voxels (C, T, H, W) as uint8, uint16 or float32; `affine` leads from (x, y, z) of the file to millimetres."""

    voxels: NDArray[Any]
    affine: NDArray[np.float64] | None = None  # as the file has it, before it was turned


def as_pixels(values: NDArray[Any], path: Path) -> NDArray[Any]:
    """Values of a type that sets know: uint8 and uint16 as they are, all others as float32, which must be finite."""
    if values.dtype in (np.uint8, np.uint16):
        return np.array(values, order="C")  # a copy: a file that is mapped cannot be written to
    if values.dtype == bool:
        return np.ascontiguousarray(values).astype(np.uint8)
    if values.dtype.kind not in "iuf":
        raise ValueError(f"{path} holds values of type {values.dtype}; save plain numbers")
    numbers = np.array(values, dtype=np.float32, order="C")
    if not np.isfinite(numbers).all():
        raise ValueError(f"{path} holds NaN or infinity; replace them, as by the value of air")
    return numbers


def with_channels(array: NDArray[Any], path: Path) -> NDArray[Any]:
    """(T, H, W) or (C, T, H, W) as (C, T, H, W)."""
    found = array[None] if array.ndim == 3 else array
    if found.ndim != 4 or 0 in found.shape:
        raise ValueError(f"{path} has the shape {'×'.join(map(str, array.shape))}, a volume has T×H×W or C×T×H×W")
    if found.shape[0] > MOST_CHANNELS:
        raise ValueError(
            f"{path} has {found.shape[0]} channels (its shape is {'×'.join(map(str, array.shape))}); a volume has its "
            f"channels first, and at most {MOST_CHANNELS}: move the axis, as with numpy.moveaxis(a, -1, 0)"
        )
    return found


def check_announced(shape: tuple[int, ...], itemsize: int, stored: int, path: Path, *, compressed: bool) -> None:
    """What a header announces must lie in the file, and fit into the memory as float32 beside it."""
    if min(shape, default=0) < 1:
        raise ValueError(f"{path} announces the impossible shape {shape}")
    claimed = prod(shape) * itemsize
    if compressed:
        check_growth(claimed, stored, str(path), DEFLATE)
    elif claimed > stored:
        raise ValueError(f"{path} is cut short: its header announces {claimed:,} bytes, it has {stored:,}")
    check_memory(claimed + 8 * prod(shape), str(path), "cut or resample it into smaller volumes")
