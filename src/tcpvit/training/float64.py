"""Sums in float64, also of what lies on a device without it, such as Apple's GPUs: they are made on the CPU then."""

from __future__ import annotations

import torch
from torch import Tensor

WITHOUT = ("mps",)  # the types of devices that have no float64


def float64_device(device: torch.device | str) -> torch.device:
    """The device itself, or the CPU if it has no float64.

    >>> float64_device("cuda"), float64_device("mps")
    (device(type='cuda'), device(type='cpu'))
    """
    device = torch.device(device)
    return torch.device("cpu") if device.type in WITHOUT else device


def to_float64(tensor: Tensor) -> Tensor:
    """The tensor in float64, where that can be.

    >>> to_float64(torch.tensor(0.5))
    tensor(0.5000, dtype=torch.float64)
    """
    return tensor.to(float64_device(tensor.device)).double()
