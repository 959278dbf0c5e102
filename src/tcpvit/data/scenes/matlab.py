"""MATLAB files: version 5 (to 7.2) with SciPy, version 7.3 as HDF5. Nothing is loaded before its size is checked."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpvit.data.scenes.raster import HARMLESS, LARGEST_RATIO, ArrayInfo, Raster, check_growth, choose_key
from tcpvit.data.scenes.scene import check_numbers

HEADER = 128  # bytes before the first variable
COMPRESSED, MATRIX = 15, 14  # element types that hold variables
NUMERIC = {"double", "single", "logical", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))}
BLOCK = 1 << 16


def is_matlab5(start: bytes) -> bool:
    """True for the first 128 bytes of a version 5 file."""
    return len(start) >= HEADER and start[126:128] in (b"IM", b"MI") and start[124:126] in (b"\x00\x01", b"\x01\x00")


def read_matlab5(path: Path, *, dims: int, key: str | None = None, size: tuple[int, int] | None = None) -> Raster:
    """An array of a version 5 file, chosen by `key` or by its shape."""
    try:
        from scipy.io import loadmat, whosmat
    except ImportError:
        raise ImportError("MATLAB files are read with SciPy: pip install 'tcpvit[scenes]'") from None
    _check_elements(path)
    try:
        listed = whosmat(path, appendmat=False)
    except OSError:
        raise
    except Exception as error:  # SciPy fails in many ways on a damaged file
        raise ValueError(f"{path} is not a readable MATLAB file ({error})") from None
    arrays = {name: ArrayInfo(tuple(shape), kind, kind in NUMERIC) for name, shape, kind in listed}
    chosen = choose_key(arrays, path, dims=dims, key=key, size=size)
    return Raster(_load(path, chosen, arrays[chosen].shape, loadmat))


def _load(path: Path, key: str, shape: tuple[int, ...], loadmat: Any) -> NDArray[Any]:
    try:
        array = loadmat(path, appendmat=False, variable_names=[key], struct_as_record=True)[key]
    except OSError:
        raise
    except Exception as error:
        raise ValueError(f"{path}: {key!r} could not be read, the file is damaged or cut short ({error})") from None
    check_numbers(array.dtype, f"{path}: {key!r}")
    assert array.shape == shape
    return array


def _check_elements(path: Path) -> None:
    """Walk over the variables: each must lie inside the file, and a compressed one may not grow without bound."""
    total = path.stat().st_size
    with path.open("rb") as file:
        order = "<" if file.read(HEADER)[126:128] == b"IM" else ">"
        position = HEADER
        while tag := file.read(8):
            if len(tag) < 8:
                raise ValueError(f"{path} is cut short: a variable begins {len(tag)} bytes before its end")
            kind, length = struct.unpack(f"{order}II", tag)
            if kind not in (COMPRESSED, MATRIX):
                raise ValueError(f"{path} is damaged: there is no variable at byte {position:,}")
            if position + 8 + length > total:
                raise ValueError(
                    f"{path} is cut short: a variable of {length:,} bytes begins at byte {position:,} of {total:,}"
                )
            if kind == COMPRESSED:
                _check_inflation(file, length, path)
            position += 8 + length
            file.seek(position)


def _check_inflation(file: Any, stored: int, path: Path) -> None:
    """Decompress into nothing, in bounded memory: the size of the result is known only at its end."""
    limit = max(HARMLESS, LARGEST_RATIO * stored)
    inflater, size, left = zlib.decompressobj(), 0, stored
    try:
        while left and not inflater.eof:
            block = file.read(min(BLOCK, left))
            left -= len(block)
            while block and not inflater.eof:
                size += len(inflater.decompress(block, 16 * BLOCK))
                check_growth(size, stored, f"{path}: a compressed variable") if size > limit else None
                block = inflater.unconsumed_tail
    except zlib.error as error:
        raise ValueError(f"{path} is damaged: a compressed variable cannot be decompressed ({error})") from None


def read_hdf5(path: Path, *, dims: int, key: str | None = None, size: tuple[int, int] | None = None) -> Raster:
    """An array of a version 7.3 file; its axes are stored in reverse, and turned back here.

    HDF5 files that MATLAB did not write (no .mat in their name, no mark of MATLAB on the array) keep their axes.
    """
    try:
        import h5py
    except ImportError:
        raise ImportError("MATLAB 7.3 files are read with h5py: pip install 'tcpvit[scenes]'") from None
    try:
        with h5py.File(path, "r") as file:
            own = {name: file[name] for name in file if isinstance(file.get(name, getlink=True), h5py.HardLink)}
            datasets = {name: item for name, item in own.items() if isinstance(item, h5py.Dataset)}
            arrays = {name: _describe(item, path) for name, item in datasets.items()}
            chosen = choose_key(arrays, path, dims=dims, key=key, size=size)
            return Raster(_read_dataset(datasets[chosen], path, chosen))
    except ValueError:
        raise
    except (OSError, RuntimeError, KeyError) as error:  # a missing file was met before: it was opened to know its kind
        raise ValueError(f"{path} could not be read, the file is damaged or cut short ({error})") from None


def _describe(dataset: Any, path: Path) -> ArrayInfo:
    shape = dataset.shape or ()
    kind = "complex" if dataset.dtype.names == ("real", "imag") else str(dataset.dtype)
    return ArrayInfo(shape[::-1] if _reversed(dataset, path) else shape, kind, dataset.dtype.kind in "biufV")


def _reversed(dataset: Any, path: Path) -> bool:
    return path.suffix.lower() == ".mat" or "MATLAB_class" in dataset.attrs


def _read_dataset(dataset: Any, path: Path, key: str) -> NDArray[Any]:
    what = f"{path}: {key!r}"
    if dataset.dtype.names == ("real", "imag"):
        check_numbers(np.dtype(np.complex128), what)
    check_numbers(dataset.dtype, what)
    if dataset.external is not None or dataset.is_virtual:
        raise ValueError(f"{what} keeps its values in another file, which is not followed; save it into one file")
    total = path.stat().st_size
    claimed = dataset.size * dataset.dtype.itemsize
    if dataset.chunks is None and dataset.id.get_offset() is not None:
        return _map_dataset(dataset, path, claimed, total)
    stored = dataset.id.get_storage_size()
    if stored > total:
        raise ValueError(f"{what} claims {stored:,} bytes of a file of {total:,}: it is damaged or cut short")
    check_growth(claimed, stored, what)
    check_growth(int(np.prod(dataset.chunks or 0)) * dataset.dtype.itemsize, total, f"{what}: one of its chunks")
    array = dataset[()]
    return array.T if _reversed(dataset, path) else array


def _map_dataset(dataset: Any, path: Path, claimed: int, total: int) -> NDArray[Any]:
    """Values that lie in one piece are mapped into memory, not read."""
    offset = dataset.id.get_offset()
    if offset + claimed > total:
        raise ValueError(f"{path} is cut short: {claimed:,} bytes from byte {offset:,} on, in a file of {total:,}")
    array = np.memmap(path, dataset.dtype, "r", offset, dataset.shape)
    return array.T if _reversed(dataset, path) else array
