"""MATLAB 7.3 files, which are HDF5: sizes are checked against the file before anything is allocated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpvit.data.scenes.raster import ArrayInfo, Raster, check_growth, choose_key
from tcpvit.data.scenes.scene import check_numbers
from tcpvit.errors import import_extra


def read_hdf5(path: Path, *, dims: int, key: str | None = None, size: tuple[int, int] | None = None) -> Raster:
    """An array of a version 7.3 file; its axes are stored in reverse, and turned back here.

    HDF5 files that MATLAB did not write (no .mat in their name, no mark of MATLAB on the array) keep their axes.
    """
    h5py = import_extra("h5py", "MATLAB 7.3 files are read with h5py", "scenes")
    with h5py.File(path, "r") as file:
        own = {name: file[name] for name in file if isinstance(file.get(name, getlink=True), h5py.HardLink)}
        datasets = {name: item for name, item in own.items() if isinstance(item, h5py.Dataset)}
        arrays = {name: _describe(item, path) for name, item in datasets.items()}
        chosen = choose_key(arrays, path, dims=dims, key=key, size=size)
        return Raster(_read_dataset(datasets[chosen], path, chosen))


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
