"""What every reader of a file returns, which array of a file is meant, and how much a file may grow in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tcpvit.data.scenes.scene import Colour, Georeference
from tcpvit.errors import did_you_mean

HARMLESS = 64 << 20  # bytes that may be allocated whatever the file's size
LARGEST_RATIO = 100  # of decompressed to stored bytes; label maps reach it, measured cubes stay below 10

Dims = int | tuple[int, ...]
CUBE, MAP = 3, 2  # dimensions of an image and of a label map
VOLUME = (3, 4)  # of a volume, without and with channels


@dataclass(frozen=True)
class Raster:
    """An array (H, W, B) or (H, W) from a file, and what the file says about it."""

    array: NDArray[Any]
    wavelengths: NDArray[np.float64] | None = None
    class_names: tuple[str, ...] = ()
    colours: tuple[Colour, ...] = ()
    bad_bands: NDArray[np.bool_] | None = None
    georeference: Georeference | None = None
    missing: NDArray[np.bool_] | None = None  # (H, W), True where a pixel has no data
    files: tuple[Path, ...] = ()  # that were read


class ArrayInfo(NamedTuple):
    """An array as a file announces it, before it is read."""

    shape: tuple[int, ...]
    kind: str  # the name of its type
    numeric: bool


def check_growth(claimed: int, stored: int, what: str, largest_ratio: int = LARGEST_RATIO) -> None:
    """Refuse to allocate `claimed` bytes for something that takes `stored` bytes in its file."""
    if claimed > max(HARMLESS, largest_ratio * stored):
        raise ValueError(
            f"{what} claims {claimed:,} bytes but is stored in {stored:,}: the file is damaged or made to fill the "
            "memory, and was not read"
        )


def choose_key(
    arrays: Mapping[str, ArrayInfo], path: Path, *, dims: Dims, key: str | None, size: tuple[int, int] | None = None
) -> str:
    """The array that is meant: `key`, or the only one with `dims` dimensions; of `size` where several have."""
    listed = _listed(arrays)
    if key is not None:
        if key not in arrays:
            raise ValueError(f"{path} has no array {key!r}{did_you_mean(key, arrays)}")
        if not _fits(arrays[key], dims):
            raise ValueError(f"{path}: {key!r} is not {_wanted(dims)}; the file holds {listed}")
        return key
    # MATLAB's numbers and vectors have two dimensions as well: they are no label maps unless asked for
    fitting = [name for name, info in arrays.items() if _fits(info, dims) and (dims != MAP or min(info.shape) > 1)]
    same_size = [name for name in fitting if arrays[name].shape[:2] == size]
    found = same_size if len(fitting) > 1 and same_size else fitting
    if len(found) == 1:
        return found[0]
    if not found:
        raise ValueError(f"{path} has no array that is {_wanted(dims)}: it holds {listed or 'nothing'}")
    several = _listed({name: arrays[name] for name in found})
    option = "key" if dims == CUBE else "labels_key"
    raise ValueError(
        f"{path} has {len(found)} arrays that could be {_wanted(dims)}: {several}; say which one with {option}=NAME"
    )


def _listed(arrays: Mapping[str, ArrayInfo]) -> str:
    return ", ".join(f"{name} {'×'.join(map(str, info.shape))} {info.kind}" for name, info in arrays.items())


def _fits(info: ArrayInfo, dims: Dims) -> bool:
    several = dims if isinstance(dims, tuple) else (dims,)
    return info.numeric and prod(info.shape) > 0 and len(info.shape) in several


def _wanted(dims: Dims) -> str:
    if dims == VOLUME:
        return "a volume of T×H×W or C×T×H×W"
    return "an image of rows × columns × bands" if dims == CUBE else "a label map of rows × columns"
