"""The layers of `layers.local` written out slowly, slice after slice and neighbour after neighbour; see `reference`."""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tcpvit.layers.local import ConvEmbed, Grid, TokenConv

Slices = list[Tensor]


def overlapping_patches(layer: ConvEmbed, images: Tensor) -> Slices:
    """The hat slices of the tokens, each (B, N, d)."""
    C = layer.tube or 1
    maps = list(F.conv2d(images, layer.first.weight, layer.first.bias, stride=2, padding=1).chunk(C, 1))
    conv: Any
    for conv in layer.rest:
        weights, biases = conv.weight_hat.chunk(C), conv.bias_hat.chunk(C)
        maps = [
            F.conv2d(F.gelu(X_k), W_k, b_k, stride=2, padding=1)
            for X_k, W_k, b_k in zip(maps, weights, biases, strict=True)
        ]
    return [X_k.flatten(2).mT for X_k in maps]


def filtered(layer: TokenConv, X_hat: Slices, grid: Grid) -> Slices:
    """Each slice (B, N, h) by its own filters, or by those that all slices share."""
    weights, biases = layer.weight_hat.chunk(layer.own), layer.bias_hat.chunk(layer.own)
    if layer.own == 1:
        weights, biases = weights * len(X_hat), biases * len(X_hat)
    return [_filtered(X_k, W_k[:, 0], b_k, grid) for X_k, W_k, b_k in zip(X_hat, weights, biases, strict=True)]


def _filtered(X: Tensor, W: Tensor, b: Tensor, grid: Grid) -> Tensor:
    """Y[y, x] = b + Σ W[u, v] X[y + u - r, x + v - r], zero outside: (B, N, h), (h, k, k), (h)."""
    (down, across), r = grid, W.shape[-1] // 2
    Y = b.expand_as(X).clone()
    for (y, x), (u, v) in product(product(range(down), range(across)), product(range(2 * r + 1), repeat=2)):
        there = (y + u - r, x + v - r)
        if 0 <= there[0] < down and 0 <= there[1] < across:
            Y[:, y * across + x] += W[:, u, v] * X[:, there[0] * across + there[1]]
    return Y


def pooled(X: Tensor, grid: Grid, pool: int) -> Tensor:
    """The means of pool × pool tokens: (B, N, d, C) -> (B, N / pool², d, C)."""
    return torch.stack([X[:, places].mean(1) for places in _squares(grid, pool)], 1)


def spread(X: Tensor, grid: Grid, pool: int) -> Tensor:
    """Each token in all places of its square: (B, N / pool², d, C) -> (B, N, d, C)."""
    Y = X.new_empty(len(X), grid[0] * grid[1], *X.shape[2:])
    for i, places in enumerate(_squares(grid, pool)):
        Y[:, places] = X[:, i : i + 1]
    return Y


def _squares(grid: Grid, pool: int) -> list[list[int]]:
    """The places of the tokens of each square, square by square."""
    corners = product(range(0, grid[0], pool), range(0, grid[1], pool))
    return [[(top + u) * grid[1] + left + v for u, v in product(range(pool), repeat=2)] for top, left in corners]
