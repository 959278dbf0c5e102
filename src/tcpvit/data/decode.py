"""One image file: its pixels as they are, or the class ids of a mask. Only the formats named here are opened."""

from __future__ import annotations

import io
import os
import stat
from typing import Literal, NamedTuple

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from tcpvit.data import tiff

EXTENSIONS = frozenset(Image.registered_extensions()) & {
    ".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp",
}  # fmt: skip
# Pillow would open others by their content, whatever the name says: an EPS named cat.png starts Ghostscript.
FORMATS: list[str] = [name for name in ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP") if name in Image.OPEN]
MAX_PIXELS = 2 * (Image.MAX_IMAGE_PIXELS or 89_478_485)  # of one file; beyond this Pillow refuses too
SPECIAL = "a pipe, socket or device, not a file"
COLOUR_ONLY = "bands=rgb (--set data.options.bands=rgb)"

Bands = Literal["all", "rgb"]


class Layout(NamedTuple):
    """What the pixels of a file are: their size and number of bands, and the type of a value."""

    width: int
    height: int
    bands: int
    dtype: str  # "uint8", "uint16" or "float32"

    @property
    def kind(self) -> str:
        """What all files of a set have in common.

        >>> Layout(640, 480, 1, "uint16").kind
        '1 band of uint16'
        """
        return f"{self.bands} band{'' if self.bands == 1 else 's'} of {self.dtype}"


def read_layout(path: str, bands: Bands = "all") -> Layout:
    """What `read_pixels` will give, from the head of the file."""
    if bands == "all" and is_tiff(path):
        with tiff.open_tiff(path, _open) as found:
            return Layout(found.width, found.height, found.bands, found.dtype)
    with _open(path) as image:
        _check_depth(image, bands)
        # Pillow would decode a whole PNG to look for EXIF data behind its pixels.
        turned = (image.format != "PNG" or "exif" in image.info) and _is_turned(image)
        width, height = image.size[::-1] if turned else image.size
        return Layout(width, height, *((1, "uint16") if _is_deep_grey(image) else (3, "uint8")))


def read_pixels(path: str, bands: Bands = "all") -> np.ndarray:
    """(H, W, C) uint8, uint16 or float32, turned the way the camera held it.

    A TIFF gives its bands as they are, an image of 16 bits in grey one band of uint16; everything else, and with
    `bands="rgb"` everything, is a colour image of 8 bits: grey ones have three equal bands, transparency is dropped,
    and of an animation the first frame is taken.
    """
    if bands == "all" and is_tiff(path):
        with tiff.open_tiff(path, _open) as found:
            return _check_finite(found.read())
    with _open(path) as image:
        _check_depth(image, bands)
        turned = ImageOps.exif_transpose(image)
        if _is_deep_grey(image):
            return np.asarray(turned).astype(np.uint16)[:, :, None]
        return np.asarray(turned.convert("RGB"))


def read_colour(content: bytes, max_pixels: int = MAX_PIXELS) -> np.ndarray:
    """(H, W, 3) uint8 of an encoded image in memory, as `read_pixels` reads a file with `bands="rgb"`."""
    with _open(io.BytesIO(content)) as image:
        if image.width * image.height > max_pixels:
            raise OverflowError(f"{image.width} × {image.height} pixels are more than {max_pixels:,}")
        _check_depth(image, "rgb")
        return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))


def read_image(path: str) -> Image.Image:
    """A colour image to look at, whatever the file holds."""
    return Image.fromarray(as_colour(read_pixels(path)))


def as_colour(pixels: np.ndarray) -> np.ndarray:
    """(..., H, W, C) of any bands and type -> (..., H, W, 3) uint8 to look at: the first three bands, or one as grey.

    What is not of 8 bits is stretched between its 2nd and 98th percentile.
    """
    shown = pixels[..., :3] if pixels.shape[-1] >= 3 else np.repeat(pixels[..., :1], 3, axis=-1)
    if shown.dtype == np.uint8:
        return np.ascontiguousarray(shown)
    low, high = np.percentile(shown, (2, 98)) if shown.size else (0, 1)
    stretched = (shown.astype(np.float32) - low) / max(high - low, 1e-12)
    return (255 * stretched.clip(0, 1)).round().astype(np.uint8)


def read_mask(path: str) -> Image.Image:
    """A mask of one byte per pixel: grey values or the indices of a palette."""
    with _open(path) as mask:
        mask.load()
        if mask.mode == "1":
            return Image.fromarray(np.asarray(mask).astype(np.uint8))
        if mask.mode not in ("L", "P"):
            raise ValueError(
                f"a mask has one class number per pixel, of 8 bits (grey or palette); this has mode {mask.mode}"
            )
        return mask


def orientation_swaps(path: str) -> bool:
    """Whether the file's EXIF orientation swaps width and height."""
    with _open(path) as image:
        return _is_turned(image)


def is_special(path: str) -> bool:
    """Whether it is a pipe, a socket or a device, which might never end; False also if nothing is there."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def is_tiff(path: str) -> bool:
    """By its first bytes, whatever its name says."""
    if is_special(path):
        raise ValueError(SPECIAL)
    with open(path, "rb") as file:
        return file.read(4) in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")


def _open(path: str | io.BytesIO) -> Image.Image:
    if isinstance(path, str) and is_special(path):
        raise ValueError(SPECIAL)
    try:
        return Image.open(path, formats=FORMATS)
    except Image.DecompressionBombError:
        raise ValueError(f"more than {MAX_PIXELS:,} pixels; cut it into tiles") from None
    except UnidentifiedImageError:
        raise UnidentifiedImageError(f"no image: it is none of {', '.join(FORMATS)}") from None


def _is_turned(image: Image.Image) -> bool:
    return image.getexif().get(ExifTags.Base.Orientation) in (5, 6, 7, 8)  # those that swap width and height


def _check_depth(image: Image.Image, bands: Bands) -> None:
    """Raise where values would be lost unasked: Pillow reads colour of 16 bits as 8."""
    if bands == "rgb" and image.mode.startswith(("I", "F")):
        raise ValueError(f"more than 8 bits per channel (mode {image.mode}), which bands=rgb does not read")
    if image.mode == "F" or (image.mode == "I" and image.format not in ("PNG", "PPM")):
        raise ValueError(f"values of 32 bits (mode {image.mode}) are read from TIFF files only")
    if bands == "all" and _is_deep_colour(image):
        raise ValueError(
            f"colour of 16 bits in a {image.format} file; save it as TIFF, or read 8 of the bits with {COLOUR_ONLY}"
        )


def _is_deep_grey(image: Image.Image) -> bool:
    return image.mode.startswith("I")


def _is_deep_colour(image: Image.Image) -> bool:
    """Whether Pillow's instructions for decoding name 16 bits, while its mode has 8."""
    tile = getattr(image, "tile", ())
    if _is_deep_grey(image) or not tile or image.format not in ("PNG", "PPM"):
        return False
    how = tile[0][3] if isinstance(tile[0][3], tuple) else (tile[0][3],)
    return any(";16" in str(word) or (isinstance(word, int) and word > 255) for word in how)


def _check_finite(pixels: np.ndarray) -> np.ndarray:
    if pixels.dtype == np.float32 and not np.isfinite(pixels).all():
        raise ValueError("it holds NaN or infinity; fill those pixels first")
    return pixels
