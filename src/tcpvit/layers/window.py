"""Attention within windows (Swin), on grids of tokens: shifted windows, relative position bias, patch merging.

Grids are (B, H, W, D) for the standard layers and hat slices first, (C, B, H, W, d), for tensor tokens. qkv and proj
act on every token by itself, so that the grid is cut into windows once, together with the heads. Every softmax map has
a relative position bias of its own: slice attention with H/C heads in each of C slices has as many as a standard Swin.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tcpvit.layers.attention import Attention, TAttention
from tcpvit.layers.coupling import shuffle_slices

Pair = tuple[int, int]


class Windows(nn.Module):
    """Cuts a grid into windows, moved by `shift`, and attends within them; `maps` softmax maps for each window.

    A grid that the window does not divide is padded at its end.
    """

    blocked: Tensor
    index: Tensor

    def __init__(self, grid: Pair, window: Pair, shift: Pair, maps: int):
        super().__init__()
        self.window, self.shift = window, shift
        self.grid = self._padded(grid)
        self.bias_table = nn.Parameter(torch.empty((2 * window[0] - 1) * (2 * window[1] - 1), maps))
        self.register_buffer("index", relative_positions(window), persistent=False)
        self.register_buffer("blocked", blocked_pairs(self.grid, window, shift), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the biases anew."""
        nn.init.trunc_normal_(self.bias_table, std=0.02)

    def pad_and_shift(self, x: Tensor) -> Tensor:
        """Pad and shift a grid (..., H, W, d)."""
        H, W = x.shape[-3:-1]
        padded = self._padded((H, W))
        x = F.pad(x, (0, 0, 0, padded[1] - W, 0, padded[0] - H)) if padded != (H, W) else x
        return x.roll((-self.shift[0], -self.shift[1]), dims=(-3, -2)) if any(self.shift) else x

    def undo_shift(self, x: Tensor, grid: tuple[int, ...]) -> Tensor:
        """Undo `pad_and_shift`: shift back and cut off the padding."""
        x = x.roll(self.shift, dims=(-3, -2)) if any(self.shift) else x
        return x[..., : grid[0], : grid[1], :]

    def attend(self, qkv: Tensor, num_heads: int, *, joint: bool = False, dropout: float = 0.0) -> Tensor:
        """softmax(q kᵀ / √width + bias) v within each window: (C, B, H, W, 3·heads·d_h) -> (C, B, H, W, heads·d_h)."""
        C, B, H, W, _ = qkv.shape
        h, w = self.window
        down, across = H // h, W // w
        parts = qkv.view(C, B, down, h, across, w, 3, num_heads, qkv.shape[-1] // (3 * num_heads))
        # Windows stand where heads do, so that one mask serves the whole batch.
        if joint:
            q, k, v = parts.permute(6, 1, 2, 4, 7, 3, 5, 0, 8).flatten(7).flatten(5, 6).flatten(2, 4).unbind(0)
        else:
            q, k, v = parts.permute(6, 1, 0, 2, 4, 7, 3, 5, 8).flatten(6, 7).flatten(2, 5).unbind(0)
        mask = self._mask((H, W), num_heads).to(q.dtype)
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask.unsqueeze(0), dropout_p=dropout)
        if joint:
            o = o.view(B, down, across, num_heads, h, w, C, parts.shape[-1]).permute(6, 0, 1, 4, 2, 5, 3, 7)
        else:
            o = o.view(B, C, down, across, num_heads, h, w, parts.shape[-1]).permute(1, 0, 2, 5, 3, 6, 4, 7)
        return o.reshape(C, B, H, W, qkv.shape[-1] // 3)

    def _mask(self, grid: Pair, num_heads: int) -> Tensor:
        """What is added to the scores: (slices·windows·heads, N, N); one slice for joint attention."""
        bias = self.bias_table[self.index].permute(2, 0, 1).unflatten(0, (-1, 1, num_heads))  # (slices, 1, heads, N, N)
        if not any(self.shift):
            windows = grid[0] // self.window[0] * (grid[1] // self.window[1])
            return bias.expand(-1, windows, -1, -1, -1).flatten(0, 2)
        blocked = self.blocked if grid == self.grid else blocked_pairs(grid, self.window, self.shift).to(bias.device)
        return bias.masked_fill(blocked.unsqueeze(1), float("-inf")).flatten(0, 2)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Windows:
        """`to_empty` gives a model that was made on "meta" memory; the tables have to be computed."""
        on_meta = self.index.is_meta
        super()._apply(fn, recurse)
        self._fill_tables(on_meta)
        return self

    def _load_from_state_dict(self, *arguments: Any) -> None:
        """The tables follow weights that are assigned to a model on "meta"."""
        super()._load_from_state_dict(*arguments)
        self._fill_tables(self.index.is_meta)

    def _fill_tables(self, are_empty: bool) -> None:
        if are_empty and not self.bias_table.is_meta:
            with self.bias_table.device:
                self.index = relative_positions(self.window)
                self.blocked = blocked_pairs(self.grid, self.window, self.shift)

    def _padded(self, grid: Pair) -> Pair:
        down, across = (-(-size // window) * window for size, window in zip(grid, self.window, strict=True))
        return down, across

    def extra_repr(self) -> str:
        """What `repr` shows."""
        return f"window={self.window}, shift={self.shift}, maps={self.bias_table.shape[1]}"


class WindowAttention(Attention):
    """Attention within windows: (B, H, W, D) -> (B, H, W, D).

    >>> layer = WindowAttention(12, num_heads=3, grid=(8, 8), window=(4, 4), shift=(2, 2))
    >>> layer(torch.randn(2, 8, 8, 12)).shape
    torch.Size([2, 8, 8, 12])
    """

    def __init__(self, dim: int, num_heads: int, *, grid: Pair, window: Pair, shift: Pair, **options: Any):
        super().__init__(dim, num_heads, **options)
        self.windows = Windows(grid, window, shift, num_heads)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]  # the windows know their grid
        """(B, H, W, D) -> (B, H, W, D)."""
        qkv = self.qkv(self.windows.pad_and_shift(x)).unsqueeze(0)
        o = self.windows.attend(qkv, self.num_heads, dropout=self.attn_drop if self.training else 0.0).squeeze(0)
        return self.proj_drop(self.proj(self.windows.undo_shift(o, x.shape[-3:-1])))


class TWindowAttention(TAttention):
    """t-MHSA within windows, in the hat domain: (C, B, H, W, d) -> (C, B, H, W, d). `num_heads` is per slice.

    >>> layer = TWindowAttention(4, num_heads=1, tube=3, grid=(8, 8), window=(4, 4), shift=(2, 2))
    >>> layer(torch.randn(3, 2, 8, 8, 4)).shape
    torch.Size([3, 2, 8, 8, 4])
    """

    def __init__(
        self, d: int, num_heads: int, tube: int, *args: Any, grid: Pair, window: Pair, shift: Pair, **options: Any
    ):
        super().__init__(d, num_heads, tube, *args, **options)
        self.windows = Windows(grid, window, shift, num_heads if self.joint else tube * num_heads)

    def forward(self, x_hat: Tensor) -> Tensor:  # type: ignore[override]  # the windows have their own mask
        """(C, B, H, W, d) -> (C, B, H, W, d)."""
        qkv = self.qkv(self.windows.pad_and_shift(x_hat))
        dropout = self.attn_drop if self.training else 0.0
        o_hat = self.windows.attend(qkv, self.num_heads, joint=self.joint, dropout=dropout)
        o_hat = self.windows.undo_shift(o_hat, x_hat.shape[-3:-1])
        if self.shuffle:
            o_hat = shuffle_slices(o_hat)
        return self.proj_drop(self.proj(o_hat))


class PatchMerging(nn.Module):
    """Four neighbours become one token of twice the width: (..., H, W, d) -> (..., H/2, W/2, 2d).

    `norm` and `reduction` are layers of width 4d, standard or of tensor tokens.
    """

    def __init__(self, norm: nn.Module, reduction: nn.Module):
        super().__init__()
        self.norm, self.reduction = norm, reduction

    def forward(self, x: Tensor) -> Tensor:
        """(..., H, W, d) -> (..., H/2, W/2, 2d); an odd side is padded."""
        H, W = x.shape[-3:-1]
        x = F.pad(x, (0, 0, 0, W % 2, 0, H % 2)) if H % 2 or W % 2 else x
        x = x.unflatten(-2, (-1, 2)).unflatten(-4, (-1, 2))  # (..., H/2, 2, W/2, 2, d)
        x = x.movedim(-4, -2).flatten(-3)  # (..., H/2, W/2, 4d): column by column, as Swin has it
        return self.reduction(self.norm(x))


def relative_positions(window: Pair) -> Tensor:
    """Which entry of the bias table each pair of tokens of a window reads: (N, N).

    >>> relative_positions((1, 3))
    tensor([[2, 1, 0],
            [3, 2, 1],
            [4, 3, 2]])
    """
    h, w = window
    places = torch.cartesian_prod(torch.arange(h), torch.arange(w))  # (N, 2)
    down, across = (places.unsqueeze(1) - places).unbind(-1)
    return (down + h - 1) * (2 * w - 1) + across + w - 1


def blocked_pairs(grid: Pair, window: Pair, shift: Pair) -> Tensor:
    """Pairs of a window that a shift has brought together from opposite ends of the grid: (windows, N, N).

    >>> blocked_pairs((1, 4), (1, 2), (0, 1)).int()
    tensor([[[0, 0],
             [0, 0]],
            [[0, 1],
             [1, 0]]], dtype=torch.int32)
    """
    sides = []
    for size, step in zip(grid, shift, strict=True):
        sides.append((torch.arange(size) >= size - step).long())  # 1: has come round from the other end
    region = 2 * sides[0].unsqueeze(1) + sides[1]  # (H, W)
    h, w = window
    regions = region.view(grid[0] // h, h, grid[1] // w, w).transpose(1, 2).reshape(-1, h * w)  # (windows, N)
    return regions.unsqueeze(1) != regions.unsqueeze(2)
