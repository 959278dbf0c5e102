"""Swin (Liu et al. 2021), Std and TCP from one skeleton: four stages of windows, with patches merged between them.

Inside, tokens lie on a grid, (B, H, W, D) for Std-Swin and hat slices first, (C, B, H, W, d), for TCP-Swin; outside,
both give (B, H, W, D) with the tube fastest. A merge takes every slice from 4d to 2d features, so that the tube is the
same in all stages, and there is one transform on the way in and one on the way out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from tcpvit.algebra.transforms import Transform
from tcpvit.layers import Block, Coupling, HatTransform, PatchEmbed, TBlock, TLayerNorm, TLinear, TPatchEmbed
from tcpvit.layers.attention import check_heads
from tcpvit.layers.groups import undecayed_names
from tcpvit.layers.norm import EPS
from tcpvit.layers.window import PatchMerging, TWindowAttention, WindowAttention
from tcpvit.models.config import EncoderConfig, as_words, check_common
from tcpvit.models.pretrained import Pretrained
from tcpvit.models.vit import init_dense


@dataclass(frozen=True)
class SwinConfig(EncoderConfig):
    """A standard Swin (`kind="std"`) or a TCP-Swin; `embed_dim` is the full width d·C of the first stage.

    >>> SwinConfig("tcp", num_heads=(1, 2, 4, 8)).stage_grids
    [(56, 56), (28, 28), (14, 14), (7, 7)]
    """

    kind: str
    img_size: int | tuple[int, int] = 224
    patch_size: int = 4
    in_chans: int = 3
    num_classes: int = 1000
    embed_dim: int = 96
    depths: tuple[int, ...] = (2, 2, 6, 2)
    num_heads: tuple[int, ...] = (3, 6, 12, 24)  # TCP: heads in each slice
    window_size: int = 7  # a stage whose grid is smaller has one window
    mlp_ratio: float = 4.0
    qkv_bias: bool = True
    drop_rate: float = 0.0
    attn_drop_rate: float = 0.0
    drop_path_rate: float = 0.0  # of the last block, rising linearly from 0
    # From here on TCP only.
    tube: int | None = None  # C; None: the image's channels
    transform: str = "dct"
    attention: str = "slice"
    activation_domain: str = "transform"
    coupling: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.check_counts("patch_size", "in_chans", "embed_dim", "window_size")
        if len(self.depths) != len(self.num_heads) or not self.depths or min(self.depths) < 1:
            raise ValueError(
                f"depths and num_heads have one number for each stage, got {self.depths} and {self.num_heads}"
            )
        object.__setattr__(self, "coupling", as_words(self.coupling))
        check_common(self)
        self.grid_of(*self.image_shape)
        for i, heads in enumerate(self.num_heads):
            check_heads(2**i * self.d, heads, f"width of a slice in stage {i},")

    @property
    def stage_grids(self) -> list[tuple[int, int]]:
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
    def depth(self) -> int:
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
        self.head = self._new_head()
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
        rates = [config.drop_path_rate * (first + j) / max(config.depth - 1, 1) for j in range(config.depths[i])]
        return Stage(downsample, [self._block(i, d, bool(j % 2), rate) for j, rate in enumerate(rates)])

    def _merging(self, d: int) -> PatchMerging:
        if self.transform is None:
            return PatchMerging(self._norm(4 * d), nn.Linear(4 * d, 2 * d, bias=False))
        return PatchMerging(
            self._norm(4 * d), TLinear(4 * d, 2 * d, self.config.tube_length, self.transform, bias=False)
        )

    def _block(self, i: int, d: int, shifted: bool, drop_path: float) -> nn.Module:
        config, grid = self.config, self.config.stage_grids[i]
        h, w = (min(config.window_size, size) for size in grid)
        shift = tuple(w // 2 if shifted and size > w else 0 for size, w in zip(grid, (h, w), strict=True))
        placed = {"grid": grid, "window": (h, w), "shift": shift}
        options: dict[str, Any] = {
            "mlp_ratio": config.mlp_ratio,
            "qkv_bias": config.qkv_bias,
            "drop": config.drop_rate,
            "attn_drop": config.attn_drop_rate,
            "drop_path": drop_path,
        }
        if self.transform is None:
            return Block(d, config.num_heads[i], attn_layer=partial(WindowAttention, **placed), **options)
        return TBlock(
            d,
            config.num_heads[i],
            config.tube_length,
            self.transform,
            attn_layer=partial(TWindowAttention, **placed),
            attention=config.attention,
            activation_domain=config.activation_domain,
            coupling=Coupling.parse(config.coupling),
            **options,
        )

    def _new_head(self) -> nn.Module:
        return nn.Linear(self.num_features, self.num_classes) if self.num_classes else nn.Identity()

    # ------------------------------------------------------------------------------------------------- forward

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> logits (B, num_classes)."""
        return self.forward_head(self.forward_features(images))

    def forward_features(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> the last grid (B, H/32, W/32, D) after the last norm, in the spatial domain, as timm's."""
        x = self._enter(images)
        for stage in self.layers:
            x = stage(x)
        return self._leave(self.norm(x))

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
        count = stages if indices is None else indices
        wanted = list(range(-count, 0)) if isinstance(count, int) else count
        if not wanted or any(not -stages <= i < stages for i in wanted):
            raise ValueError(f"indices={indices} does not name stages of this model; there are {stages} stages")
        x, found = self._enter(images), []
        for i, stage in enumerate(self.layers):
            x = stage(x)
            if i in {j % stages for j in wanted}:
                grid = self._leave(self.norm(x) if norm and i == stages - 1 else x)
                found.append(grid.permute(0, 3, 1, 2).contiguous())
        return found if intermediates_only else (self._leave(self.norm(x)), found)

    def _enter(self, images: Tensor) -> Tensor:
        """Embedded tokens on their grid, in the layout of the stages."""
        if images.ndim != 4 or images.shape[1] != self.config.in_chans:
            raise ValueError(f"images should be (B, {self.config.in_chans}, H, W), got shape {tuple(images.shape)}")
        grid = self.config.grid_of(images.shape[2], images.shape[3])
        return self.patch_norm(self.patch_embed(images)).unflatten(-2, grid)

    def _leave(self, x: Tensor) -> Tensor:
        """From the layout of the stages to (B, H, W, D)."""
        return x if self.transform is None else self.transform.leave(x).flatten(-2)

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
        self.head = self._new_head().apply(init_dense).to(at.device, at.dtype)

    def no_weight_decay(self) -> set[str]:
        """Names of the parameters that weight decay should leave alone."""
        return undecayed_names(self)
