"""Preprocessing as part of a graph: pixels of any size in, probabilities out, resized as Pillow does in training.

Resizing is one matrix product for each side: a triangle filter, wider where the image is reduced, as Pillow's bilinear.
Bytes are rounded after each side, as Pillow rounds them. Sizes are tensors here, so that a graph takes any.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tcpvit.data.image_set import PIXEL_SCALE
from tcpvit.data.images import Fit


class FromPixels(nn.Module):
    """A model with its preprocessing: pixels (B, C, *any size) -> probabilities of the classes.

    Those of a segmenter are enlarged to the size of its images, (B, classes, *any size).
    """

    centre: Tensor
    spread: Tensor

    def __init__(self, model: nn.Module, about: dict[str, Any], fit: Fit, dtype: torch.dtype):
        super().__init__()
        self.model, self.dtype, self.fit = model, dtype, fit
        self.size = tuple(about["image_shape"][1:])
        self.segments = about["task"] == "segmentation"
        sides = [1] * len(self.size)
        for name, values in (("centre", about["mean"]), ("spread", about["std"])):
            scaled = torch.tensor(values, dtype=torch.float64) * PIXEL_SCALE[dtype]
            self.register_buffer(name, scaled.float().view(-1, *sides))

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, C, *any size) -> (B, classes), or (B, classes, *any size)."""
        resized = self._resized(pixels.float())
        logits = self.model((resized - self.centre) / self.spread)
        if self.segments:
            for axis in range(2, pixels.ndim):
                places = pixels.shape[axis]
                logits = along(logits, axis, enlarging(self.size[axis - 2], places, like=logits))
        return torch.softmax(logits, dim=1)

    def _resized(self, x: Tensor) -> Tensor:
        lengths = [length_of(x, axis) for axis in range(2, x.ndim)]
        shortest = torch.stack(lengths).amin(dim=0)
        for axis in range(x.ndim - 1, 1, -1):  # across before down, as Pillow
            whole = lengths[axis - 2]
            kept = shortest if self.fit == "crop" else whole
            x = along(x, axis, reducing(x.shape[axis], whole, kept, self.size[axis - 2], like=x))
            x = torch.floor(x + 0.5) if self.dtype == torch.uint8 else x
        return torch.floor(x + 0.5) if self.dtype == torch.uint16 else x


def length_of(x: Tensor, axis: int) -> Tensor:
    """The length of an axis as a tensor, which a graph can compute with."""
    return torch.ones(x.shape[axis], device=x.device).sum()


def along(x: Tensor, axis: int, matrix: Tensor) -> Tensor:
    """The product of a matrix (new, old) with one axis of x."""
    return (x.movedim(axis, -1) @ matrix.mT).movedim(-1, axis)


def reducing(places: int, whole: Tensor, kept: Tensor, new: int, like: Tensor) -> Tensor:
    """The matrix (new, places) that resamples the middle `kept` of `whole` pixels to `new`, antialiased.

    >>> x = torch.zeros(4)
    >>> reducing(4, torch.tensor(4.0), torch.tensor(4.0), 2, like=x)
    tensor([[0.4286, 0.4286, 0.1429, 0.0000],
            [0.0000, 0.1429, 0.4286, 0.4286]])
    """
    step = kept / new
    centres = (whole - kept) / 2 + (torch.arange(new, device=like.device) + 0.5) * step
    return triangles(places, centres, step.clamp_min(1.0))


def enlarging(old: int, places: int, like: Tensor) -> Tensor:
    """The matrix (places, old) of plain bilinear interpolation, as F.interpolate has it."""
    new = torch.arange(places, device=like.device) + 0.5
    centres = new * (old / torch.ones(places, device=like.device).sum())
    return triangles(old, centres.clamp(0.5, old - 0.5), torch.ones((), device=like.device))


def triangles(places: int, centres: Tensor, reach: Tensor) -> Tensor:
    """Rows of weights (centres, places) that fall linearly to 0 at `reach` from each centre, and sum to 1."""
    distance = (torch.arange(places, device=centres.device) + 0.5 - centres[:, None]).abs()
    weights = (1 - distance / reach).clamp_min(0.0)
    return weights / weights.sum(1, keepdim=True)
