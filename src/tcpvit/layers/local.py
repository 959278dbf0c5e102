"""Neighbourhoods on the grid of tokens, for small models: overlapping patches, depthwise filters, pooled attention.

The paper's tokens meet only in attention. At a few ten thousand parameters a model has none to spare for learning what
lies beside what; these layers know it, for standard tokens (C = 1) and tensor tokens alike.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tcpvit.layers.conv import TConv2d, init_conv_

Grid = tuple[int, ...]  # how many tokens there are down and across


class ConvEmbed(nn.Module):
    """Overlapping patches: log₂ P convolutions of 3×3 with stride 2 and GELU between, (B, c, H, W) -> (C, B, N, d).

    The first reads all channels and writes hat slices (`between` features in all); each of the others stays within its
    slice, as `TConv2d` does. Without a tube they are dense and give the tokens of a standard ViT, (B, N, D).

    >>> embed = ConvEmbed(3, 4, between=24, d=16, tube=4)
    >>> embed(torch.randn(2, 3, 32, 32)).shape, sum(p.numel() for p in embed.parameters())
    (torch.Size([4, 2, 64, 16]), 4192)
    """

    def __init__(self, in_chans: int, patch: int, between: int, d: int, tube: int | None = None):
        super().__init__()
        self.tube, slices = tube, tube or 1
        widths = conv_widths(patch, between, d * slices)
        self.first = nn.Conv2d(in_chans, widths[0], 3, stride=2, padding=1)
        init_conv_(self.first.weight, self.first.bias)
        self.rest = nn.ModuleList(
            TConv2d(before // slices, after // slices, 3, slices, stride=2, padding=1)
            for before, after in pairwise(widths)
        )

    def forward(self, images: Tensor) -> Tensor:
        """(B, c, H, W) -> (C, B, N, d), or (B, N, D)."""
        x_hat = self.first(images.contiguous(memory_format=torch.channels_last))
        for conv in self.rest:
            x_hat = conv(F.gelu(x_hat))  # (B, C·d, H', W')
        return x_hat.flatten(2).mT if self.tube is None else maps_to_tokens(x_hat, self.tube)


def conv_widths(patch: int, between: int, width: int) -> list[int]:
    """The features behind each convolution of a `ConvEmbed`; patches are a power of two.

    >>> conv_widths(4, 24, 64), conv_widths(2, 24, 64)
    ([24, 64], [64])
    """
    steps = round(math.log2(patch))
    if steps < 1 or 2**steps != patch:
        raise ValueError(f"patch_embed='conv' halves the image step by step: patch_size is 2, 4, 8, ..., got {patch}")
    return [*[between] * (steps - 1), width]


class TokenConv(nn.Module):
    """A depthwise k×k filter for each feature of each slice, on the grid of the tokens: (C, B, N, h) -> (C, B, N, h).

    If `shared`, all slices have the same filters (the coupling `shared`).

    >>> conv = TokenConv(8, 3, tube=4)
    >>> conv(torch.randn(4, 2, 15, 8), (3, 5)).shape, sum(p.numel() for p in conv.parameters())
    (torch.Size([4, 2, 15, 8]), 320)
    """

    def __init__(self, features: int, kernel: int, tube: int = 1, *, shared: bool = False):
        super().__init__()
        self.kernel, self.own = kernel, 1 if shared else tube
        self.weight_hat = nn.Parameter(torch.empty(self.own * features, 1, kernel, kernel))  # slices end to end
        self.bias_hat = nn.Parameter(torch.empty(self.own * features))
        init_conv_(self.weight_hat, self.bias_hat)

    def forward(self, x_hat: Tensor, grid: Grid) -> Tensor:
        """(C, B, N, h) -> (C, B, N, h)."""
        if self.own == 1:  # slices are images like others
            return _from_maps(self._filter(_as_maps(x_hat, grid)), x_hat)
        return maps_to_tokens(self._filter(tokens_to_maps(x_hat, grid)), self.own)

    def _filter(self, maps: Tensor) -> Tensor:
        return F.conv2d(maps, self.weight_hat, self.bias_hat, padding=self.kernel // 2, groups=len(self.weight_hat))

    def extra_repr(self) -> str:
        """What `repr` shows."""
        return f"filters={len(self.weight_hat)}, kernel={self.kernel}"


def tokens_to_maps(x_hat: Tensor, grid: Grid) -> Tensor:
    """(C, B, N, d) -> (B, C·d, H, W), slices end to end, the channels of a pixel together in memory.

    >>> tokens_to_maps(torch.randn(3, 2, 20, 4), (4, 5)).shape
    torch.Size([2, 12, 4, 5])
    """
    return x_hat.permute(1, 2, 0, 3).flatten(2).unflatten(1, grid).permute(0, 3, 1, 2)


def maps_to_tokens(maps: Tensor, tube: int) -> Tensor:
    """The inverse of `tokens_to_maps`."""
    return maps.flatten(2).mT.unflatten(-1, (tube, -1)).permute(2, 0, 1, 3).contiguous()


def pool_tokens(x: Tensor, grid: Grid, pool: int) -> Tensor:
    """The means of pool × pool neighbours: (..., B, N, d) -> (..., B, N / pool², d).

    >>> pool_tokens(torch.arange(8.0).view(1, 8, 1), (2, 4), 2).flatten()
    tensor([2.5000, 4.5000])
    """
    if grid[0] % pool or grid[1] % pool:
        raise ValueError(f"attention_pool={pool} does not divide the grid of {grid[0]}×{grid[1]} tokens")
    return _from_maps(F.avg_pool2d(_as_maps(x, grid), pool), x)


def spread_tokens(x: Tensor, grid: Grid, pool: int) -> Tensor:
    """Each token in the place of the pool × pool that were pooled: (..., B, N / pool², d) -> (..., B, N, d).

    >>> spread_tokens(torch.tensor([[[1.0], [2.0]]]), (2, 4), 2).flatten()
    tensor([1., 1., 2., 2., 1., 1., 2., 2.])
    """
    maps = _as_maps(x, (grid[0] // pool, grid[1] // pool))
    return _from_maps(F.interpolate(maps, size=grid, mode="nearest"), x)


def _as_maps(x: Tensor, grid: Grid) -> Tensor:
    """(..., B, N, d) -> (·, d, H, W), every slice an image of its own: a view, the channels of a pixel together."""
    return x.flatten(0, -3).unflatten(1, grid).permute(0, 3, 1, 2)


def _from_maps(maps: Tensor, like: Tensor) -> Tensor:
    """The inverse, with all dimensions but that of the tokens as `like`."""
    return maps.permute(0, 2, 3, 1).flatten(1, 2).view(*like.shape[:-2], -1, like.shape[-1])
