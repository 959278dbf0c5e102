"""NumPy files: .npy mapped into memory, arrays of .npz read after a check of their size; pickles are refused."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np

from tcpvit.data.scenes.raster import LARGEST_RATIO, ArrayInfo, Dims, Raster, check_growth, choose_key
from tcpvit.data.scenes.scene import check_numbers


def read_npy(path: Path, *, dims: Dims) -> Raster:
    """The array of an .npy file, memory-mapped."""
    with path.open("rb") as file:
        info, dtype, fortran = _announced(file, str(path))
        start = file.tell()
    choose_key({path.stem: info}, path, dims=dims, key=path.stem)
    claimed = start + prod(info.shape) * dtype.itemsize
    if path.stat().st_size < claimed:
        raise ValueError(f"{path} is cut short: its header announces {claimed:,} bytes, it has {path.stat().st_size:,}")
    return Raster(np.memmap(path, dtype, "r", start, info.shape, "F" if fortran else "C"))


def read_npz(
    path: Path,
    *,
    dims: Dims,
    key: str | None = None,
    size: tuple[int, int] | None = None,
    largest_ratio: int = LARGEST_RATIO,
    check: Callable[[tuple[int, ...], np.dtype[Any]], None] | None = None,
) -> Raster:
    """An array of an .npz file, chosen by `key` or by its shape; `check` may refuse what it announces."""
    with zipfile.ZipFile(path) as archive:
        members = {m.filename.removesuffix(".npy"): m for m in archive.infolist() if m.filename.endswith(".npy")}
        arrays = {name: _member_info(archive, member, path) for name, member in members.items()}
        chosen = choose_key(arrays, path, dims=dims, key=key, size=size)
        what, member = f"{path}: {chosen!r}", members[chosen]
        with archive.open(member) as file:
            info, dtype, _ = _announced(file, what)
        claimed = prod(info.shape) * dtype.itemsize
        if claimed > member.file_size:
            raise ValueError(f"{what} announces {claimed:,} bytes and has {member.file_size:,}: it is cut short")
        if check is not None:
            check(info.shape, dtype)
        check_growth(claimed, member.compress_size, what, largest_ratio)
        with archive.open(member) as file:
            return Raster(np.lib.format.read_array(file, allow_pickle=False))


def _member_info(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> ArrayInfo:
    with archive.open(member) as file:
        shape, dtype, _ = _header(file, f"{path}: {member.filename!r}")
    return ArrayInfo(shape, str(dtype), dtype.kind in "buifc")


def _announced(file: IO[bytes], what: str) -> tuple[ArrayInfo, np.dtype[Any], bool]:
    shape, dtype, fortran = _header(file, what)
    if dtype.hasobject:
        raise ValueError(f"{what} holds Python objects, which are not read; save plain numbers")
    check_numbers(dtype, what)
    return ArrayInfo(shape, str(dtype), True), dtype, fortran


def _header(file: IO[bytes], what: str) -> tuple[tuple[int, ...], np.dtype[Any], bool]:
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file)
    except Exception as error:  # NumPy parses the header as Python
        raise ValueError(f"{what} is not a NumPy file ({error})") from None
    if min(shape, default=0) < 0:
        raise ValueError(f"{what} announces the impossible shape {shape}")
    return shape, dtype, fortran
