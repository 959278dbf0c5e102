"""The Transformer block (paper, Eqs. std_block_* and block_*): pre-norm, attention and FFN, each with its residual.

With it the FFN (Eq. std_ffn) and t-FFN (Def. t-FFN), and stochastic depth.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

from torch import Tensor, nn
from torch.nn import functional as F

from tcpvit.errors import did_you_mean
from tcpvit.layers.attention import Attention, TAttention
from tcpvit.layers.coupling import Coupling, shuffle_slices, t_linear
from tcpvit.layers.halves import attention_half, ffn_half
from tcpvit.layers.linear import TransformOf
from tcpvit.layers.local import Grid, TokenConv, pool_tokens, spread_tokens
from tcpvit.layers.norm import EPS, TLayerNorm
from tcpvit.layers.transform import HatTransform, attach_transform

ActivationDomain = Literal["transform", "spatial"]
ACTIVATION_DOMAINS: tuple[str, ...] = get_args(ActivationDomain)


class Mlp(nn.Module):
    """FFN(X) = GELU(X W₁) W₂: (..., D) -> (..., D).

    With `local` a depthwise filter of that size stands before GELU, on tokens (B, N, D) of a grid. `gated` multiplies
    what GELU gives by as many features more of fc1.

    >>> import torch
    >>> Mlp(48, 192)(torch.randn(2, 65, 48)).shape
    torch.Size([2, 65, 48])
    >>> Mlp(48, 96, local=3, gated=True)(torch.randn(2, 64, 48), (8, 8)).shape
    torch.Size([2, 64, 48])
    """

    def __init__(self, dim: int, hidden: int, *, drop: float = 0.0, local: int = 0, gated: bool = False):
        super().__init__()
        self.gated = gated
        self.fc1 = nn.Linear(dim, hidden * (1 + gated))
        self.local = TokenConv(hidden, local) if local else None
        self.fc2 = nn.Linear(hidden, dim)
        self.drop = nn.Dropout(drop)

    def forward(self, x: Tensor, grid: Grid | None = None) -> Tensor:
        """(..., D) -> (..., D)."""
        h, *factor = self.fc1(x).chunk(1 + self.gated, -1)
        h = F.gelu(h if self.local is None else self.local(h.unsqueeze(0), known(grid)).squeeze(0))
        return self.drop(self.fc2(self.drop(h * factor[0] if factor else h)))


class TMlp(nn.Module):
    """t-FFN in the hat domain, slices first: (C, ..., d) -> (C, ..., d).

    GELU acts on the hat slices (`activation_domain="transform"`, the paper's experiments) or on the spatial tensor
    (`"spatial"`, the paper's definition, which lets the slices meet at no parameter cost). `activation` may be another
    function of single numbers. `local` and `gated` as in `Mlp`; filters act on the hat slices.

    >>> import torch
    >>> TMlp(16, 64, tube=3, activation_domain="spatial")(torch.randn(3, 2, 65, 16)).shape
    torch.Size([3, 2, 65, 16])
    """

    transform: HatTransform

    def __init__(
        self,
        d: int,
        hidden: int,
        tube: int,
        transform: TransformOf = "dct",
        *,
        activation_domain: str = "transform",
        coupling: Coupling | None = None,
        drop: float = 0.0,
        local: int = 0,
        gated: bool = False,
    ):
        super().__init__()
        if activation_domain not in ACTIVATION_DOMAINS:
            raise ValueError(
                f"no activation domain is called {activation_domain!r}"
                f"{did_you_mean(activation_domain, ACTIVATION_DOMAINS)}"
            )
        coupling = coupling or Coupling()
        attach_transform(self, transform, tube)
        self.spatial = activation_domain == "spatial"
        self.shuffle, self.gated, self.hidden = coupling.shuffle, gated, hidden
        self.fc1 = t_linear(d, hidden * (1 + gated), tube, self.transform, coupling=coupling)
        self.local = TokenConv(hidden, local, tube, shared=coupling.shared) if local else None
        self.fc2 = t_linear(hidden, d, tube, self.transform, coupling=coupling)
        self.activation: Callable[[Tensor], Tensor] = F.gelu
        self.drop = nn.Dropout(drop)

    def forward(self, x_hat: Tensor, grid: Grid | None = None) -> Tensor:
        """(C, ..., d) -> (C, ..., d)."""
        h_hat, *factor = self.fc1(x_hat).chunk(1 + self.gated, -1)
        h_hat = self._activate(h_hat if self.local is None else self.local(h_hat, known(grid)), *factor)
        if self.shuffle:
            h_hat = shuffle_slices(h_hat)
        return self.drop(self.fc2(self.drop(h_hat)))

    def _activate(self, *parts: Tensor) -> Tensor:
        """GELU of the first part, times the second if there is one."""
        h, *factor = map(self.transform.from_hat, parts) if self.spatial else parts
        h = self.activation(h) * factor[0] if factor else self.activation(h)
        return self.transform.to_hat(h) if self.spatial else h


def known(grid: Grid | None) -> Grid:
    """The grid, without which there are no neighbours."""
    if grid is None:
        raise ValueError("local filters and pooled attention need the grid of the tokens: call block(x, grid)")
    return grid


class DropPath(nn.Module):
    """Stochastic depth: leave the branch out with probability `rate` for each sample along `batch_dim`,
    and scale the rest up.

    >>> import torch
    >>> DropPath(0.5).eval()(torch.ones(2, 3)).sum()
    tensor(6.)
    """

    def __init__(self, rate: float = 0.0, batch_dim: int = 0):
        super().__init__()
        self.rate, self.batch_dim = rate, batch_dim

    def forward(self, x: Tensor) -> Tensor:
        """Same shape."""
        if self.rate == 0.0 or not self.training:
            return x
        shape = [1] * x.ndim
        shape[self.batch_dim] = x.shape[self.batch_dim]
        keep = x.new_empty(shape).bernoulli_(1 - self.rate)
        return x * keep / (1 - self.rate)

    def extra_repr(self) -> str:
        """What `repr` shows."""
        return f"rate={self.rate}"


def placed(grid: Grid | None) -> dict[str, Grid]:
    """What an attention is told beside its tokens: their grid where there is one."""
    return {} if grid is None else {"grid": grid}


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
        local: int = 0,
        gated: bool = False,
        attention_pool: int = 1,
    ):
        super().__init__()
        self.pool = attention_pool
        self.norm1 = nn.LayerNorm(dim, eps=EPS)
        self.attn = attn_layer(dim, num_heads, qkv_bias=qkv_bias, attn_drop=attn_drop, proj_drop=drop)
        self.norm2 = nn.LayerNorm(dim, eps=EPS)
        self.mlp = Mlp(dim, int(mlp_ratio * dim), drop=drop, local=local, gated=gated)
        self.drop_path = DropPath(drop_path, batch_dim=0)

    def forward(self, x: Tensor, grid: Grid | None = None) -> Tensor:
        """(B, N, D) -> (B, N, D); `grid` is where the tokens lie, for an attention or filters that ask for it."""
        if (attended := attention_half(self, x, grid)) is None:
            attended = x + self.drop_path(attend_pooled(self, x, grid))  # Eq. std_block_attn
        if (fed := ffn_half(self, attended, grid, Mlp)) is None:
            fed = attended + self.drop_path(self.mlp(self.norm2(attended), grid))  # Eq. std_block_ffn
        return fed


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
        local: int = 0,
        gated: bool = False,
        attention_pool: int = 1,
    ):
        super().__init__()
        self.pool = attention_pool
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
            local=local,
            gated=gated,
        )
        self.drop_path = DropPath(drop_path, batch_dim=1)

    def forward(self, x_hat: Tensor, grid: Grid | None = None) -> Tensor:
        """(C, B, N, d) -> (C, B, N, d); `grid` as in `Block`."""
        if (attended := attention_half(self, x_hat, grid)) is None:
            attended = x_hat + self.drop_path(attend_pooled(self, x_hat, grid))  # Eq. block_attn
        if (fed := ffn_half(self, attended, grid, TMlp)) is None:
            fed = attended + self.drop_path(self.mlp(self.norm2(attended), grid))  # Eq. block_ffn
        return fed


def attend_pooled(block: Any, x: Tensor, grid: Grid | None) -> Tensor:
    """The attention of a block, between the means of `pool` × `pool` tokens, each of which gets what its mean got."""
    if block.pool == 1:
        attended: Tensor = block.attn(block.norm1(x), **placed(grid))
        return attended
    pooled = block.attn(pool_tokens(block.norm1(x), known(grid), block.pool))
    return spread_tokens(pooled, known(grid), block.pool)
