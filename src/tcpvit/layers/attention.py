"""Multi-head self-attention (paper, Section 3.3) and t-MHSA (Def. t-MHSA).

Slice attention, the paper's: every head of every slice has its own softmax map, C·H maps in all.
Joint attention, ours: H maps, each from q̂·k̂ summed over the tube, so that the slices decide together where to look.

Tokens of volumes and clips may attend in groups (`along`): those of a frame to one another ("space"), or those of one
place through the depth or time ("time"). A class token takes part in every group, and averages what it finds.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tcpvit.errors import did_you_mean, divisors
from tcpvit.layers.coupling import Coupling, shuffle_slices, t_linear
from tcpvit.layers.kernels import ops
from tcpvit.layers.linear import TransformOf

AttentionKind = Literal["slice", "joint"]
Along = Literal["space", "time"]
ATTENTIONS: tuple[str, ...] = get_args(AttentionKind)


def check_heads(d: int, num_heads: int, what: str) -> int:
    """The head size d / num_heads, or an error that names the numbers of heads that fit.

    >>> check_heads(16, 4, "slice width")
    4
    """
    if num_heads < 1 or d % num_heads:
        raise ValueError(f"num_heads={num_heads} does not divide the {what} {d}; take one of {divisors(d)}")
    return d // num_heads


class Attention(nn.Module):
    """Multi-head self-attention of the standard ViT (Eq. std_mhsa): (B, N, D) -> (B, N, D).

    >>> Attention(48, num_heads=4)(torch.randn(2, 65, 48)).shape
    torch.Size([2, 65, 48])
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        qkv_bias: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        along: Along | None = None,
    ):
        super().__init__()
        self.along = along
        self.num_heads, self.head_dim = num_heads, check_heads(dim, num_heads, "width")
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)
        self.attn_drop = attn_drop
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x: Tensor, grid: tuple[int, ...] | None = None) -> Tensor:
        """(B, N, D) -> (B, N, D); `grid` is where the tokens lie, for attention in groups."""
        qkv = into_groups(self.qkv(x).unsqueeze(0), grid, self.along)
        o = attend(qkv, self.num_heads, dropout=self.attn_drop if self.training else 0.0)
        return self.proj_drop(self.proj(out_of_groups(o, grid, self.along).squeeze(0)))

    def maps(self, x: Tensor, grid: tuple[int, ...] | None = None) -> Tensor:
        """The attention maps, (B, H, N, N)."""
        q, k, _ = split_heads(into_groups(self.qkv(x).unsqueeze(0), grid, self.along), self.num_heads)
        return softmax_maps(q, k)


class TAttention(nn.Module):
    """t-MHSA in the hat domain, slices first: (C, B, N, d) -> (C, B, N, d). `num_heads` is per slice.

    >>> TAttention(16, num_heads=4, tube=3)(torch.randn(3, 2, 65, 16)).shape
    torch.Size([3, 2, 65, 16])
    >>> TAttention(16, num_heads=4, tube=3).maps(torch.randn(3, 2, 65, 16)).shape
    torch.Size([3, 2, 4, 65, 65])
    """

    def __init__(
        self,
        d: int,
        num_heads: int,
        tube: int,
        transform: TransformOf = "dct",
        *,
        attention: str = "slice",
        coupling: Coupling | None = None,
        qkv_bias: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        along: Along | None = None,
    ):
        super().__init__()
        self.along = along
        if attention not in ATTENTIONS:
            raise ValueError(f"no attention is called {attention!r}{did_you_mean(attention, ATTENTIONS)}")
        coupling = coupling or Coupling()
        self.num_heads, self.head_dim, self.tube = num_heads, check_heads(d, num_heads, "slice width"), tube
        self.joint = attention == "joint"
        self.shuffle = coupling.shuffle
        self.qkv = t_linear(d, 3 * d, tube, transform, bias=qkv_bias, coupling=coupling)
        self.proj = t_linear(d, d, tube, transform, coupling=coupling)
        self.attn_drop = attn_drop
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x_hat: Tensor, mask: Tensor | None = None, grid: tuple[int, ...] | None = None) -> Tensor:
        """(C, B, N, d) -> (C, B, N, d); `mask` as in `attend`, `grid` for attention in groups."""
        dropout = self.attn_drop if self.training else 0.0
        qkv = into_groups(self.qkv(x_hat), grid, self.along)
        o_hat = attend(qkv, self.num_heads, joint=self.joint, dropout=dropout, mask=mask)
        o_hat = out_of_groups(o_hat, grid, self.along)
        if self.shuffle:
            o_hat = shuffle_slices(o_hat)
        return self.proj_drop(self.proj(o_hat))

    def maps(self, x_hat: Tensor, grid: tuple[int, ...] | None = None) -> Tensor:
        """The attention maps: (C, B, H, N, N) by slice and head, or (B, H, N, N) for joint attention."""
        qkv = into_groups(self.qkv(x_hat), grid, self.along)
        q, k, _ = split_heads(qkv, self.num_heads, joint=self.joint)
        maps = softmax_maps(q, k)
        return maps if self.joint else maps.unflatten(0, (self.tube, -1))


def attend(
    qkv: Tensor, num_heads: int, *, joint: bool = False, dropout: float = 0.0, mask: Tensor | None = None
) -> Tensor:
    """softmax(q kᵀ / √width) v for all heads of all slices at once: (C, B, N, 3·H·d_h) -> (C, B, N, H·d_h).

    The width of a head is d_h, or C·d_h for joint attention. Small heads on a CPU go to a kernel of our own. A mask,
    (B or 1, 1, N or 1, N), serves all heads and slices: True may be looked at, or numbers are added to the scores.

    >>> attend(torch.randn(3, 2, 5, 3 * 16), num_heads=4).shape
    torch.Size([3, 2, 5, 16])
    """
    if not dropout and mask is None and ops.can_use_attention(qkv, num_heads, joint):
        return ops.packed_attention(qkv, num_heads, joint)[0]
    q, k, v = split_heads(qkv, num_heads, joint=joint)
    if mask is not None:
        mask = mask if mask.dtype == torch.bool else mask.to(q.dtype)
        mask = mask if joint or len(mask) == 1 else mask.repeat(len(qkv), 1, 1, 1)  # (C·B, 1, N, N)
    o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)  # its scale is 1/√width
    if joint:
        o = o.unflatten(-1, (len(qkv), -1)).permute(3, 0, 2, 1, 4)  # (C, B, N, H, d_h)
    else:
        o = o.transpose(1, 2)  # before the view: OpenVINO fails on the other order
        o = o.view(*qkv.shape[:2], *o.shape[1:])  # (C, B, N, H, d_h)
    return o.flatten(-2)


def into_groups(qkv: Tensor, grid: tuple[int, ...] | None, along: Along | None) -> Tensor:
    """(C, B, p+T·H·W, ·) -> (C, B·T, p+H·W, ·) for "space", (C, B·H·W, p+T, ·) for "time"; None leaves all together.

    >>> into_groups(torch.zeros(3, 2, 1 + 4 * 9, 12), (4, 3, 3), "time").shape
    torch.Size([3, 18, 5, 12])
    """
    if along is None:
        return qkv
    if grid is None or len(grid) != 3:
        raise ValueError(f"factorised attention is for tokens of volumes on a grid (T, H, W), got {grid}")
    T, places = grid[0], grid[1] * grid[2]
    prefix, patches = qkv.tensor_split([qkv.shape[2] - T * places], dim=2)
    groups = patches.unflatten(2, (T, places))  # (C, B, T, H·W, ·)
    groups = groups if along == "space" else groups.transpose(2, 3)
    first = prefix.unsqueeze(2).expand(-1, -1, groups.shape[2], -1, -1)
    return torch.cat([first, groups], 3).flatten(1, 2)


def out_of_groups(o: Tensor, grid: tuple[int, ...] | None, along: Along | None) -> Tensor:
    """The inverse of `into_groups`; prefix tokens are averaged over the groups."""
    if along is None or grid is None:
        return o
    T, places = grid[0], grid[1] * grid[2]
    count, length = (T, places) if along == "space" else (places, T)
    prefix, groups = o.unflatten(1, (-1, count)).tensor_split([o.shape[2] - length], dim=3)
    groups = groups if along == "space" else groups.transpose(2, 3)
    return torch.cat([prefix.mean(2), groups.flatten(2, 3)], 2)


def maps_of_all(maps: Tensor, grid: tuple[int, ...] | None, along: Along | None) -> Tensor:
    """Maps of groups, (..., B·G, H, p+L, p+L), as maps of all tokens, (..., B, H, p+N, p+N), with 0 between groups.

    They do to the values what attention in groups does: prefix tokens are averaged over the groups.

    >>> maps_of_all(torch.full((4, 2, 10, 10), 0.1), (4, 3, 3), "space").shape
    torch.Size([1, 2, 37, 37])
    """
    if along is None or grid is None:
        return maps
    T, places = grid[0], grid[1] * grid[2]
    index = torch.arange(T * places, device=maps.device).view(T, places)
    index = index if along == "space" else index.T  # (G, L)
    count, length = index.shape
    p = maps.shape[-1] - length
    groups = maps.unflatten(-4, (-1, count)).transpose(-4, -3)  # (..., B, H, G, p+L, p+L)
    whole = maps.new_zeros(*groups.shape[:-3], p + T * places, p + T * places)
    index = index + p
    whole[..., :p, :p] = groups[..., :p, :p].mean(-3)
    whole[..., :p, index] = groups[..., :p, p:].transpose(-3, -2) / count
    whole[..., index, :p] = groups[..., p:, :p]
    whole[..., index[:, :, None], index[:, None]] = groups[..., p:, p:]
    return whole


def split_heads(qkv: Tensor, num_heads: int, *, joint: bool = False) -> tuple[Tensor, ...]:
    """(C, B, N, 3·H·d_h) -> q, k, v: each (C·B, H, N, d_h), or (B, H, N, C·d_h) for joint attention.

    >>> split_heads(torch.randn(3, 2, 5, 3 * 16), num_heads=4, joint=True)[0].shape
    torch.Size([2, 4, 5, 12])
    """
    parts = qkv.unflatten(-1, (3, num_heads, -1))  # (C, B, N, 3, H, d_h)
    if joint:
        return parts.permute(3, 1, 4, 2, 0, 5).flatten(-2).unbind(0)
    return parts.permute(3, 0, 1, 4, 2, 5).flatten(1, 2).unbind(0)


def softmax_maps(q: Tensor, k: Tensor) -> Tensor:
    """softmax(q kᵀ / √d), what scaled_dot_product_attention does not give away: (..., N, N).

    >>> softmax_maps(torch.randn(2, 4, 5, 8), torch.randn(2, 4, 5, 8)).sum(-1).allclose(torch.ones(2, 4, 5))
    True
    """
    return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), dim=-1)
