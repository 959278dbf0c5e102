"""Swin (Liu et al. 2021), Std and TCP from one skeleton: four stages of windows, with patches merged between them.

Inside, tokens lie on a grid, (B, H, W, D) for Std-Swin and hat slices first, (C, B, H, W, d), for TCP-Swin; outside,
both give (B, H, W, D) with the tube fastest. A merge takes every slice from 4d to 2d features, so that the tube is the
same in all stages, and there is one transform on the way in and one on the way out.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from tcpvit.algebra.transforms import Transform
from tcpvit.layers import Block, HatTransform, PatchEmbed, TBlock, TLayerNorm, TLinear, TPatchEmbed
from tcpvit.layers.attention import AttentionKind, check_heads
from tcpvit.layers.block import ActivationDomain
from tcpvit.layers.embed import image_grid
from tcpvit.layers.norm import EPS
from tcpvit.layers.window import PatchMerging, TWindowAttention, WindowAttention
from tcpvit.models.config import EncoderConfig, Kind, Ratio, check_common
from tcpvit.models.pretrained import Pretrained
from tcpvit.models.vit import chosen_indices, init_dense, new_head
from tcpvit.validation import Count, Flag, Listed, Maybe, Natural, Rate, Size, Text, Words, dataclass


@dataclass(frozen=True)
class SwinConfig(EncoderConfig):
    """A standard Swin (`kind="std"`) or a TCP-Swin; `embed_dim` is the full width d·C of the first stage.

    >>> SwinConfig("tcp", num_heads=(1, 2, 4, 8)).stage_grids
    [(56, 56), (28, 28), (14, 14), (7, 7)]
    """

    kind: Kind
    img_size: Size = 224
    patch_size: Count = 4
    in_chans: Count = 3
    num_classes: Natural = 1000
    embed_dim: Count = 96
    depths: Listed[tuple[Count, ...]] = (2, 2, 6, 2)
    num_heads: Listed[tuple[Count, ...]] = (3, 6, 12, 24)  # TCP: heads in each slice
    window_size: Count = 7  # a stage whose grid is smaller has one window
    mlp_ratio: Ratio = 4.0
    qkv_bias: Flag = True
    drop_rate: Rate = 0.0
    attn_drop_rate: Rate = 0.0
    drop_path_rate: Rate = 0.0  # of the last block, rising linearly from 0
    # From here on TCP only.
    tube: Maybe[Count] = None  # C; None: the image's channels
    transform: Text = "dct"
    attention: AttentionKind = "slice"
    activation_domain: ActivationDomain = "transform"
    coupling: Words = ()

    def __post_init__(self) -> None:
        if len(self.depths) != len(self.num_heads) or not self.depths:
            raise ValueError(
                f"depths and num_heads have one number for each stage, got {self.depths} and {self.num_heads}"
            )
        check_common(self)
        self.grid_of(*self.image_shape)
        for i, heads in enumerate(self.num_heads):
            check_heads(2**i * self.d, heads, f"width of a slice in stage {i},")

    @property
    def stage_grids(self) -> list[tuple[int, ...]]:
        """The grid of every stage: halved by each merge, rounded up."""
        grids = [self.grid_of(*self.image_shape)]
        for _ in self.depths[1:]:
            grids.append((-(-grids[-1][0] // 2), -(-grids[-1][1] // 2)))
        return grids

    @property
    def num_features(self) -> int:
        """The full width of the last stage."""
        return self.embed_dim * 2 ** (len(self.depths) - 1)

    @property
    def depth(self) -> int:  # type: ignore[override]
        """Blocks in all."""
        return sum(self.depths)


class Stage(nn.Module):
    """A merge, except in the first stage, and blocks whose windows are shifted in every other one."""

    def __init__(self, downsample: nn.Module, blocks: list[nn.Module]):
        super().__init__()
        self.downsample = downsample
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor) -> Tensor:
        """(..., H, W, d) -> (..., H', W', d')."""
        x = self.downsample(x)
        for block in self.blocks:
            x = block(x)
        return x


class SwinTransformer(Pretrained, nn.Module):
    """Std-Swin or TCP-Swin, as its config says. `transform` gives a TCP-Swin a transform that no name determines.

    >>> import torch
    >>> config = SwinConfig("tcp", img_size=32, embed_dim=24, depths=(2, 2), num_heads=(1, 2), window_size=4)
    >>> SwinTransformer(config).forward_features(torch.randn(2, 3, 32, 32)).shape
    torch.Size([2, 4, 4, 48])
    """

    config_class = SwinConfig

    def __init__(self, config: SwinConfig, transform: Transform | Tensor | None = None):
        super().__init__()
        self.config = config
        self.num_classes, self.num_features, self.embed_dim = config.num_classes, config.num_features, config.embed_dim
        self.transform: HatTransform | None = None
        if config.kind == "tcp":
            self.transform = HatTransform(config.transform if transform is None else transform, config.tube_length)
        self.patch_embed = self._patch_embed()
        self.patch_norm = self._norm(config.d)
        self.layers = nn.ModuleList(self._stage(i) for i in range(len(config.depths)))
        self.norm = self._norm(2 ** (len(config.depths) - 1) * config.d)
        self.head = new_head(config.num_features, config.num_classes)
        self.apply(init_dense)

    def _patch_embed(self) -> nn.Module:
        config = self.config
        if self.transform is None:
            return PatchEmbed(config.in_chans, config.patch_size, config.embed_dim)
        kind = "t_linear" if config.tube_length == config.in_chans else "linear"
        return TPatchEmbed(config.in_chans, config.patch_size, config.d, self.transform, kind)

    def _norm(self, d: int) -> nn.Module:
        return nn.LayerNorm(d, eps=EPS) if self.transform is None else TLayerNorm(d, self.config.tube_length)

    def _stage(self, i: int) -> Stage:
        config, d, first = self.config, 2**i * self.config.d, sum(self.config.depths[:i])
        downsample = self._merging(d // 2) if i else nn.Identity()
        return Stage(downsample, [self._block(i, d, bool(j % 2), first + j) for j in range(config.depths[i])])

    def _merging(self, d: int) -> PatchMerging:
        if self.transform is None:
            return PatchMerging(self._norm(4 * d), nn.Linear(4 * d, 2 * d, bias=False))
        return PatchMerging(
            self._norm(4 * d), TLinear(4 * d, 2 * d, self.config.tube_length, self.transform, bias=False)
        )

    def _block(self, i: int, d: int, shifted: bool, number: int) -> nn.Module:
        config, grid = self.config, self.config.stage_grids[i]
        h, w = (min(config.window_size, size) for size in grid)
        shift = tuple(w // 2 if shifted and size > w else 0 for size, w in zip(grid, (h, w), strict=True))
        placed = {"grid": grid, "window": (h, w), "shift": shift}
        heads, options = config.num_heads[i], config.block_options(number)
        if self.transform is None:
            return Block(d, heads, attn_layer=partial(WindowAttention, **placed), **options)
        attn_layer = partial(TWindowAttention, **placed)
        return TBlock(d, heads, config.tube_length, self.transform, attn_layer=attn_layer, **options)

    # ------------------------------------------------------------------------------------------------- forward

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> logits (B, num_classes)."""
        return self.forward_head(self.forward_features(images))

    def forward_features(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> the last grid (B, H/32, W/32, D) after the last norm, in the spatial domain, as timm's."""
        x = self._to_tokens(images)
        for stage in self.layers:
            x = stage(x)
        return self._from_hat(self.norm(x))

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        """The last grid -> logits, or with `pre_logits` its mean (B, D)."""
        pooled = features.mean((1, 2))
        return pooled if pre_logits else self.head(pooled)

    def forward_intermediates(
        self,
        images: Tensor,
        indices: int | list[int] | None = None,
        *,
        norm: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> Any:
        """Feature maps (B, D, H, W) after the stages `indices` (a count of last stages, or a list; None: all).

        `norm` is the last stage's alone, as in timm. Without `intermediates_only`: (final grid, feature maps).
        """
        if output_fmt != "NCHW":
            raise ValueError(f"output_fmt is 'NCHW', got {output_fmt!r}")
        stages = len(self.layers)
        take = chosen_indices(indices, stages, "stages")
        x, found = self._to_tokens(images), []
        for i, stage in enumerate(self.layers):
            x = stage(x)
            if i in take:
                grid = self._from_hat(self.norm(x) if norm and i == stages - 1 else x)
                found.append(grid.permute(0, 3, 1, 2).contiguous())
        return found if intermediates_only else (self._from_hat(self.norm(x)), found)

    def _to_tokens(self, images: Tensor) -> Tensor:
        """Embedded tokens on their grid, in the layout of the stages."""
        grid = image_grid(images, self.config.in_chans, self.config.patch_size)
        return self.patch_norm(self.patch_embed(images)).unflatten(-2, grid)

    def _from_hat(self, x: Tensor) -> Tensor:
        """From the layout of the stages to (B, H, W, D)."""
        return x if self.transform is None else self.transform.from_hat_tokens(x).flatten(-2)

    def unflatten(self, features: Tensor) -> Tensor:
        """Flat features (..., d·C) as tensor tokens (..., d, C), a view; C = 1 for Std-Swin."""
        return features.unflatten(-1, (-1, self.config.tube_length))

    # ------------------------------------------------------------------------------------------------- timm's manners

    def get_classifier(self) -> nn.Module:
        """The head."""
        return self.head

    def reset_classifier(self, num_classes: int) -> None:
        """A new head for `num_classes` (0: none)."""
        self.config = replace(self.config, num_classes=num_classes)
        self.num_classes, at = num_classes, next(self.norm.parameters())
        self.head = new_head(self.num_features, num_classes).apply(init_dense).to(at.device, at.dtype)
