"""TIFF and GeoTIFF images of many bands, and folders with one file for each band of a satellite scene."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpvit.data.scenes.no_data import find_missing, parse_no_data
from tcpvit.data.scenes.raster import MAP, Raster, check_growth
from tcpvit.data.scenes.scene import Georeference, check_numbers
from tcpvit.data.tiff import say_differing_page
from tcpvit.data.walk import natural_order
from tcpvit.errors import import_extra

SUFFIXES = (".tif", ".tiff")
# ModelPixelScale, ModelTiepoint, ModelTransformation, GeoKeyDirectory, GeoDoubleParams, GeoAsciiParams
GEO_TAGS = (33550, 33922, 34264, 34735, 34736, 34737)
NO_DATA = 42113  # GDAL_NODATA, a number as text
REDUCED, MASK = 1, 4  # bits of NewSubfileType: pages that belong to another image


def tifffile() -> Any:
    """The package tifffile, or an error that says how to install it."""
    return import_extra("tifffile", "TIFF files are read and written with tifffile", "scenes")


def read_tiff(path: Path, *, dims: int) -> Raster:
    """The image (H, W, B), or the label map (H, W) of a file with one band; mapped where it lies in one piece."""
    with tifffile().TiffFile(path) as file:
        series = _one_image(file, path)
        _check_sizes(series, path)
        check_numbers(series.dtype, str(path))
        array = _bands_last(_values(file, series, path), series.axes, path)
        georeference = _georeference(series.keyframe)
        no_data = series.keyframe.tags.get(NO_DATA)
    if dims == MAP:
        if array.shape[2] != 1:
            raise ValueError(f"{path} has {array.shape[2]} bands, a label map has one")
        array = array[:, :, 0]
    missing = None
    if no_data is not None:
        missing = find_missing(array, parse_no_data(str(no_data.value), path, "GDAL_NODATA"))
    return Raster(array, georeference=georeference, missing=missing)


def band_files(folder: Path) -> list[Path]:
    """The TIFF files of a folder in the natural order of their names: B2 before B10."""
    paths = sorted((p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES), key=natural_order)
    if not paths:
        raise ValueError(f"{folder} holds no TIFF files: a folder is read as a scene with one file for each band")
    return paths


def stack_bands(paths: list[Path], rasters: list[Raster]) -> Raster:
    """The images of several files as one, which must have one size and one place."""
    first = rasters[0]
    for path, raster in zip(paths, rasters, strict=True):
        if raster.array.shape[:2] != first.array.shape[:2]:
            raise ValueError(
                f"{path} has {raster.array.shape[0]}×{raster.array.shape[1]} pixels and {paths[0].name} "
                f"{first.array.shape[0]}×{first.array.shape[1]}; resample the bands to one size first"
            )
        if raster.georeference != first.georeference:
            raise ValueError(f"{path} and {paths[0].name} have different georeferences; align the bands first")
    masks = [raster.missing for raster in rasters if raster.missing is not None]
    return Raster(
        np.concatenate([raster.array for raster in rasters], axis=2),
        georeference=first.georeference,
        missing=np.any(masks, axis=0) if masks else None,
    )


def _one_image(file: Any, path: Path) -> Any:
    """The pages of the file's only image: overviews are levels of it, and other pages would be lost."""
    images = [series for series in file.series if not series.keyframe.subfiletype & (REDUCED | MASK)]
    if len(images) > 1:
        shown = ", ".join(f"{'×'.join(map(str, series.shape))} {series.dtype}" for series in images[:4])
        raise ValueError(
            f"{path} holds {len(images)} images that differ in size, type or compression ({shown}), where one is read; "
            f"save each in a file of its own, or all pages alike"
        )
    found = images[0] if images else file.series[0]
    if other := say_differing_page(file, found):
        raise ValueError(f"{path}: {other}")
    return found


def _check_sizes(series: Any, path: Path) -> None:
    """Every strip or tile must lie inside the file, and the image may not be far larger than what is stored."""
    if 0 in series.shape:
        raise ValueError(f"{path} announces an image without pixels, of shape {series.shape}")
    total = path.stat().st_size
    stored = 0
    for page in series.pages:
        if page is None:
            raise ValueError(f"{path} lacks one of its pages")
        segments = zip(page.dataoffsets, page.databytecounts, strict=True)
        if any(offset + count > total for offset, count in segments):
            raise ValueError(f"{path} is cut short: its values go on after the end of the file")
        stored += sum(page.databytecounts)
    frame = series.keyframe
    uncompressed = frame.compression == 1
    claimed = prod(series.shape) * series.dtype.itemsize
    if uncompressed and stored * 8 < prod(series.shape) * frame.bitspersample:
        raise ValueError(f"{path} is damaged: {claimed:,} bytes are announced and {stored:,} are there")
    check_growth(claimed, min(stored, total), str(path))
    check_growth(prod(frame.chunks) * series.dtype.itemsize, total, f"{path}: one of its tiles")


def _values(file: Any, series: Any, path: Path) -> NDArray[Any]:
    if series.dataoffset is not None and series.keyframe.is_memmappable:
        return np.memmap(path, file.byteorder + series.dtype.char, "r", series.dataoffset, series.shape)
    try:
        return series.asarray()
    except ValueError as error:
        if "imagecodecs" in str(error):
            raise ValueError(
                f"{path} is compressed in a way that needs one more package: pip install imagecodecs"
            ) from None
        raise


def _bands_last(array: NDArray[Any], axes: str, path: Path) -> NDArray[Any]:
    """(H, W, B) whether bands are samples of a pixel, planes or pages."""
    if axes == "YX":
        return array[:, :, None]
    if array.ndim == 3 and axes.endswith("YX"):
        return array.transpose(1, 2, 0)
    if axes == "YXS":
        return array
    raise ValueError(f"{path} has the axes {axes} of size {array.shape}, expected rows, columns, and bands or pages")


def _georeference(page: Any) -> Georeference | None:
    tags = {code: (int(tag.dtype), tag.value) for code in GEO_TAGS if (tag := page.tags.get(code)) is not None}
    return Georeference("geotiff", tags) if tags else None
