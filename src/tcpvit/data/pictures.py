"""Picture files on disk: decoded one batch at a time, or all at once into memory; bad files are named."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
import torch
from PIL import ExifTags, Image, ImageOps
from rich.console import Console
from rich.progress import track
from torch import Tensor

from tcpvit.data.image_set import IGNORE, Batch, ImageSet, Pictures, crop_boxes

EXTENSIONS = frozenset(Image.registered_extensions()) & {
    ".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp",
}  # fmt: skip
Fit = Literal["crop", "squash"]
OnBad = Literal["stop", "skip"]
BILINEAR, NEAREST = Image.Resampling.BILINEAR, Image.Resampling.NEAREST  # Pillow's bilinear is antialiased
Box = tuple[float, float, float, float]
NAMED = 10  # how many bad files an error or a note names
SPECIAL = "a pipe, socket or device, not a file"
SKIP = "skip bad files with on_bad=skip (--set data.options.on_bad=skip)"


@dataclass(frozen=True, eq=False)
class PictureFiles(Pictures):
    """Files with their labels, or with the files of their masks; decoded when fetched.

    `fit` says how a picture becomes square: "crop" keeps the middle, "squash" the whole with its aspect ratio lost.
    """

    files: tuple[str, ...]
    targets: Tensor | tuple[str, ...]  # (N,) class ids, or the masks
    image_size: int
    fit: Fit = "crop"
    on_bad: OnBad = "stop"
    mask_values: dict[int, int] | None = None  # the class of each value of a mask, where it is not the value itself

    def __post_init__(self) -> None:
        super().__post_init__()
        mask_table(len(self.classes), self.mask_values)  # says what is wrong with them
        if self.fit not in get_args(Fit) or self.on_bad not in get_args(OnBad):
            raise ValueError(
                f'fit is "crop" or "squash" and on_bad "stop" or "skip", got {self.fit!r} and {self.on_bad!r}'
            )

    def __len__(self) -> int:
        return len(self.files)

    @property
    def labels(self) -> Tensor | None:
        """(N,) class ids; None for segmentation."""
        return self.targets if isinstance(self.targets, Tensor) else None

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        return 3, self.image_size, self.image_size

    def subset(self, rows: Tensor) -> PictureFiles:
        """The files at `rows`, remembering where they stood in the source."""
        keep = rows.tolist()
        return replace(
            self,
            files=tuple(self.files[i] for i in keep),
            targets=self.targets[rows] if isinstance(self.targets, Tensor) else tuple(self.targets[i] for i in keep),
            indices=self.indices[rows],
        )

    def fetch(self, rows: Tensor, crops: Tensor | None = None) -> Batch:
        """Decode the pictures at `rows`, with `crops` a part of each; a bad one is left out and named."""
        chosen = [None] * len(rows) if crops is None else list(crops)
        return self._collect(self._decode(i, crop) for i, crop in zip(rows.tolist(), chosen, strict=True))

    def in_memory(self) -> ImageSet:
        """Decode everything once, with threads; bad files stop the run, all of them named, or are skipped."""
        return in_memory([self])[0]

    def _decode_all(self) -> Batch:
        with ThreadPoolExecutor(min(32, os.cpu_count() or 1)) as pool:
            decoded = pool.map(self._decode, range(len(self)))
            return self._collect(_with_progress(decoded, len(self), self.source))

    def _as_image_set(self, batch: Batch) -> ImageSet:
        """What could be decoded of all the pictures; the rest is noted."""
        kept = batch.kept if batch.kept is not None else torch.arange(len(self))
        return ImageSet(
            batch.images,
            batch.targets,
            classes=self.classes,
            source=self.source,
            mean=self.mean,
            std=self.std,
            indices=self.indices[kept],
            notes=self.notes + ((f"{list_bad(batch.bad, len(self))}; skipped",) if batch.bad else ()),
        )

    def _decode(self, i: int, crop: Tensor | None = None) -> tuple[np.ndarray, np.ndarray] | str:
        """The picture (3, H, W) and its target, or a sentence that says why there is none."""
        try:
            picture = read_picture(self.files[i])
        except Exception as error:  # a damaged file can fail anywhere in Pillow
            return f"{self.files[i]} ({error or type(error).__name__})"
        box = _box(picture, self.fit, crop)
        pixels = np.asarray(_to_square(picture, self.image_size, box)).transpose(2, 0, 1)
        target = self.targets[i]
        if isinstance(target, Tensor):
            return pixels, target.numpy()
        try:
            return pixels, self._read_mask(target, self.files[i], picture.size, box)
        except Exception as error:
            return f"{target} ({error or type(error).__name__})"

    def _read_mask(self, path: str, picture: str, picture_size: tuple[int, int], box: Box) -> np.ndarray:
        """Class ids (H, W) uint8."""
        mask = read_mask(path)
        if mask.size != picture_size:
            raise ValueError(
                f"{_by(mask.size)} pixels, but its picture has {_by(picture_size)}"
                f"{_if_turned(picture) if mask.size == picture_size[::-1] else ''}"
            )
        ids = mask_table(len(self.classes), self.mask_values)[np.asarray(mask)]  # -1 where the value is not allowed
        if (ids < 0).any():
            values = sorted(set(np.asarray(mask)[ids < 0].tolist()))
            raise ValueError(f"values {', '.join(map(str, values[:5]))} outside the {len(self.classes)} classes")
        return np.asarray(_to_square(Image.fromarray(ids.astype(np.uint8)), self.image_size, box, NEAREST))

    def _collect(self, decoded: Iterable[tuple[np.ndarray, np.ndarray] | str]) -> Batch:
        images, targets, kept, bad = [], [], [], []
        for position, item in enumerate(decoded):
            if isinstance(item, str):
                bad.append(item)
            else:
                images.append(item[0])
                targets.append(item[1])
                kept.append(position)
        return Batch(
            torch.from_numpy(np.stack(images)) if images else torch.empty(0, *self.image_shape, dtype=torch.uint8),
            torch.from_numpy(np.stack(targets)) if targets else torch.empty(0, dtype=torch.int64),
            torch.tensor(kept, dtype=torch.int64) if bad else None,
            tuple(bad),
        )


def in_memory(parts: Sequence[PictureFiles]) -> list[ImageSet]:
    """Decode the parts of a set; the bad files of all parts stop the run, named together, or are skipped."""
    batches = [part._decode_all() for part in parts]
    if bad := [sentence for batch in batches for sentence in batch.bad]:
        named = list_bad(bad, sum(map(len, parts)))
        for part, batch in zip(parts, batches, strict=True):
            if batch.bad and not len(batch.images):
                raise ValueError(f"{named}; no picture of {part.source} is left: mend them")
        if any(part.on_bad == "stop" for part in parts):
            raise ValueError(f"{named}; mend or remove them, or {SKIP}")
    return [part._as_image_set(batch) for part, batch in zip(parts, batches, strict=True)]


def read_picture(path: str) -> Image.Image:
    """An RGB picture, turned the way its camera held it."""
    with _open(path) as picture:
        if picture.mode.startswith(("I", "F")):
            raise ValueError(f"more than 8 bits per channel, mode {picture.mode}; convert it to 8")
        return ImageOps.exif_transpose(picture).convert("RGB")


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


def is_special(path: str) -> bool:
    """Whether it is a pipe, a socket or a device, which might never end; False also if nothing is there."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def _open(path: str) -> Image.Image:
    if is_special(path):
        raise ValueError(SPECIAL)
    return Image.open(path)


def _if_turned(picture: str) -> str:
    """What to say of a mask whose width and height are those of its picture swapped."""
    with Image.open(picture) as stored:
        if stored.getexif().get(ExifTags.Base.Orientation) not in (5, 6, 7, 8):  # those that swap them
            return ""
    return (
        " once it is turned by its EXIF orientation, and the mask is not: turn it too, or remove the orientation "
        "from the picture"
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


def _box(picture: Image.Image, fit: Fit, crop: Tensor | None) -> Box:
    """The part of the picture to keep, in pixels: left, top, right, bottom."""
    width, height = picture.size
    wide, high = (width, height) if fit == "squash" else (min(width, height),) * 2
    x, y = (width - wide) / 2, (height - high) / 2
    if crop is None:
        return x, y, x + wide, y + high
    left, top, right, bottom = crop_boxes(crop[None], 1, 1)[0].tolist()  # of the square that it becomes
    return x + left * wide, y + top * high, x + right * wide, y + bottom * high


def _to_square(picture: Image.Image, size: int, box: Box, how: Image.Resampling = BILINEAR) -> Image.Image:
    return picture.resize((size, size), how, box=box)


def _with_progress(items: Iterable, total: int, what: str) -> Iterator:
    console = Console(stderr=True)
    yield from track(items, f"reading {what}", total, console=console, transient=True, disable=not console.is_terminal)


def list_bad(bad: Sequence[str], total: int) -> str:
    """How many files are bad, and the first of them by name."""
    more = f" and {len(bad) - NAMED} more" if len(bad) > NAMED else ""
    return f"{len(bad)} of {total:,} files cannot be used: {', '.join(bad[:NAMED])}{more}"


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]}×{size[1]}"
