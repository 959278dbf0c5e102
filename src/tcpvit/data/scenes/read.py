"""Read a scene and its labels from files: the kind of a file is known by its content, then by its name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from tcpvit.data.scenes.arrays import read_npy, read_npz
from tcpvit.data.scenes.envi import header_of, read_envi
from tcpvit.data.scenes.hdf5 import read_hdf5
from tcpvit.data.scenes.matlab import is_matlab5, read_matlab5
from tcpvit.data.scenes.raster import CUBE, MAP, Raster
from tcpvit.data.scenes.scene import Scene, as_labels
from tcpvit.data.scenes.tiff import band_files, read_tiff, stack_bands

HDF5 = b"\x89HDF\r\n\x1a\n"
TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
NAMED = (".mat", ".h5", ".hdf5", ".npy", ".npz", ".tif", ".tiff")  # what the name of a file may say about its kind
KINDS = "MATLAB (.mat), ENVI (.hdr and its data), NumPy (.npy, .npz), TIFF (.tif) or a folder of TIFF files"


def read_scene(
    path: str | Path, labels: str | Path | None = None, *, key: str | None = None, labels_key: str | None = None
) -> Scene:
    """Read an image of many bands, with a label map from another file (or, with `labels_key`, from the same one).

    `key` and `labels_key` name the arrays in files that hold several; without them the only array of the right shape
    is taken. ENVI, .npy and uncompressed files are mapped into memory, not read.
    """
    path = Path(path)
    cube = read_raster(path, dims=CUBE, key=key)
    scene = Scene(
        cube.array,
        wavelengths=cube.wavelengths,
        bad_bands=cube.bad_bands,
        georeference=cube.georeference,
        missing=cube.missing,
        source=path,
        files=cube.files,
        name=path.stem or path.name,
    )
    if labels is None and labels_key is None:
        return scene
    return with_labels(scene, path if labels is None else labels, key=labels_key)


def with_labels(scene: Scene, path: str | Path, *, key: str | None = None) -> Scene:
    """The scene with the label map of a file, and with its class names and colours where the file has them."""
    path = Path(path)
    found = read_raster(path, dims=MAP, key=key, size=scene.shape[:2])
    return replace(
        scene,
        labels=as_labels(found.array, str(path)),
        unmeasured=0,
        class_names=found.class_names,
        colours=found.colours,
        georeference=scene.georeference or found.georeference,
        files=(*scene.files, *found.files),
    )


def read_raster(path: Path, *, dims: int, key: str | None = None, size: tuple[int, int] | None = None) -> Raster:
    """An image (`dims` = 3) or a label map (`dims` = 2) from a file of any kind."""
    if path.is_dir():
        if dims == MAP:
            raise ValueError(f"{path} is a folder; labels are read from one file")
        paths = band_files(path)
        return replace(stack_bands(paths, [read_raster(band, dims=CUBE) for band in paths]), files=tuple(paths))
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is a pipe, a socket or a device; a scene is read from a file")
    try:
        found = _read_file(path, dims, key, size)
        if dims == MAP and found.missing is not None:  # no data: no label
            found = replace(found, array=np.where(found.missing, 0, found.array))
        return replace(found, files=found.files or (path,))
    except (FileNotFoundError, PermissionError, ImportError, MemoryError):
        raise
    except Exception as error:  # the packages that read files fail in many ways on damaged ones
        if isinstance(error, ValueError) and str(path) in str(error):  # said by us
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path} could not be read, the file is damaged or cut short ({reason})") from None


def _read_file(path: Path, dims: int, key: str | None, size: tuple[int, int] | None) -> Raster:
    with path.open("rb") as file:
        start = file.read(520)
    if path.suffix.lower() not in NAMED and header_of(path) is not None:  # raw values may begin like any other file
        _refuse_key(path, key)
        return read_envi(path, dims=dims)
    if is_matlab5(start):
        return read_matlab5(path, dims=dims, key=key, size=size)
    if HDF5 in (start[:8], start[512:520]):
        return read_hdf5(path, dims=dims, key=key, size=size)
    if start.startswith(b"PK"):
        return read_npz(path, dims=dims, key=key, size=size)
    _refuse_key(path, key)
    if start.startswith(b"\x93NUMPY"):
        return read_npy(path, dims=dims)
    if start.startswith(TIFF):
        return read_tiff(path, dims=dims)
    raise ValueError(f"{path} is not a scene that can be read: expected {KINDS}")


def _refuse_key(path: Path, key: str | None) -> None:
    if key is not None:
        raise ValueError(f"{path} holds one array, so there is no array {key!r} to choose")
