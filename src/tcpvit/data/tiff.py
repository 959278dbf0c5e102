"""TIFF files with the bands and the type that they have: the common ones by Pillow, all others by tifffile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from tcpvit.errors import import_extra

MAX_BYTES = 2 * 1024**3  # of one decoded file
WIDTH, HEIGHT, BITS, SAMPLES, ORIENTATION, PLANAR, EXTRA_SAMPLES = 256, 257, 258, 277, 274, 284, 338  # tags
COLOUR = {"1": 1, "L": 1, "P": 1, "RGB": 3, "CMYK": 4, "YCbCr": 3, "LAB": 3}  # samples of what becomes RGB of 8 bits
BANDS = {"LA": (2, 8), "RGBA": (4, 8), "RGBX": (4, 8), "I;16": (1, 16), "I;16B": (1, 16), "F": (1, 32), "I": (1, 16)}
# What values become: exactly themselves, except for float64.
TYPES = {"uint8": "uint8", "uint16": "uint16"} | dict.fromkeys(
    ("int8", "int16", "float16", "float32", "float64"), "float32"
)


@dataclass(frozen=True)
class Tiff:
    """An open file, and how its pixels are read."""

    width: int
    height: int
    bands: int
    dtype: str
    read: Callable[[], np.ndarray]  # (H, W, bands)


@contextmanager
def open_tiff(path: str, open_image: Callable[[str], Image.Image]) -> Iterator[Tiff]:
    """The file's bands; `open_image` is Pillow with our limits."""
    try:
        image = open_image(path)
    except UnidentifiedImageError:  # Pillow knows up to six samples a pixel, and no BigTIFF of some kinds
        image = None
    if image is not None:
        with image:
            if found := _by_pillow(image):
                yield found
                return
    with _tifffile().TiffFile(path) as file:
        yield _by_tifffile(file)


def _by_pillow(image: Any) -> Tiff | None:
    """None if Pillow would lose something: pages, samples, or bits of them."""
    tags = image.tag_v2
    samples, bits = tags.get(SAMPLES, 1), max(tags.get(BITS, (1,)))
    if getattr(image, "n_frames", 1) > 1:
        return None
    size = tags[WIDTH], tags[HEIGHT]  # as stored: whether image.size is turned depends on Pillow's version
    width, height = size if tags.get(ORIENTATION, 1) < 5 else size[::-1]
    if COLOUR.get(image.mode) == samples and bits <= 8:
        return Tiff(width, height, 3, "uint8", lambda: np.asarray(ImageOps.exif_transpose(image).convert("RGB")))
    is_plain = tags.get(PLANAR, 1) == 1 and 1 not in tags.get(EXTRA_SAMPLES, ())  # 1: colours multiplied by alpha
    if BANDS.get(image.mode) != (samples, bits) or not is_plain or tags.get(ORIENTATION, 1) != 1:
        return None
    dtype = {8: "uint8", 32: "float32"}.get(bits) or ("float32" if image.mode == "I" else "uint16")
    _check_size(width * height * samples * np.dtype(dtype).itemsize)

    def read() -> np.ndarray:
        pixels = np.asarray(image).astype(dtype)
        return pixels if pixels.ndim == 3 else pixels[:, :, None]

    return Tiff(width, height, samples, dtype, read)


def _by_tifffile(file: Any) -> Tiff:
    """One image, with at most one axis beside its height and width: samples, planes or pages."""
    if len(file.series) != 1:
        shapes = ", ".join("×".join(map(str, series.shape)) for series in file.series[:4])
        raise ValueError(f"it holds {len(file.series)} images of different kinds ({shapes}); save one in each file")
    series = file.series[0]
    if other := say_differing_page(file, series):
        raise ValueError(other)
    axes = [
        (name, length) for name, length in zip(series.axes, series.shape, strict=True) if length > 1 or name in "YX"
    ]
    others = [length for name, length in axes if name not in "YX"]
    if len(others) > 1 or not {"Y", "X"} <= {name for name, _ in axes}:
        raise ValueError(
            f"its pages and samples have the axes {series.axes} ({'×'.join(map(str, series.shape))}); bands along one "
            f"of them are read, so save one image in each file"
        )
    if str(series.dtype) not in TYPES:
        raise ValueError(f"values of type {series.dtype}; save it as uint8, uint16 or float32")
    dtype = TYPES[str(series.dtype)]
    _check_size(int(np.prod(series.shape)) * np.dtype(dtype).itemsize)
    orientation = int(getattr(file.pages[0].tags.get(ORIENTATION), "value", 1))
    sizes = dict(axes)
    height, width = (sizes["Y"], sizes["X"]) if orientation < 5 else (sizes["X"], sizes["Y"])

    def read() -> np.ndarray:
        pixels = series.asarray().reshape([length for _, length in axes])
        order = [name for name, _ in axes]
        band = [k for k, name in enumerate(order) if name not in "YX"]
        pixels = pixels.transpose(order.index("Y"), order.index("X"), *band)
        pixels = pixels if band else pixels[:, :, None]
        return np.ascontiguousarray(_upright(pixels, orientation)).astype(dtype)

    return Tiff(width, height, others[0] if others else 1, dtype, read)


def say_differing_page(file: Any, series: Any) -> str | None:
    """A sentence for the first page that is not as the others: tifffile looks at a few, and reads all as those are."""
    if series.kind != "uniform":  # the others have a description of their pages
        return None
    file.pages.useframes = False
    for number, page in enumerate(file.pages, 1):
        if page.hash != series.keyframe.hash:
            found, first = (f"{'×'.join(map(str, each.shape))} {each.dtype}" for each in (page, series.keyframe))
            return (
                f"page {number} ({found}) differs from the first ({first}) in size, type or compression; save all "
                f"pages alike"
            )
    return None


def _upright(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """(H, W, C) turned and mirrored as the tag Orientation says."""
    if orientation >= 5:
        pixels = pixels.swapaxes(0, 1)
    rows = slice(None, None, -1 if orientation in (3, 4, 7, 8) else 1)
    columns = slice(None, None, -1 if orientation in (2, 3, 6, 7) else 1)
    return pixels[rows, columns]


def _check_size(size: int) -> None:
    if size > MAX_BYTES:
        raise ValueError(f"{size / 1e9:.1f} GB of pixels, where {MAX_BYTES / 1e9:.1f} GB are read; cut it into tiles")


def _tifffile() -> Any:
    kinds = "TIFF files of several pages, of more than four bands or of colour in 16 bits"
    return import_extra("tifffile", f"{kinds} are read with tifffile, which is missing", "tiff")
