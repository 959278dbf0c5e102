"""DICOM series through pydicom: the slices of one series in their order in space, turned to RAS as NIfTI files are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpvit.data.volumes.nifti import nibabel
from tcpvit.data.volumes.volume import Volume, as_pixels, check_announced
from tcpvit.errors import import_extra

MOST_SLICES = 10_000
NEEDED = (
    "SeriesInstanceUID",
    "Rows",
    "Columns",
    "BitsAllocated",
    "PixelSpacing",
    "ImagePositionPatient",
    "ImageOrientationPatient",
)


def pydicom() -> Any:
    """The package pydicom, or an error that says how to install it."""
    return import_extra("pydicom", "DICOM files are read with pydicom", "volumes")


def is_dicom(path: Path) -> bool:
    """Whether a file begins as DICOM files do; a DICOMDIR is but a list of others."""
    if path.name.upper() == "DICOMDIR":
        return False
    try:
        with path.open("rb") as file:
            return file.read(132)[128:] == b"DICM"
    except OSError:
        return False


def read_series(folder: Path) -> Volume:
    """The one series of a folder, in RAS, (1, T, H, W); values are rescaled as their headers say."""
    slices = _headers(folder)
    first = slices[0][1]
    rows, columns = int(first.Rows), int(first.Columns)
    stored = sum(path.stat().st_size for path, _ in slices)
    compressed = bool(first.file_meta.TransferSyntaxUID.is_compressed)
    shape = (len(slices), rows, columns)
    check_announced(shape, int(first.BitsAllocated) // 8, stored, folder, compressed=compressed)
    planes = [_plane(path, (rows, columns)) for path, _ in slices]
    affine = _affine([header for _, header in slices])
    values = np.stack(planes).transpose(2, 1, 0)  # columns, rows, slices: as the affine has them
    nib = nibabel()
    turned = nib.orientations.apply_orientation(values, nib.orientations.io_orientation(affine))
    return Volume(as_pixels(turned.transpose(2, 1, 0)[None], folder), affine)


def _headers(folder: Path) -> list[tuple[Path, Any]]:
    """Files and headers of the slices, in their order along the normal of the planes."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and is_dicom(path))
    if not files:
        raise ValueError(f"{folder} holds no DICOM files")
    if len(files) > MOST_SLICES:
        raise ValueError(f"{folder} holds {len(files):,} DICOM files, where {MOST_SLICES:,} are read as one volume")
    found = [(path, _header(path)) for path in files]
    series = sorted({str(header.SeriesInstanceUID) for _, header in found})
    if len(series) > 1:
        raise ValueError(
            f"{folder} holds {len(series)} series ({', '.join(series[:3])}); give each a folder of its own"
        )
    kinds = {(int(h.Rows), int(h.Columns), tuple(map(float, h.ImageOrientationPatient))) for _, h in found}
    if len(kinds) > 1:
        raise ValueError(f"the slices of {folder} differ in size or orientation; keep those of one scan")
    normal = _normal(found[0][1])
    placed = sorted(found, key=lambda item: float(np.dot(normal, np.array(item[1].ImagePositionPatient, float))))
    places = [float(np.dot(normal, np.array(header.ImagePositionPatient, float))) for _, header in placed]
    steps = np.diff(places)
    if len(steps) and (steps.min() <= 0 or steps.max() > 1.5 * steps.min()):
        where = int(steps.argmax())
        raise ValueError(
            f"the slices of {folder} are {steps.min():.2f} to {steps.max():.2f} mm apart: slices are missing or there "
            f"twice, as behind {placed[where][0].name}"
        )
    return placed


def _header(path: Path) -> Any:
    try:
        header = pydicom().dcmread(path, stop_before_pixels=True)
        lacking = [name for name in NEEDED if _value(header, name) is None]
        frames, samples = (int(_value(header, name, 1)) for name in ("NumberOfFrames", "SamplesPerPixel"))
    except Exception as error:
        raise ValueError(f"{path} is a damaged DICOM file ({str(error).partition(chr(10))[0]})") from None
    if lacking:
        raise ValueError(f"{path} does not say {', '.join(lacking)}, so its place in a volume is not known")
    if frames > 1 or samples != 1:
        raise ValueError(f"{path} holds several frames or colours; series of single grey slices are read")
    return header


def _value(header: Any, name: str, default: float | None = None) -> Any:
    """What an element says; one that is there and empty, wholly or in one of its values, says nothing."""
    value = header.get(name)
    values = [value] if isinstance(value, str) or not isinstance(value, Sequence) else value
    return default if not len(values) or any(each is None or each == "" for each in values) else value


def _plane(path: Path, size: tuple[int, int]) -> NDArray[Any]:
    """The rescaled pixels of a slice."""
    try:
        data = pydicom().dcmread(path)
        pixels = data.pixel_array
    except Exception as error:
        raise ValueError(f"{path} cannot be decoded ({str(error).partition(chr(10))[0]})") from None
    if pixels.shape != size:
        raise ValueError(f"{path} has {pixels.shape} pixels, its header announced {size}")
    slope, intercept = float(_value(data, "RescaleSlope", 1)), float(_value(data, "RescaleIntercept", 0))
    return pixels if (slope, intercept) == (1.0, 0.0) else (pixels * slope + intercept).astype(np.float32)


def _normal(header: Any) -> NDArray[np.float64]:
    right, down = np.array(header.ImageOrientationPatient, float).reshape(2, 3)
    return np.cross(right, down)


def _affine(headers: list[Any]) -> NDArray[np.float64]:
    """From (column, row, slice) to millimetres in RAS; DICOM counts to the left and to the back."""
    first, last = headers[0], headers[-1]
    right, down = np.array(first.ImageOrientationPatient, float).reshape(2, 3)
    between_rows, between_columns = map(float, first.PixelSpacing)
    start, end = (np.array(header.ImagePositionPatient, float) for header in (first, last))
    step = (
        (end - start) / (len(headers) - 1)
        if len(headers) > 1
        else _normal(first) * float(_value(first, "SliceThickness", 1))
    )
    affine = np.eye(4)
    affine[:3, :3] = np.stack([right * between_columns, down * between_rows, step], 1)
    affine[:3, 3] = start
    return np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine
