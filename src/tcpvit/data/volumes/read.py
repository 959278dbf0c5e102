"""A volume from whatever file holds one: NIfTI, a DICOM series, NumPy, a TIFF stack."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from tcpvit.data.decode import is_special
from tcpvit.data.scenes.arrays import read_npy, read_npz
from tcpvit.data.scenes.raster import VOLUME
from tcpvit.data.volumes.dicom import is_dicom, read_series
from tcpvit.data.volumes.nifti import SUFFIXES as NIFTI
from tcpvit.data.volumes.nifti import read_nifti
from tcpvit.data.volumes.volume import Volume, as_pixels, with_channels
from tcpvit.data.walk import examples_below, find_examples

ARRAYS, STACKS = (".npy", ".npz"), (".tif", ".tiff")
SUFFIXES = (*NIFTI, *ARRAYS, *STACKS)
READ = f"{', '.join(SUFFIXES)} files and folders of DICOM slices"


def read_volume(path: str | Path, *, key: str | None = None) -> Volume:
    """The volume of a file or of a folder of DICOM slices; `key` names the array of an .npz file with several."""
    path = Path(path)
    if path.is_dir():
        return read_series(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    if is_special(os.fspath(path)):
        raise ValueError(f"{path} is a pipe, a socket or a device, not a file")
    name = path.name.lower()
    if name.endswith(NIFTI):
        return read_nifti(path)
    if name.endswith(ARRAYS):
        return _read_array(path, key)
    if name.endswith(STACKS):
        return _read_stack(path)
    if is_dicom(path):
        raise ValueError(f"{path} is one slice of a DICOM series; give the folder that holds the whole series")
    raise ValueError(f"{path} is no volume that can be read: {READ} are")


def _read_array(path: Path, key: str | None) -> Volume:
    """T×H×W or C×T×H×W."""
    npy = path.suffix.lower() == ".npy"
    found = read_npy(path, dims=VOLUME) if npy else read_npz(path, dims=VOLUME, key=key)
    return Volume(as_pixels(with_channels(found.array, path), path))


def _read_stack(path: Path) -> Volume:
    """The pages of a TIFF file as slices."""
    from tcpvit.data.scenes.tiff import read_tiff

    planes = read_tiff(path, dims=3).array  # (H, W, pages)
    return Volume(as_pixels(with_channels(planes.transpose(2, 0, 1), path), path))


def find_volumes(paths: Sequence[Path], leave_out: Sequence[Path] = ()) -> list[Path]:
    """The files as they are, and every volume below the folders."""
    return find_examples(paths, volumes_below, "volumes", READ, leave_out)


def volumes_below(folder: Path) -> Iterator[Path]:
    """Volume files, and folders that hold DICOM slices."""
    return examples_below(folder, SUFFIXES, _holds_slices)


def _holds_slices(folder: Path) -> bool:
    files = (entry for entry in folder.iterdir() if entry.is_file() and not entry.name.startswith("."))
    return any(is_dicom(file) for file in files if not file.name.lower().endswith(SUFFIXES))


def stem_of(path: Path) -> str:
    """The name without .nii.gz or another ending.

    >>> stem_of(Path("scan.01.nii.gz"))
    'scan.01'
    """
    suffix = next(
        (ending for ending in sorted(SUFFIXES, key=len, reverse=True) if path.name.lower().endswith(ending)), ""
    )
    return path.name[: len(path.name) - len(suffix)] if suffix else path.name
