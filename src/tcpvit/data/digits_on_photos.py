"""digits-on-photos: real handwritten digits in random colour, size and place on crops of real photographs, 32×32×3.

Made by seed from scikit-learn's 1,797 digits and two photographs, without a download. Train, val and test share no
digit and no region of a photograph. For segmentation the target is the mask of the digit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tcpvit.data.image_set import ImageSet, Splits, Task
from tcpvit.data.subsets import draw
from tcpvit.errors import import_extra
from tcpvit.memory import check_memory
from tcpvit.validation import Count, Listed, Seed

SIZE = 32
PARTS = ("train", "val", "test")
DIGITS = (1197, 300, 300)  # how many of the 1,797 each part uses
COLUMNS = (0.0, 0.6, 0.8, 1.0)  # the part of the photographs' width that each uses
SCALES = (1, 2, 4)  # how much photographs are reduced before a crop is taken
_GREY = torch.tensor([0.299, 0.587, 0.114])


@dataclass(frozen=True)
class Level:
    """How hard the images are."""

    height: tuple[float, float]  # of the digit, in pixels
    contrast: tuple[float, float]  # of brightness between the digit and what it covers, out of 1
    tilt: float  # largest angle, in degrees
    texture: float  # share of the photograph's own contrast that is kept
    light: float  # how bright the photograph stays; below 0.5 every digit is brighter than what it covers
    strangers: int  # other digits that look in from the sides


LEVELS = {
    "easy": Level(height=(24.0, 28.0), contrast=(0.5, 0.65), tilt=5.0, texture=0.5, light=0.48, strangers=0),
    "hard": Level(height=(16.0, 24.0), contrast=(0.25, 0.45), tilt=15.0, texture=1.0, light=1.0, strangers=2),
}


def load(
    *,
    seed: Seed,
    level: Literal["easy", "hard"] = "easy",
    task: Task = "classification",
    sizes: Listed[tuple[Count, Count, Count]] = (4_000, 1_000, 1_000),
) -> Splits:
    """Make the three parts, of `sizes` images, at the level "easy" or "hard"."""
    check_memory(sum(sizes) * 3 * SIZE**2, f"{sum(sizes):,} images of {SIZE}×{SIZE}", "make fewer with sizes")
    parts = (make_part(part, size, seed, LEVELS[level], task) for part, size in zip(PARTS, sizes, strict=True))
    return Splits("digits-on-photos", *parts)


def make_part(part: str, number: int, seed: int, level: Level, task: Task, *, chunk: int = 1000) -> ImageSet:
    """`number` images of one part, all digits equally often."""
    random = np.random.RandomState([seed, PARTS.index(part)])  # its stream is frozen: the same set everywhere
    labels = torch.from_numpy(random.permutation(np.arange(number) % 10))
    made = [_compose(part, some, level, random) for some in labels.split(chunk)]
    images, masks = (torch.cat(tensors) for tensors in zip(*made, strict=True))
    source = f"digits-on-photos/{part}"
    if task == "classification":
        return ImageSet(images, labels, classes=tuple("0123456789"), source=source)
    return ImageSet(images, masks, classes=("background", "digit"), source=source)


def _compose(part: str, labels: Tensor, level: Level, random: np.random.RandomState) -> tuple[Tensor, Tensor]:
    """Images (n, 3, 32, 32) and masks (n, 32, 32), uint8."""
    number = len(labels)
    scene = _crops(part, number, random)
    scene = torch.lerp(scene.mean((2, 3), keepdim=True), scene, level.texture) * level.light
    for _ in range(level.strangers):
        stranger = _glyphs(part, torch.from_numpy(random.randint(0, 10, number)), random)
        scene = _paint(scene, _place(stranger, level, random, aside=True), level, random)
    cover = _place(_glyphs(part, labels, random), level, random)
    scene = _paint(scene, cover, level, random)
    return (scene * 255).round().clamp(0, 255).to(torch.uint8), (cover[:, 0] > 0.5).to(torch.uint8)


def _glyphs(part: str, labels: Tensor, random: np.random.RandomState) -> Tensor:
    """A digit of each label, (n, 1, 40, 40) in [0, 1]: smooth, with a border of a tenth."""
    digits, digit_labels = digit_images(part)
    chosen = torch.empty(len(labels), dtype=torch.int64)
    for label in range(10):
        wanted, available = labels == label, (digit_labels == label).nonzero()[:, 0]
        chosen[wanted] = available[torch.from_numpy(random.randint(0, len(available), int(wanted.sum())))]
    return digits[chosen]


def _place(glyphs: Tensor, level: Level, random: np.random.RandomState, *, aside: bool = False) -> Tensor:
    """Turn, scale and move glyphs onto the frame: (n, 1, 32, 32) coverage, antialiased by drawing at twice the size."""
    number = len(glyphs)
    height = _uniform(random, *level.height, number) / SIZE  # 1 is the whole frame
    angle = _uniform(random, -level.tilt, level.tilt, number) * (np.pi / 180)
    room = (1 - height).clamp(min=0)[:, None]
    centre = torch.from_numpy(random.uniform(-1, 1, (number, 2))).float() * room  # the frame is [-1, 1]²
    if aside:  # half outside: to the left or to the right
        centre[:, 0] = torch.from_numpy(random.choice([-1.0, 1.0], number)).float() * (0.7 + 0.6 * height)
    scale = 1 / (1.25 * height)  # the border is a tenth on each side
    cos, sin = angle.cos() * scale, angle.sin() * scale
    linear = torch.stack([cos, sin, -sin, cos], 1).view(number, 2, 2)  # from the frame to the glyph
    theta = torch.cat([linear, -linear @ centre[:, :, None]], 2)
    grid = F.affine_grid(theta, [number, 1, 2 * SIZE, 2 * SIZE], align_corners=False)
    return F.avg_pool2d(F.grid_sample(glyphs, grid, align_corners=False), 2)


def _paint(scene: Tensor, cover: Tensor, level: Level, random: np.random.RandomState) -> Tensor:
    """Lay a random colour over the scene (n, 3, 32, 32), brighter or darker than what it covers by the contrast."""
    number = len(scene)
    brightness = torch.einsum("nchw,c->nhw", scene, _GREY)
    behind = (brightness * cover[:, 0]).sum((1, 2)) / cover.sum((1, 2, 3)).clamp(min=1)  # (n,)
    contrast = _uniform(random, *level.contrast, number)
    goal = torch.where(behind < 0.5, behind + contrast, behind - contrast).clamp(0, 1)
    hue = torch.from_numpy(random.uniform(-0.5, 0.5, (number, 3))).float()
    hue = hue - (hue @ _GREY)[:, None]  # of no brightness of its own
    room = torch.minimum(goal, 1 - goal)[:, None] / hue.abs().amax(1, keepdim=True)
    colour = goal[:, None] + hue * room.clamp(max=1)
    return torch.lerp(scene, colour[:, :, None, None].expand_as(scene), cover)


def _crops(part: str, number: int, random: np.random.RandomState) -> Tensor:
    """Crops (n, 3, 32, 32) in [0, 1] of the part's regions at several scales, half of them mirrored."""
    regions = _regions(part)
    which = random.randint(0, len(regions), number)
    crops = torch.empty(number, 3, SIZE, SIZE)
    for i, region in enumerate(regions):
        rows = torch.from_numpy(np.flatnonzero(which == i))
        top, left = (torch.from_numpy(random.randint(0, side - SIZE + 1, len(rows))) for side in region.shape[1:])
        windows = region.unfold(1, SIZE, 1).unfold(2, SIZE, 1)  # (3, rows, columns, 32, 32), a view
        crops[rows] = windows[:, top, left].transpose(0, 1)
    mirrored = torch.from_numpy(random.rand(number) < 0.5)
    return torch.where(mirrored[:, None, None, None], crops.flip(3), crops)


def _uniform(random: np.random.RandomState, low: float, high: float, number: int) -> Tensor:
    return torch.from_numpy(random.uniform(low, high, number)).float()


@cache
def digit_images(part: str) -> tuple[Tensor, Tensor]:
    """The glyphs (n, 1, 40, 40) and labels of a part."""
    raw = _sklearn().load_digits()
    labels = torch.from_numpy(raw.target).long()
    rows = draw(len(labels), DIGITS, seed=0, labels=labels)[PARTS.index(part)]
    ink = torch.from_numpy(raw.images[rows.numpy()]).float()[:, None] / 16  # (n, 1, 8, 8)
    ink = F.interpolate(F.pad(ink, (1, 1, 1, 1)), scale_factor=4, mode="bicubic", align_corners=False)
    return ((ink - 0.3) / 0.3).clamp(0, 1), labels[rows]  # crisp strokes with soft edges


@cache
def _regions(part: str) -> list[Tensor]:
    """The part's stripe (3, h, w) of each photograph at each scale, in [0, 1]."""
    begin, end = COLUMNS[PARTS.index(part)], COLUMNS[PARTS.index(part) + 1]
    stripes = []
    for photo in _sklearn().load_sample_images().images:
        pixels = torch.from_numpy(photo.copy()).permute(2, 0, 1).float() / 255
        width = pixels.shape[2]
        stripe = pixels[:, :, int(begin * width) : int(end * width)]
        stripes += [F.avg_pool2d(stripe[None], scale)[0] for scale in SCALES]
    return stripes


def _sklearn() -> Any:
    return import_extra("sklearn.datasets", "digits-on-photos is made from scikit-learn's digits", "demo")
