"""Image files on disk: decoded one batch at a time, or all at once into memory; bad files are named."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal, get_args

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from typing_extensions import Self

from tcpvit.data.decode import Bands, Layout, orientation_swaps, read_mask, read_pixels
from tcpvit.data.image_set import IGNORE, Batch, Example, Images, ImageSet, crop_boxes
from tcpvit.errors import printable
from tcpvit.memory import check_memory
from tcpvit.progress import Progress

Fit = Literal["crop", "squash"]
OnBad = Literal["stop", "skip"]
BILINEAR, NEAREST = Image.Resampling.BILINEAR, Image.Resampling.NEAREST  # Pillow's bilinear is antialiased
Box = tuple[float, float, float, float]
NAMED = 10  # how many bad files an error or a note names
SKIP = "skip bad files with on_bad=skip (--set data.options.on_bad=skip)"


@dataclass(frozen=True, eq=False)
class ImageFiles(Images):
    """Files with their labels, or with the files of their masks; decoded when fetched.

    `fit` says how an image becomes square: "crop" keeps the middle, "squash" the whole with its aspect ratio lost.
    """

    files: tuple[str, ...]
    targets: Tensor | tuple[str, ...]  # (N,) class ids, or the masks
    image_size: int
    fit: Fit = "crop"
    on_bad: OnBad = "stop"
    mask_values: dict[int, int] | None = None  # the class of each value of a mask, where it is not the value itself
    bands: Bands = "all"
    channels: int = 3
    dtype: torch.dtype = torch.uint8

    def __post_init__(self) -> None:
        super().__post_init__()
        mask_table(len(self.classes), self.mask_values)  # says what is wrong with them
        for name, allowed in {"fit": Fit, "on_bad": OnBad, "bands": Bands}.items():
            value = getattr(self, name)
            if value not in get_args(allowed):
                raise ValueError(f"{name} is {' or '.join(get_args(allowed))}, got {value!r}")

    def __len__(self) -> int:
        return len(self.files)

    @property
    def labels(self) -> Tensor | None:
        """(N,) class ids; None for segmentation."""
        return self.targets if isinstance(self.targets, Tensor) else None

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        return self.channels, self.image_size, self.image_size

    def subset(self, rows: Tensor) -> Self:
        """The files at `rows`, remembering where they stood in the source."""
        keep = rows.tolist()
        return replace(
            self,
            files=tuple(self.files[i] for i in keep),
            targets=self.targets[rows] if isinstance(self.targets, Tensor) else tuple(self.targets[i] for i in keep),
            indices=self.indices[rows],
        )

    def fetch(self, rows: Tensor, crops: Tensor | None = None) -> Batch:
        """Decode the images at `rows`, with `crops` a part of each; a bad one is left out and named."""
        chosen = [None] * len(rows) if crops is None else list(crops)
        read = (self._decode(i, crop) for i, crop in zip(rows.tolist(), chosen, strict=True))
        return Batch.of(read, self.image_shape, self.dtype)

    def in_memory(self) -> ImageSet:
        """Decode everything once, with threads; bad files stop the run, all of them named, or are skipped."""
        return in_memory([self])[0]

    def _decode_all(self, progress: Progress) -> Batch:
        with ThreadPoolExecutor(min(32, os.cpu_count() or 1)) as pool:
            decoded = pool.map(self._decode, range(len(self)))
            tracked = progress.track(decoded, f"reading {printable(self.source)}", len(self))
            return Batch.of(tracked, self.image_shape, self.dtype)

    def _as_image_set(self, batch: Batch) -> ImageSet:
        """What could be decoded of all the images; the rest is noted."""
        kept = batch.kept if batch.kept is not None else torch.arange(len(self))
        return ImageSet(
            batch.images,
            batch.targets,
            classes=self.classes,
            source=self.source,
            mean=self.mean,
            std=self.std,
            indices=self.indices[kept],
            names=self.names,
            notes=self.notes + ((f"{list_bad(batch.bad, len(self))}; skipped",) if batch.bad else ()),
        )

    def _decode(self, i: int, crop: Tensor | None = None) -> Example | str:
        """The image (C, H, W) and its target, or a sentence that says why there is none."""
        try:
            pixels = read_pixels(self.files[i], self.bands)
            check_kind(pixels, self.channels, self.dtype)
        except Exception as error:
            return why(self.files[i], error)
        height, width = pixels.shape[:2]
        box = square_box((width, height), self.fit, crop)
        resized = resize_pixels(pixels, (self.image_size, self.image_size), box).transpose(2, 0, 1)
        target = self.targets[i]
        if isinstance(target, Tensor):
            return resized, target.numpy()
        try:
            return resized, self._read_mask(target, self.files[i], (width, height), box)
        except Exception as error:
            return why(target, error)

    def _read_mask(self, path: str, image: str, size_of_image: tuple[int, int], box: Box) -> np.ndarray:
        """Class ids (H, W) uint8."""
        mask = read_mask(path)
        if mask.size != size_of_image:
            raise ValueError(
                f"{_by(mask.size)} pixels, but its image has {_by(size_of_image)}"
                f"{_if_turned(image) if mask.size == size_of_image[::-1] else ''}"
            )
        ids = mask_table(len(self.classes), self.mask_values)[np.asarray(mask)]  # -1 where the value is not allowed
        if (ids < 0).any():
            values = sorted(set(np.asarray(mask)[ids < 0].tolist()))
            raise ValueError(f"values {', '.join(map(str, values[:5]))} outside the {len(self.classes)} classes")
        size = (self.image_size, self.image_size)
        return np.asarray(Image.fromarray(ids.astype(np.uint8)).resize(size, NEAREST, box=box))


def check_kind(pixels: np.ndarray, channels: int, dtype: torch.dtype) -> None:
    """The pixels (H, W, C) of a file are as many bands of the type that is expected."""
    height, width, bands = pixels.shape
    found = Layout(width, height, bands, str(pixels.dtype)).kind
    wanted = Layout(width, height, channels, str(dtype).removeprefix("torch.")).kind
    if found != wanted:
        raise ValueError(f"{found}, where {wanted} {'is' if channels == 1 else 'are'} expected")


def in_memory(
    parts: Sequence[ImageFiles], progress: Progress | None = None, problems: Sequence[str] = ()
) -> list[ImageSet]:
    """Decode the parts of a set; the bad files of all parts stop the run, named together, or are skipped.

    `problems` are other things that are wrong with the set, to be told in the same error.
    """
    for part in parts:
        needed = len(part) * math.prod(part.image_shape) * part.dtype.itemsize
        check_memory(needed, f"{len(part):,} images of {part.source}", "choose a smaller image_size")
    batches = [part._decode_all(progress or Progress()) for part in parts]
    if bad := [sentence for batch in batches for sentence in batch.bad]:
        named = list_bad(bad, sum(map(len, parts)))
        empty = [part for part, batch in zip(parts, batches, strict=True) if batch.bad and not len(batch.images)]
        if empty:
            problems = [*problems, f"{named}; no image of {empty[0].source} is left: repair them"]
        elif problems or any(part.on_bad == "stop" for part in parts):
            problems = [*problems, f"{named}; repair or remove them, or {SKIP}"]
    raise_all(problems)
    return [part._as_image_set(batch) for part, batch in zip(parts, batches, strict=True)]


def raise_all(problems: Sequence[str]) -> None:
    """Raise one error for everything that is wrong, if anything is."""
    if len(problems) > 1:
        more = [f"and {len(problems) - NAMED} more"] if len(problems) > NAMED else []
        lines = "\n".join(f"  - {line}" for line in [*problems[:NAMED], *more])
        raise ValueError(f"{len(problems)} problems with the data:\n{lines}")
    if problems:
        raise ValueError(problems[0])


def resize_pixels(pixels: np.ndarray, size: tuple[int, int], box: Box | None = None) -> np.ndarray:
    """(H, W, C) of any type -> (h, w, C) for size (w, h), antialiased, from the part of the image in `box`."""
    if pixels.dtype == np.uint8 and pixels.shape[2] == 3:
        return np.asarray(Image.fromarray(pixels).resize(size, BILINEAR, box=box))
    is_byte = pixels.dtype == np.uint8
    planes = (pixels if is_byte else pixels.astype(np.float32)).transpose(2, 0, 1).copy()  # (C, H, W)
    resized = np.stack([np.asarray(Image.fromarray(plane).resize(size, BILINEAR, box=box)) for plane in planes], axis=2)
    return resized.round().clip(0, 65535).astype(np.uint16) if pixels.dtype == np.uint16 else resized


def _if_turned(image: str) -> str:
    """What to say of a mask whose width and height are those of its image swapped."""
    if not orientation_swaps(image):
        return ""
    return (
        " once it is turned by its EXIF orientation, and the mask is not: turn it too, or remove the orientation "
        "from the image"
    )


def mask_table(classes: int, values: dict[int, int] | None = None) -> np.ndarray:
    """(256,) int16: the class id of each value a mask may hold, -1 where none; `values` renames them.

    >>> mask_table(2, {1: 1, 2: 0, 3: 255})[:5].tolist()
    [-1, 1, 0, 255, -1]
    >>> mask_table(2)[[0, 1, 2, 255]].tolist()
    [0, 1, -1, 255]
    """
    values = values or {**{k: k for k in range(classes)}, IGNORE: IGNORE}
    table = np.full(256, -1, dtype=np.int16)
    for value, target in values.items():
        if not 0 <= value <= 255 or not (0 <= target < classes or target == IGNORE):
            raise ValueError(
                f"a mask value 0..255 becomes a class 0..{classes - 1} or {IGNORE} (ignored), got {value} -> {target}"
            )
        table[value] = target
    return table


def square_box(size: tuple[int, int], fit: Fit, crop: Tensor | None = None) -> Box:
    """The part of an image (width, height) to keep, in pixels: left, top, right, bottom."""
    width, height = size
    wide, high = (width, height) if fit == "squash" else (min(width, height),) * 2
    x, y = (width - wide) / 2, (height - high) / 2
    if crop is None:
        return x, y, x + wide, y + high
    left, top, right, bottom = crop_boxes(crop[None], 1, 1)[0].tolist()  # of the square that it becomes
    return x + left * wide, y + top * high, x + right * wide, y + bottom * high


def why(path: str, error: Exception) -> str:
    """Why a file cannot be used; a damaged one can fail anywhere in Pillow. What can be installed is no fault of it."""
    if isinstance(error, ImportError):
        raise error
    return f"{path} ({error or type(error).__name__})"


def list_bad(bad: Sequence[str], total: int) -> str:
    """How many files are bad, and the first of them by name; a reason that many share stands behind the last of them.

    >>> list_bad([f"{name}.png (grey)" for name in "abcd"], 9)
    '4 of 9 files cannot be used: a.png, b.png, c.png, d.png (grey)'
    """
    by_reason: dict[str, list[str]] = {}
    for sentence in bad[:NAMED]:
        found = re.fullmatch(r"(.+?\.\w+)( \(.+\))", sentence, re.DOTALL)  # as `why` writes it
        file, reason = found.groups() if found else (sentence, "")
        by_reason.setdefault(reason, []).append(file)
    groups = [
        [", ".join(files) + reason] if len(files) > 3 else [file + reason for file in files]
        for reason, files in by_reason.items()
    ]
    named = ", ".join(chain(*groups))
    more = f" and {len(bad) - NAMED} more" if len(bad) > NAMED else ""
    return f"{len(bad)} of {total:,} files cannot be used: {printable(named)}{more}"


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]}×{size[1]}"
