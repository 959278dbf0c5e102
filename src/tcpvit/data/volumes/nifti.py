"""NIfTI files through nibabel: turned to RAS when they are read, and turned back when masks of them are written."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpvit.data.volumes.volume import Volume, as_pixels, check_announced, with_channels
from tcpvit.errors import import_extra

SUFFIXES = (".nii", ".nii.gz")


def nibabel() -> Any:
    """The package nibabel, or an error that says how to install it."""
    return import_extra("nibabel", "NIfTI files are read and written with nibabel", "volumes")


def read_nifti(path: Path) -> Volume:
    """The voxels in RAS, (C, T, H, W): z, y and x of the patient, and a fourth axis of the file as channels."""
    nib = nibabel()
    try:
        image = nib.load(path)
        shape, dtype = tuple(image.shape), image.get_data_dtype()
    except Exception as error:  # nibabel fails in many ways on a damaged file
        raise ValueError(f"{path} is not a NIfTI file ({_first_line(error)})") from None
    while len(shape) > 3 and shape[-1] == 1:
        shape = shape[:-1]
    if len(shape) not in (3, 4):
        raise ValueError(
            f"{path} has the axes {'×'.join(map(str, image.shape))}; a volume has three, or a fourth of channels"
        )
    compressed = path.name.lower().endswith(".gz")
    check_announced(shape, dtype.itemsize, path.stat().st_size, path, compressed=compressed)
    if not np.isfinite(image.affine).all() or abs(np.linalg.det(image.affine[:3, :3])) < 1e-12:
        raise ValueError(f"{path} has an affine that maps no volume to millimetres; write its header again")
    try:
        values = np.asanyarray(image.dataobj).reshape(shape)
    except Exception as error:
        raise ValueError(f"{path} is damaged or cut short ({_first_line(error)})") from None
    turned = nib.orientations.apply_orientation(values, nib.orientations.io_orientation(image.affine))
    first = turned.transpose(2, 1, 0) if turned.ndim == 3 else turned.transpose(3, 2, 1, 0)
    return Volume(as_pixels(with_channels(first, path), path), np.asarray(image.affine, dtype=np.float64))


def turned_spacing(affine: NDArray[np.float64]) -> tuple[float, ...]:
    """Millimetres along z, y and x of the patient."""
    nib = nibabel()
    lengths = np.sqrt((affine[:3, :3] ** 2).sum(0))
    order = nib.orientations.io_orientation(affine)[:, 0].astype(int)  # which axis of the patient each of the file is
    return tuple(float(lengths[list(order).index(axis)]) for axis in (2, 1, 0))


def lie_alike(a: Volume, b: Volume) -> bool:
    """Whether the voxels of two volumes of one size lie within half a voxel of each other.

    Where one file does not say how it lies, the other should be stored in RAS, so that neither is turned.
    """
    if a.affine is None or b.affine is None:
        known = a.affine if b.affine is None else b.affine
        return known is None or bool((nibabel().orientations.io_orientation(known) == _ras()).all())
    corners = np.array([[0, 0, 0, 1], [*a.voxels.shape[:0:-1], 1]], dtype=float).T
    apart = np.abs((turned_affine(a) - turned_affine(b)) @ corners).max()
    return bool(apart < 0.5 * min(turned_spacing(a.affine)))


def turned_affine(volume: Volume) -> NDArray[np.float64]:
    """From (x, y, z) of the voxels in RAS to millimetres."""
    assert volume.affine is not None
    orientations = nibabel().orientations
    turn = orientations.io_orientation(volume.affine)
    sides = volume.voxels.shape[:0:-1]  # x, y, z in RAS
    in_file = tuple(sides[int(axis)] for axis in turn[:, 0])
    affine: NDArray[np.float64] = volume.affine @ orientations.inv_ornt_aff(turn, in_file)
    return affine


def nifti_bytes(mask: NDArray[Any], affine: NDArray[np.float64] | None) -> bytes:
    """A mask (T, H, W) as a .nii.gz file in the orientation and with the affine of the volume that it belongs to."""
    nib = nibabel()
    values = mask.transpose(2, 1, 0)  # x, y, z
    if affine is not None:
        own = nib.orientations.io_orientation(affine)
        values = nib.orientations.apply_orientation(values, nib.orientations.ornt_transform(_ras(), own))
    image = nib.Nifti1Image(np.ascontiguousarray(values), np.eye(4) if affine is None else affine)
    image.header.set_xyzt_units("mm")
    return gzip.compress(image.to_bytes(), mtime=0)


def _ras() -> NDArray[np.float64]:
    return np.array([[0, 1], [1, 1], [2, 1]], dtype=float)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
