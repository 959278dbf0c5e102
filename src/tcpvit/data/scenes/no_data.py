"""Pixels without data: a file may name the value that stands where nothing was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK = 1 << 24  # values looked at together

Mask = NDArray[np.bool_]


def parse_no_data(text: str, path: Path, name: str) -> float:
    """The number that stands for no data; `name` is what the format calls it.

    >>> parse_no_data(" -9999 ", Path("cube.hdr"), "data ignore value")
    -9999.0
    """
    try:
        return float(text.strip(" \0"))
    except ValueError:
        raise ValueError(f"{path}: {name!r} should be a number, got {text[:40]!r}") from None


def find_missing(array: NDArray[Any], no_data: float, bad_bands: Mask | None = None) -> Mask | None:
    """(H, W), True where a pixel of (H, W, B) or (H, W) has no data in one of its good bands; None if all have.

    The array is read block by block, as it may be larger than the memory.

    >>> find_missing(np.array([[[1, 2], [-1, 3]]]), -1.0)
    array([[False,  True]])
    """
    missing = np.zeros(array.shape[:2], np.bool_)
    rows = max(1, BLOCK * len(array) // array.size)
    for top in range(0, len(array), rows):
        block = np.asarray(array[top : top + rows])
        block = block if bad_bands is None else block[..., ~bad_bands]
        lacking = np.isnan(block) if np.isnan(no_data) else block == no_data
        missing[top : top + rows] = lacking if array.ndim == 2 else lacking.any(-1)
    return missing if missing.any() else None
