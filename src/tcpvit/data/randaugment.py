"""RandAugment (Cubuk et al., 2020) on a batch: each image its own operations, applied group by group.

The operations and their strengths are torchvision's; images that drew the same operation and sign are processed in
one call, so a batch costs as many calls as there are operations, not as many as there are images.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tcpvit.compat import repair_torchvision
from tcpvit.errors import import_extra

STRONGEST = 30  # magnitudes run from 0 to this


def randaugment(images: Tensor, numbers: Tensor, magnitude: int) -> Tensor:
    """Apply operations to images (B, 3, H, W) uint8; `numbers` is (B, operations, 2): which one, which sign."""
    if images.shape[1] != 3 or images.dtype != torch.uint8:
        raise ValueError(
            f"RandAugment is for images of 3 channels of 8 bits, got {images.shape[1]} of {images.dtype}; use shift, "
            "flip and erase"
        )
    table = _operations(magnitude, (images.shape[2], images.shape[3]))
    images = images.clone()
    for which, sign in numbers.permute(1, 2, 0):
        codes = 2 * (which * len(table)).long() + (sign < 0.5)  # (B,): the operation and its sign
        for code in codes.unique().tolist():
            rows = (codes == code).nonzero()[:, 0].to(images.device)
            images[rows] = table[code // 2](images[rows], -1.0 if code % 2 else 1.0)
    return images


def _operations(magnitude: int, size: tuple[int, int]) -> list[Callable[[Tensor, float], Tensor]]:
    """The fourteen operations at a magnitude in 0..30, for images of `size`; the second argument is the sign."""
    functional = _torchvision_functional()

    def affine(x: Tensor, **change: Any) -> Tensor:
        return functional.affine(x, **{"angle": 0.0, "translate": [0, 0], "scale": 1.0, "shear": [0.0, 0.0]} | change)

    def up_to(strongest: float) -> float:
        return float(torch.linspace(0, strongest, STRONGEST + 1)[magnitude])

    down, across = (up_to(150 / 331 * side) for side in size)
    skew, turn, colour = math.degrees(math.atan(up_to(0.3))), up_to(30), up_to(0.9)
    return [
        lambda x, sign: x,
        lambda x, sign: affine(x, shear=[sign * skew, 0.0], center=[0, 0]),
        lambda x, sign: affine(x, shear=[0.0, sign * skew], center=[0, 0]),
        lambda x, sign: affine(x, translate=[int(sign * across), 0]),
        lambda x, sign: affine(x, translate=[0, int(sign * down)]),
        lambda x, sign: functional.rotate(x, sign * turn),
        lambda x, sign: functional.adjust_brightness(x, 1 + sign * colour),
        lambda x, sign: functional.adjust_saturation(x, 1 + sign * colour),
        lambda x, sign: functional.adjust_contrast(x, 1 + sign * colour),
        lambda x, sign: functional.adjust_sharpness(x, 1 + sign * colour),
        lambda x, sign: functional.posterize(x, 8 - round(up_to(4))),
        lambda x, sign: functional.solarize(x, 255 * (1 - up_to(1))),
        lambda x, sign: functional.autocontrast(x),
        lambda x, sign: functional.equalize(x),
    ]


def _torchvision_functional() -> Any:
    repair_torchvision()
    return import_extra("torchvision.transforms.v2.functional", "RandAugment uses torchvision's operations", "vision")
