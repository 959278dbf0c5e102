"""Mixup and cutmix: neighbours in the batch exchange part of themselves, labels in proportion.

Neighbours (2j, 2j+1) are partners. The order is random already, and a pair is never split between ranks, so any number
of processes sees the same mixtures.
"""

from __future__ import annotations

import torch
from torch import Tensor


def mix(images: Tensor, targets: Tensor, draws: dict[str, Tensor], cutmix_share: float) -> tuple[Tensor, Tensor]:
    """Mixed images (B, C, H, W) and soft labels (B, K); a last image without a partner stays as it is.

    Boxes go through all slices of a volume and all frames of a clip.
    """
    number, (height, width) = len(images), images.shape[-2:]
    device = images.device
    here = torch.arange(number, device=device)
    partner = (here ^ 1).clamp(max=number - 1)
    first = here - here % 2  # both of a pair use the numbers of its first

    x, y, coin = draws["mix"].to(device)[first].unbind(1)
    cut = coin < cutmix_share
    side = (1 - draws["cutmix"].to(device)[first]).sqrt()  # of a box that covers this share of the image
    box = box_mask(x, y, side, side, height, width)  # (B, 1, H, W)
    keep = torch.where(cut, 1 - box.float().mean((1, 2, 3)), draws["mixup"].to(device)[first])  # (B,) share of its own
    weight = torch.where(cut[:, None, None, None], (~box).float(), keep[:, None, None, None])
    weight = weight if images.ndim == 4 else weight[:, None]
    return torch.lerp(images[partner], images, weight), torch.lerp(targets[partner], targets, keep[:, None])


def box_mask(x: Tensor, y: Tensor, wide: Tensor, high: Tensor, height: int, width: int) -> Tensor:
    """(B, 1, H, W): True in a box of relative size wide×high, placed at x, y in [0, 1] of the room it has."""
    columns, rows = (wide.clamp(max=1) * width).round(), (high.clamp(max=1) * height).round()
    left, top = (x * (width - columns)).round(), (y * (height - rows)).round()
    across, down = torch.arange(width, device=x.device), torch.arange(height, device=x.device)
    in_columns = (across >= left[:, None]) & (across < (left + columns)[:, None])  # (B, W)
    in_rows = (down >= top[:, None]) & (down < (top + rows)[:, None])  # (B, H)
    return (in_rows[:, :, None] & in_columns[:, None, :])[:, None]
