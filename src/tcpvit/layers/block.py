"""The Transformer block (paper, Eqs. std_block_* and block_*): pre-norm, attention and FFN, each with its residual."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from tcpvit.layers.attention import Attention, TAttention
from tcpvit.layers.coupling import Coupling
from tcpvit.layers.drop import DropPath
from tcpvit.layers.linear import TransformOf
from tcpvit.layers.mlp import Mlp, TMlp
from tcpvit.layers.norm import EPS, TLayerNorm
from tcpvit.layers.transform import HatTransform, attach_transform


class Block(nn.Module):
    """The block of the standard ViT: (B, N, D) -> (B, N, D). `attn_layer` makes its attention.

    >>> import torch
    >>> Block(48, num_heads=4)(torch.randn(2, 65, 48)).shape
    torch.Size([2, 65, 48])
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        attn_layer: Callable[..., Any] = Attention,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        drop: float = 0.0,
        attn_drop: float = 0.0,
        drop_path: float = 0.0,
    ):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=EPS)
        self.attn = attn_layer(dim, num_heads, qkv_bias=qkv_bias, attn_drop=attn_drop, proj_drop=drop)
        self.norm2 = nn.LayerNorm(dim, eps=EPS)
        self.mlp = Mlp(dim, int(mlp_ratio * dim), drop=drop)
        self.drop_path = DropPath(drop_path, batch_dim=0)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, D) -> (B, N, D)."""
        x = x + self.drop_path(self.attn(self.norm1(x)))  # Eq. std_block_attn
        return x + self.drop_path(self.mlp(self.norm2(x)))  # Eq. std_block_ffn


class TBlock(nn.Module):
    """The TCP-ViT block in the hat domain, slices first: (C, B, N, d) -> (C, B, N, d). `attn_layer` as in `Block`.

    >>> import torch
    >>> TBlock(16, num_heads=4, tube=3)(torch.randn(3, 2, 65, 16)).shape
    torch.Size([3, 2, 65, 16])
    """

    transform: HatTransform

    def __init__(
        self,
        d: int,
        num_heads: int,
        tube: int,
        transform: TransformOf = "dct",
        *,
        attn_layer: Callable[..., Any] = TAttention,
        mlp_ratio: float = 4.0,
        attention: str = "slice",
        activation_domain: str = "transform",
        coupling: Coupling | None = None,
        qkv_bias: bool = True,
        drop: float = 0.0,
        attn_drop: float = 0.0,
        drop_path: float = 0.0,
    ):
        super().__init__()
        attach_transform(self, transform, tube)
        coupling = coupling or Coupling()
        self.norm1 = TLayerNorm(d, tube, joint=coupling.norm, shared=coupling.shared)
        self.attn = attn_layer(
            d,
            num_heads,
            tube,
            self.transform,
            attention=attention,
            coupling=coupling,
            qkv_bias=qkv_bias,
            attn_drop=attn_drop,
            proj_drop=drop,
        )
        self.norm2 = TLayerNorm(d, tube, joint=coupling.norm, shared=coupling.shared)
        self.mlp = TMlp(
            d,
            int(mlp_ratio * d),
            tube,
            self.transform,
            activation_domain=activation_domain,
            coupling=coupling,
            drop=drop,
        )
        self.drop_path = DropPath(drop_path, batch_dim=1)

    def forward(self, x_hat: Tensor) -> Tensor:
        """(C, B, N, d) -> (C, B, N, d)."""
        x_hat = x_hat + self.drop_path(self.attn(self.norm1(x_hat)))  # Eq. block_attn
        return x_hat + self.drop_path(self.mlp(self.norm2(x_hat)))  # Eq. block_ffn
