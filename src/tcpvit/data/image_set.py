"""Images in memory: tensors of pixels with labels or masks, and the three parts a set is loaded as.

Volumes and clips are images of three axes, (N, C, T, H, W).
"""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import Self

from tcpvit.memory import check_memory

IGNORE = 255  # the value of a mask's pixels that no loss and no metric counts
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# The value that counts as 1 in the mean and the deviation of a set; float images are taken as they are.
PIXEL_SCALE = {torch.uint8: 255.0, torch.uint16: 65535.0, torch.float32: 1.0}

Task = Literal["classification", "segmentation"]
Example = tuple[np.ndarray, np.ndarray]  # an image and its target


@dataclass(frozen=True)
class Batch:
    """Raw images as a set hands them out, before augmentation."""

    images: Tensor  # (B, C, H, W) or (B, C, T, H, W) uint8, uint16 or float32
    targets: Tensor  # (B,) int64 or (B, H, W) or (B, T, H, W) uint8
    kept: Tensor | None = None  # positions of the asked-for images that could be read; None: all of them
    bad: tuple[str, ...] = ()  # a sentence for each that could not

    @classmethod
    def of(cls, read: Iterable[Example | str], shape: tuple[int, ...], dtype: torch.dtype) -> Batch:
        """Images of that shape with their targets, one by one; for one that could not be read, a sentence."""
        found = list(read)
        examples = [each for each in found if not isinstance(each, str)]
        kept = [position for position, each in enumerate(found) if not isinstance(each, str)]
        if not examples:
            images, targets = torch.empty(0, *shape, dtype=dtype), torch.empty(0, dtype=torch.int64)
        else:
            images, targets = (torch.from_numpy(np.stack(parts)) for parts in zip(*examples, strict=True))
        bad = tuple(each for each in found if isinstance(each, str))
        return cls(images, targets, torch.tensor(kept, dtype=torch.int64) if bad else None, bad)


@dataclass(frozen=True, eq=False, kw_only=True)
class Images(ABC):
    """A set of images, in memory (`ImageSet`) or on disk (`ImageFiles`).

    `source` names the published part that `indices` counts in, so that a subset can be saved and found again.
    """

    unit: ClassVar[str] = "images"  # what there are so many of
    metric: ClassVar[str | None] = None  # what is measured, where that is not what the task measures

    classes: tuple[str, ...]
    source: str
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    indices: Tensor = None  # type: ignore[assignment]  # (N,) positions in the source; all of it by default
    names: str = ""  # a digest of the names of the source's files; empty where its name says which they are
    notes: tuple[str, ...] = ()  # what a reader of the results should know

    def __post_init__(self) -> None:
        if self.indices is None:
            object.__setattr__(self, "indices", torch.arange(len(self)))

    @property
    def task(self) -> Task:
        """A label for each image, or for each pixel."""
        return "segmentation" if self.labels is None else "classification"

    @property
    def scale(self) -> float:
        """The value of a pixel that counts as 1 in `mean` and `std`."""
        return PIXEL_SCALE[self.dtype]

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """The type of the pixels: uint8, uint16 or float32."""

    @property
    def wavelengths(self) -> tuple[float, ...] | None:
        """The wavelengths of the channels, in nanometres, where they are known."""
        return None

    @property
    @abstractmethod
    def labels(self) -> Tensor | None:
        """(N,) class ids; None for segmentation."""

    @property
    @abstractmethod
    def image_shape(self) -> tuple[int, ...]:
        """(C, H, W), of volumes and clips (C, T, H, W)."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def fetch(self, rows: Tensor, crops: Tensor | None = None) -> Batch:
        """The images at `rows`; with `crops`, (B, 4) as `crop_boxes` takes them, a part of each made the whole."""

    @abstractmethod
    def subset(self, rows: Tensor) -> Self:
        """The images at `rows`, remembering where they stood in the source."""


@dataclass(frozen=True, eq=False)
class ImageSet(Images):
    """Images in memory with their labels (classification) or masks (segmentation)."""

    images: Tensor  # (N, C, H, W) or (N, C, T, H, W), uint8, uint16 or float32
    targets: Tensor  # (N,) int64 class ids, or (N, H, W) or (N, T, H, W) uint8 class ids with 255 = ignored

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_tensors(self)

    def __len__(self) -> int:
        return len(self.images)

    @property
    def dtype(self) -> torch.dtype:
        """The type of the pixels."""
        return self.images.dtype

    @property
    def labels(self) -> Tensor | None:
        """(N,) class ids; None for segmentation."""
        return self.targets if self.targets.ndim == 1 else None

    @property
    def image_shape(self) -> tuple[int, ...]:
        """(C, H, W) or (C, T, H, W)."""
        return tuple(self.images.shape[1:])

    def fetch(self, rows: Tensor, crops: Tensor | None = None) -> Batch:
        """The images at `rows`; with `crops` a part of each, enlarged to the whole."""
        rows = rows.to(self.images.device)
        images, targets = self.images.index_select(0, rows), self.targets.index_select(0, rows)
        if crops is None:
            return Batch(images, targets)
        boxes = crop_boxes(crops.to(self.images.device), self.images.shape[-1], self.images.shape[-2])
        images = resample(images, boxes, "bilinear")
        return Batch(images, targets if targets.ndim == 1 else resample(targets[:, None], boxes, "nearest")[:, 0])

    def subset(self, rows: Tensor) -> Self:
        """The images at `rows`, remembering where they stood in the source."""
        rows = torch.as_tensor(rows, dtype=torch.int64)
        return replace(self, images=self.images[rows], targets=self.targets[rows], indices=self.indices[rows])

    def to(self, device: torch.device | str) -> ImageSet:
        """The same set on another device: a set that fits on the GPU never waits for the host."""
        return replace(self, images=self.images.to(device), targets=self.targets.to(device))

    def resized(self, size: int | tuple[int, ...]) -> ImageSet:
        """The set at `size`×`size`, volumes at `size`³: smooth and without aliasing, masks by the nearest pixel."""
        targets, sides = self.targets, _sides(size, self.images.ndim - 2)
        if targets.ndim > 1:
            targets = F.interpolate(targets[:, None], size=sides, mode="nearest-exact")[:, 0]
        return replace(self, images=resize_images(self.images, size), targets=targets)


@dataclass(frozen=True)
class Splits:
    """What training sees (`train`), what it is watched on (`val`) and what is reported at the end (`test`).

    Where a set publishes one held-out part only, `val` and `test` are that same part, as in the paper.
    """

    name: str
    train: Images
    val: Images
    test: Images

    @classmethod
    def of(cls, name: str, parts: Mapping[str, Images]) -> Splits:
        """From train and one or both of val and test: the one that is missing is the other."""
        val, test = parts.get("val", parts.get("test")), parts.get("test", parts.get("val"))
        assert val is not None
        assert test is not None
        return cls(name, parts["train"], val, test)

    def map(self, change: Callable[[Images], Images]) -> Splits:
        """Every part changed, each once."""
        val = change(self.val)
        test = val if self.test is self.val else change(self.test)
        return Splits(self.name, change(self.train), val, test)

    def parts(self) -> dict[str, Images]:
        """The parts by name, each once."""
        parts = {"train": self.train, "val": self.val, "test": self.test}
        return parts if self.test is not self.val else {"train": self.train, "val": self.val}

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the results should know about the data, each once."""
        return tuple(dict.fromkeys(note for part in self.parts().values() for note in part.notes))

    def indices(self) -> dict[str, dict[str, Any]]:
        """Which images of which published part each part holds, ready for JSON."""
        return {
            name: {"source": part.source, "indices": part.indices.tolist()}
            | ({"names": part.names} if part.names else {})
            for name, part in self.parts().items()
        }


def same_images(saved: Mapping[str, Mapping[str, Any]], found: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether both, as `Splits.indices` gives them, are the same images; earlier versions saved no names.

    >>> saved = {"train": {"source": "pets/train", "indices": [0, 2]}}
    >>> same_images(saved, {"train": {"source": "pets/train", "indices": [0, 2], "names": "5f0c"}})
    True
    """
    return saved.keys() == found.keys() and all(
        found[part].get(key) == value for part, about in saved.items() for key, value in about.items()
    )


def digest_of_names(files: Iterable[str | Path], folder: str | Path) -> str:
    """A few letters that change when a file is added, removed or renamed, wherever the folder lies."""
    names = (os.path.relpath(file, folder).replace(os.sep, "/") for file in files)
    return hashlib.sha256("\0".join(names).encode(errors="surrogateescape")).hexdigest()[:16]


def concatenate(sets: Sequence[ImageSet], source: str) -> ImageSet:
    """Several sets of the same classes and shape as one; `indices` count through them in order."""
    return replace(
        sets[0],
        images=torch.cat([part.images for part in sets]),
        targets=torch.cat([part.targets for part in sets]),
        source=source,
        indices=torch.arange(sum(map(len, sets))),
        notes=tuple(dict.fromkeys(note for part in sets for note in part.notes)),
    )


def _sides(size: int | tuple[int, ...], axes: int) -> tuple[int, ...]:
    """A length for each axis."""
    sides = (size,) * axes if isinstance(size, int) else size
    if len(sides) != axes:
        raise ValueError(f"image_size has {len(sides)} sides, the images of this set have {axes}; give one, or {axes}")
    return sides


def resize_images(images: Tensor, size: int | tuple[int, ...], *, chunk: int = 1024) -> Tensor:
    """(N, C, h, w) -> (N, C, size, size) of the same type, antialiased, a chunk at a time to bound the memory."""
    sides = _sides(size, images.ndim - 2)
    if images.shape[2:] == sides:
        return images.contiguous()
    needed = prod(images.shape[:2]) * prod(sides) * images.element_size()
    check_memory(needed, f"{len(images):,} images of {'×'.join(map(str, sides))}", "choose a smaller image_size")
    some = images.split(chunk if images.ndim == 4 else max(chunk // images.shape[2], 1))
    return torch.cat([_as_type(_interpolate(part.float(), sides), images.dtype) for part in some])


def _interpolate(images: Tensor, sides: tuple[int, ...]) -> Tensor:
    """Antialiased; torch knows that for planes alone, so volumes are averaged where they shrink."""
    if len(sides) == 2:
        return F.interpolate(images, size=sides, mode="bilinear", antialias=True, align_corners=False)
    smaller = tuple(min(side, old) for side, old in zip(sides, images.shape[2:], strict=True))
    return F.interpolate(F.interpolate(images, smaller, mode="area"), sides, mode="trilinear", align_corners=False)


def crop_boxes(crops: Tensor, width: int, height: int) -> Tensor:
    """(B, 4) left, top, right, bottom in [0, 1] of crops (B, 4): share of the area, aspect ratio, place x, y in [0, 1].

    >>> crop_boxes(torch.tensor([[0.25, 1.0, 0.0, 1.0]]), 100, 100)
    tensor([[0.0000, 0.5000, 0.5000, 1.0000]])
    """
    area, ratio, x, y = crops.unbind(1)
    side = (area * width * height).sqrt()
    wide = (side * ratio.sqrt() / width).clamp(max=1)
    high = (side / ratio.sqrt() / height).clamp(max=1)
    left, top = x * (1 - wide), y * (1 - high)
    return torch.stack([left, top, left + wide, top + high], 1)


def resample(images: Tensor, boxes: Tensor, mode: str) -> Tensor:
    """Enlarge the box (left, top, right, bottom in [0, 1]) of each image (B, C, H, W) to the whole image.

    Every slice of a volume and every frame of a clip, (B, C, T, H, W), is treated alike.
    """
    if images.ndim == 5:
        return resample(images.flatten(1, 2), boxes, mode).view_as(images)
    left, top, right, bottom = boxes.unbind(1)
    zero = torch.zeros_like(left)
    rows = [right - left, zero, left + right - 1, zero, bottom - top, top + bottom - 1]
    theta = torch.stack(rows, 1).view(-1, 2, 3)  # maps [-1, 1]² onto the box
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    sampled = F.grid_sample(images.float(), grid, mode=mode, padding_mode="border", align_corners=False)
    return _as_type(sampled, images.dtype)


def measure_statistics(images: Iterable[Tensor], scale: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of each band of batches (B, C, ...), in parts of `scale`; a constant band has deviation 1.

    >>> measure_statistics([torch.tensor([[[[0.0, 2.0]], [[5.0, 5.0]]]])], 1.0)
    ((1.0, 5.0), (1.0, 1.0))
    """
    count, total, squares = 0, torch.tensor(0.0), torch.tensor(0.0)
    for batch in images:
        values = batch.double().movedim(1, 0).flatten(1) / scale  # (C, B·H·W)
        count += values.shape[1]
        total = total + values.sum(1)
        squares = squares + values.square().sum(1)
    mean = total / count
    variance = (squares / count - mean.square()).clamp(min=0)
    is_constant = variance <= 1e-12 * squares / count
    std = torch.where(is_constant, 1.0, variance.sqrt())
    return tuple(mean.tolist()), tuple(std.tolist())


def _as_type(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Interpolated values as pixels of this type."""
    return values.to(dtype) if dtype.is_floating_point else values.round().clamp(0, PIXEL_SCALE[dtype]).to(dtype)


def _check_tensors(data: ImageSet) -> None:
    images, targets, classes = data.images, data.targets, len(data.classes)
    if images.dtype not in PIXEL_SCALE or images.ndim not in (4, 5):
        raise ValueError(
            f"{data.source}: images should be uint8, uint16 or float32 of shape (N, C, H, W), or volumes (N, C, T, H, "
            f"W), got {images.dtype} {tuple(images.shape)}"
        )
    if targets.shape not in ((len(images),), (len(images), *images.shape[2:])):
        raise ValueError(
            f"{data.source}: {len(images)} images of shape {tuple(images.shape[1:])} need as many labels, or masks "
            f"of the same height and width{' and depth' if images.ndim == 5 else ''}; got targets of shape "
            f"{tuple(targets.shape)}"
        )
    if len(data.mean) != images.shape[1] or len(data.std) != images.shape[1]:
        raise ValueError(
            f"{data.source}: the images have {images.shape[1]} channels, so mean and std should have as many "
            f"numbers; got {len(data.mean)} and {len(data.std)}"
        )
    outside = (targets < 0) | (targets >= classes)
    masks = targets.ndim > 1
    if masks:
        outside &= targets != IGNORE
    if outside.any():
        first = int(outside.flatten(1).any(1).nonzero()[0]) if masks else int(outside.nonzero()[0])
        raise ValueError(
            f"{data.source}: {'mask' if masks else 'label'} {first} holds "
            f"{int(targets[first][outside[first]].flatten()[0])}, "
            f"outside the {classes} classes 0..{classes - 1}"
        )
