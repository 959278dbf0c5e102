"""solid-digits: real handwritten digits as bodies in space, turned at random and noisy, 32³.

Made by seed from scikit-learn's digits, without a download; train, val and test share no digit. The strokes of a digit
are extruded along the depth. For segmentation the target is the mask of the body.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from tcpvit.data.digits_on_photos import PARTS, digit_images
from tcpvit.data.image_set import Splits, Task
from tcpvit.data.volumes.sets import Volumes
from tcpvit.memory import check_memory
from tcpvit.validation import Count, Listed, NonNegative, Seed

TILT = 35.0  # largest angle about each axis, in degrees
THICKNESS, HEIGHT = (0.25, 0.5), (0.6, 0.9)  # of the body, where 1 is the whole volume
BACKGROUND, BODY = 0.3, 0.7


def load(
    *,
    seed: Seed,
    task: Task = "classification",
    image_size: Count = 32,
    noise: NonNegative = 0.1,
    sizes: Listed[tuple[Count, Count, Count]] = (1_000, 200, 200),
) -> Splits:
    """Make the three parts, of `sizes` volumes with `image_size` voxels along each side, and so much `noise`."""
    needed = 10 * sum(sizes) * image_size**3
    check_memory(needed, f"{sum(sizes):,} volumes of {image_size}³", "make fewer with sizes, or a smaller image_size")
    parts = (make_part(part, size, seed, task, image_size, noise) for part, size in zip(PARTS, sizes, strict=True))
    return Splits("solid-digits", *parts)


def make_part(part: str, number: int, seed: int, task: Task, side: int, noise: float, *, chunk: int = 100) -> Volumes:
    """`number` volumes of one part, all digits equally often."""
    random = np.random.RandomState([seed, 7 + PARTS.index(part)])
    digits, of_digits = digit_images(part)
    chosen = torch.from_numpy(random.permutation(number)) % len(digits)
    bodies = torch.cat([_bodies(digits[some], side, random) for some in chosen.split(chunk)])  # (n, D, H, W) in [0, 1]
    values = BACKGROUND + (BODY - BACKGROUND) * bodies
    values += noise * torch.from_numpy(random.standard_normal(values.shape)).float()
    volumes = (255 * values).round().clamp(0, 255).to(torch.uint8)[:, None]
    source, centre = f"solid-digits/{part}", (0.35,)
    if task == "segmentation":
        masks = (bodies > 0.5).to(torch.uint8)
        return Volumes(volumes, masks, classes=("background", "digit"), source=source, mean=centre, std=(0.2,))
    labels = of_digits[chosen]
    return Volumes(volumes, labels, classes=tuple("0123456789"), source=source, mean=centre, std=(0.2,))


def _bodies(glyphs: Tensor, side: int, random: np.random.RandomState) -> Tensor:
    """Glyphs (n, 1, 40, 40) extruded, turned and scaled: (n, side, side, side) in [0, 1]."""
    number = len(glyphs)

    def uniform(low: float, high: float, *more: int) -> Tensor:
        return torch.from_numpy(random.uniform(low, high, (number, *more))).float()

    depth = torch.linspace(-1, 1, 21).abs()
    profile = ((uniform(*THICKNESS)[:, None] - depth) * 10 + 0.5).clamp(0, 1)  # (n, 21)
    solid = glyphs[:, :, None] * profile[:, None, :, None, None]  # (n, 1, 21, 40, 40)
    linear = _rotations(uniform(-TILT, TILT, 3) * (np.pi / 180)) / (1.25 * uniform(*HEIGHT))[:, None, None]
    centre = uniform(-0.15, 0.15, 3)[:, :, None]
    theta = torch.cat([linear, -linear @ centre], 2)  # from the volume to the body
    grid = F.affine_grid(theta, [number, 1, side, side, side], align_corners=False)
    return F.grid_sample(solid, grid, align_corners=False)[:, 0]


def _rotations(angles: Tensor) -> Tensor:
    """(n, 3) angles about the three axes -> (n, 3, 3)."""
    product = torch.eye(3).expand(len(angles), 3, 3)
    for axis, angle in enumerate(angles.unbind(1)):
        i, j = (k for k in range(3) if k != axis)
        turn = torch.eye(3).repeat(len(angles), 1, 1)
        turn[:, i, i], turn[:, i, j] = angle.cos(), -angle.sin()
        turn[:, j, i], turn[:, j, j] = angle.sin(), angle.cos()
        product = product @ turn
    return product
