"""moving-digits: real handwritten digits that move left, right, up or down, bright on grey or dark on grey.

Made by seed from scikit-learn's digits, without a download; train, val and test share no digit. What is asked for is
the direction. A clip played backwards shows the opposite direction, and nothing else distinguishes the two.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from tcpvit.data.digits_on_photos import PARTS, digit_images
from tcpvit.data.image_set import Splits
from tcpvit.data.volumes.sets import Clips
from tcpvit.memory import check_memory
from tcpvit.validation import Count, Listed, Seed

CLASSES = ("left", "right", "up", "down")
STEPS = torch.tensor([[-1.0, 0.0], [1.0, 0.0], [0.0, -1.0], [0.0, 1.0]])  # x, y of each class
GREY, INK = 128, 127  # of the background, and how far a stroke is from it: polarity is an exact change of sign
HEIGHT, SPEED = (14.0, 18.0), (0.8, 1.6)  # of the digit in pixels, and in pixels a frame, of clips of 32×32


def load(
    *,
    seed: Seed,
    frames: Count = 8,
    image_size: Count = 32,
    polarity: Literal["random", "bright"] = "random",
    sizes: Listed[tuple[Count, Count, Count]] = (4_000, 1_000, 1_000),
) -> Splits:
    """Make the three parts, of `sizes` clips with `frames` grey frames of `image_size` pixels."""
    needed = 5 * sum(sizes) * frames * image_size**2
    check_memory(needed, f"{sum(sizes):,} clips of {frames}×{image_size}×{image_size}", "make fewer with sizes")
    parts = (make_part(part, size, seed, frames, image_size, polarity) for part, size in zip(PARTS, sizes, strict=True))
    return Splits("moving-digits", *parts)


def make_part(part: str, number: int, seed: int, frames: int, side: int, polarity: str, *, chunk: int = 500) -> Clips:
    """`number` clips of one part, all directions equally often."""
    random = np.random.RandomState([seed, 2 + PARTS.index(part)])
    labels = torch.from_numpy(random.permutation(np.arange(number) % len(CLASSES)))
    made = [_compose(part, some, frames, side, polarity, random) for some in labels.split(chunk)]
    centre = (GREY / 255,)
    return Clips(
        torch.cat(made), labels, classes=CLASSES, source=f"moving-digits/{part}", mean=centre, std=(INK / 255,)
    )


def _compose(part: str, labels: Tensor, frames: int, side: int, polarity: str, random: np.random.RandomState) -> Tensor:
    """Clips (n, 1, T, H, W), uint8."""
    number = len(labels)
    digits, _ = digit_images(part)
    glyphs = digits[torch.from_numpy(random.randint(0, len(digits), number))]  # (n, 1, 40, 40)
    height = torch.from_numpy(random.uniform(*HEIGHT, number)).float() / 32  # 1 is the whole frame, which is [-1, 1]²
    speed = torch.from_numpy(random.uniform(*SPEED, number)).float() / 16
    time = torch.arange(frames) - (frames - 1) / 2  # the middle of the clip is the middle of the way
    way = STEPS[labels][:, None] * speed[:, None, None] * time[None, :, None]  # (n, T, 2)
    room = (1 - height[:, None] - way.abs().amax(1)).clamp(min=0)
    centre = torch.from_numpy(random.uniform(-1, 1, (number, 2))).float() * room
    places = (centre[:, None] + way).flatten(0, 1)  # (n·T, 2)
    scale = (1 / (1.25 * height)).repeat_interleave(frames)  # the border of a glyph is a tenth on each side
    zero = torch.zeros_like(scale)
    theta = torch.stack([scale, zero, -scale * places[:, 0], zero, scale, -scale * places[:, 1]], 1).view(-1, 2, 3)
    grid = F.affine_grid(theta, [number * frames, 1, 2 * side, 2 * side], align_corners=False)
    drawn = F.avg_pool2d(F.grid_sample(glyphs.repeat_interleave(frames, 0), grid, align_corners=False), 2)
    sign = torch.from_numpy(random.choice([-1.0, 1.0], number)).float() if polarity == "random" else torch.ones(number)
    ink = drawn.view(number, 1, frames, side, side) * sign.view(-1, 1, 1, 1, 1)
    return (GREY + INK * ink).round().to(torch.uint8)
