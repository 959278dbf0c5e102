"""The Vision Transformer (paper, Sections 3 and 4): one skeleton for Std-ViT and TCP-ViT.

Images (B, C, H, W), volumes and clips (B, C, T, H, W) go the same way.
The two differ in the layers they are given. Inside, tokens are (B, 1+N, D) for Std-ViT and (C, B, 1+N, d) in the hat
domain for TCP-ViT; outside, both give (B, 1+N, D) with the tube fastest, D = d·C. With `distilled` either is a DeiT:
a distillation token stands after the class token, (B, 2+N, D), and has its own head. For scenes of many bands a
truncated transform of the spectrum comes first, and convolutions by slices (`layers.bands`) may follow it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tcpvit.algebra.transforms import Transform
from tcpvit.layers import (
    Attention,
    Block,
    HatTransform,
    PatchEmbed,
    TAttention,
    TBlock,
    TLayerNorm,
    TokenEmbedding,
    TPatchEmbed,
)
from tcpvit.layers.bands import BandDCT, BandStem
from tcpvit.layers.embed import image_grid
from tcpvit.layers.fuse import fuse_block_
from tcpvit.layers.linear import init_weight_
from tcpvit.layers.local import ConvEmbed, pool_tokens
from tcpvit.layers.norm import EPS
from tcpvit.models.config import Pool, ViTConfig
from tcpvit.models.pretrained import Pretrained

FUSED = "a fused model is for inference only; train it before fuse_(), or save it and load it again"


class VisionTransformer(Pretrained, nn.Module):
    """Std-ViT or TCP-ViT, as its config says.

    `transform` gives a TCP-ViT a transform that no name determines, `band_basis` its rows of the basis "pca".

    >>> model = VisionTransformer(ViTConfig(kind="tcp", img_size=32, patch_size=4))
    >>> model(torch.randn(2, 3, 32, 32)).shape, sum(p.numel() for p in model.parameters())
    (torch.Size([2, 10]), 43114)
    """

    config_class = ViTConfig
    fused = False

    def __init__(
        self, config: ViTConfig, transform: Transform | Tensor | None = None, band_basis: Tensor | None = None
    ):
        super().__init__()
        self.config = config
        self.num_classes, self.num_features, self.embed_dim = config.num_classes, config.width, config.width
        self.global_pool, self.num_prefix_tokens = config.global_pool, config.num_prefix_tokens
        self.patch_size = config.patch_shape
        self.distilled_training = False
        basis = config.band_basis if band_basis is None else band_basis
        self.bands = nn.Identity() if config.kept is None else BandDCT(config.in_chans, config.kept, basis)
        self.stem = BandStem(config.coefficients, config.stem) if config.stem else nn.Identity()
        if config.kind == "std":
            self._build_std(config)
        else:
            self._build_tcp(config, config.transform if transform is None else transform)
        self.head = new_head(config.width, config.num_classes)
        self.head_dist = new_head(config.width, config.num_classes) if config.distilled else None
        self.apply(init_dense)
        if config.zero_residual:
            self.zero_residual_()

    def _build_std(self, config: ViTConfig) -> None:
        self.transform: HatTransform | None = None
        self.patch_embed: nn.Module = self._conv_embed() or PatchEmbed(
            config.channels, config.patch_shape, config.width
        )
        self.embed = self._token_embedding((1,))
        self.blocks = nn.ModuleList(
            Block(config.width, config.num_heads, attn_layer=self._attention(Attention, i), **config.block_options(i))
            for i in range(config.depth)
        )
        self.norm: nn.Module = nn.LayerNorm(config.width, eps=EPS)

    def _build_tcp(self, config: ViTConfig, transform: str | tuple[str, ...] | Transform | Tensor) -> None:
        tube, d = config.tube_length, config.d
        self.transform = phi = HatTransform(transform, config.tube_shape)
        coupling = config.slice_coupling
        self.patch_embed = self._conv_embed(tube) or TPatchEmbed(
            config.embedded_channels,
            config.patch_shape,
            d,
            phi,
            config.embedding,
            share=coupling.shared,
            axes=config.tube_axes,
        )
        self.embed = self._token_embedding((tube, 1), shared=coupling.shared)
        self.blocks = nn.ModuleList(
            TBlock(
                d,
                config.num_heads,
                tube,
                phi,
                attn_layer=self._attention(TAttention, i),
                **config.block_options(i),
            )
            for i in range(config.depth)
        )
        self.norm = TLayerNorm(d, tube, joint=coupling.norm, shared=coupling.shared)

    def _attention(self, layer: Callable[..., Any], i: int) -> Callable[..., Any]:
        """The attention of block i: of a factorised model in turn within frames and along the depth."""
        return partial(layer, along=("space", "time")[i % 2]) if self.config.factorised else layer

    def _token_embedding(self, lead: tuple[int, ...], shared: bool = False) -> TokenEmbedding:
        config = self.config
        grid = config.grid_of(*config.image_shape)
        return TokenEmbedding(
            lead,
            grid,
            config.d,
            config.drop_rate,
            config.distilled,
            shared=shared,
            class_token=config.class_token,
            positions=config.positions,
        )

    def _conv_embed(self, tube: int | None = None) -> ConvEmbed | None:
        config = self.config
        if config.embedding != "conv":
            return None
        return ConvEmbed(config.channels, config.patch_shape[0], config.between, config.d, tube)

    @torch.no_grad()
    def zero_residual_(self) -> None:
        """Set what every branch adds to its residual to zero: the blocks are identities, and learn from there."""
        block: Any
        for block in self.blocks:
            for last in (block.attn.proj, block.mlp.fc2):
                weights = [p for name, p in last.named_parameters() if name != "mix"]
                torch._foreach_zero_(weights)

    # ------------------------------------------------------------------------------------------------- forward

    def forward(self, images: Tensor) -> Any:
        """(B, C, H, W) -> logits (B, num_classes); a pair of them in distilled training."""
        x = self._encode(images)
        if self.global_pool == "token":
            x = x[..., : self.num_prefix_tokens, :]  # the head reads no others: spare them the norm and the transform
            return self.forward_head(self._from_hat(self.norm(x)))
        pooled = self.norm(x)[..., self.num_prefix_tokens :, :].mean(-2, keepdim=True)  # the transform is linear
        return self.head(self._from_hat(pooled).squeeze(-2))

    def forward_features(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> tokens (B, 1+N, D) after the last norm, in the spatial domain."""
        return self._from_hat(self.norm(self._encode(images)))

    def forward_head(self, tokens: Tensor, pre_logits: bool = False) -> Any:
        """Tokens (B, 1+N, D) -> logits, or with `pre_logits` the pooled features (B, D).

        A distilled ViT averages its two heads; after `set_distilled_training()` it gives both while training.
        """
        if self.head_dist is not None:
            return self._forward_heads(tokens[:, 0], tokens[:, 1], pre_logits)
        pooled = tokens[:, 0] if self.global_pool == "token" else tokens[:, self.num_prefix_tokens :].mean(1)
        return pooled if pre_logits else self.head(pooled)

    def _forward_heads(self, cls: Tensor, dist: Tensor, pre_logits: bool) -> Any:
        if pre_logits:
            return (cls + dist) / 2
        assert self.head_dist is not None
        logits, dist_logits = self.head(cls), self.head_dist(dist)
        return (logits, dist_logits) if self.training and self.distilled_training else (logits + dist_logits) / 2

    def set_distilled_training(self, enable: bool = True) -> None:
        """While training give both heads' logits, (class, distillation), as a distillation loss needs them."""
        if enable and self.head_dist is None:
            raise ValueError("this model has no distillation token; build it with distilled=True")
        self.distilled_training = enable

    def _encode(self, images: Tensor) -> Tensor:
        """Tokens behind the last block, in the encoder's own layout."""
        x, grid = self._to_tokens(images), self._grid(images)
        for block in self.blocks:
            x = block(x, grid)
        return x

    def _to_tokens(self, images: Tensor) -> Tensor:
        """Embedded tokens in the encoder's own layout."""
        grid = self._grid(images)
        tokens = self.embed(self.patch_embed(self.stem(self.bands(images))), grid)
        return tokens.to(next(self.blocks.parameters()).dtype)  # residuals are as exact as weights, under autocast too

    def _from_hat(self, x: Tensor) -> Tensor:
        """From the encoder's layout to (B, 1+N, D)."""
        return x if self.transform is None else self.transform.from_hat_tokens(x).flatten(-2)

    def _grid(self, images: Tensor) -> tuple[int, ...]:
        return image_grid(images, self.config.in_chans, self.patch_size, len(self.patch_size))

    def unflatten(self, tokens: Tensor) -> Tensor:
        """Flat tokens (..., d·C) as tensor tokens (..., d, C), a view; C = 1 for Std-ViT."""
        return tokens.unflatten(-1, (self.config.d, self.config.tube_length))

    # --------------------------------------------------------------------------------------------- looking inside

    def forward_intermediates(
        self,
        images: Tensor,
        indices: int | list[int] | None = None,
        *,
        norm: bool = False,
        return_prefix_tokens: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> Any:
        """Tokens after the blocks `indices` (a count of last blocks, or a list; None: all), as timm gives them.

        "NCHW" gives feature maps (B, D, H/P, W/P), of volumes (B, D, T/P, H/P, W/P), "NLC" tokens (B, N, D). Without
        `intermediates_only` the result is (final tokens, intermediates); with `return_prefix_tokens` each intermediate
        is a pair with the class token(s).
        """
        if output_fmt not in ("NCHW", "NLC"):
            raise ValueError(f"output_fmt is 'NCHW' or 'NLC', got {output_fmt!r}")
        take = chosen_indices(indices, len(self.blocks), "blocks")
        grid, x, found = self._grid(images), self._to_tokens(images), []
        for i, block in enumerate(self.blocks):
            x = block(x, grid)
            if i in take:
                tokens = self._from_hat(self.norm(x) if norm else x)
                prefix, patches = tokens.tensor_split([self.num_prefix_tokens], dim=1)
                maps = patches.transpose(-1, -2).unflatten(-1, grid) if output_fmt == "NCHW" else patches
                found.append((maps, prefix) if return_prefix_tokens else maps)
        return found if intermediates_only else (self._from_hat(self.norm(x)), found)

    @torch.no_grad()
    def attention_maps(self, images: Tensor) -> list[Tensor]:
        """The softmax maps of each block: (C, B, H, 1+N, 1+N) for slice attention, else (B, H, 1+N, 1+N).

        In a factorised model there is one for each frame (or place), which B counts too, over the tokens of that alone.
        With `attention_pool` N counts the pooled tokens.
        """
        x, maps, grid = self._to_tokens(images), [], self._grid(images)
        block: Any
        for block in self.blocks:
            read = block.norm1(x)
            maps.append(
                block.attn.maps(read, grid)
                if block.pool == 1
                else block.attn.maps(pool_tokens(read, grid, block.pool), tuple(n // block.pool for n in grid))
            )
            x = block(x, grid)
        return maps

    # ------------------------------------------------------------------------------------------------- for inference

    def fuse_(self) -> VisionTransformer:
        """Fold the norms of the blocks into the layers that read them, exactly; from then on it is for inference.

        A fused model may be saved: it comes back as an ordinary model that computes the same.

        >>> model = VisionTransformer(ViTConfig(kind="tcp", img_size=32, patch_size=4))
        >>> images = torch.randn(2, 3, 32, 32)
        >>> before = model(images)
        >>> torch.allclose(model.fuse_()(images), before, atol=1e-5)
        True
        """
        for block in self.blocks:
            fuse_block_(block)
        self.fused = True
        return self.eval()

    def train(self, mode: bool = True) -> VisionTransformer:
        """Set the mode; a fused model stays in eval mode."""
        if mode and self.fused:
            raise ValueError(FUSED)
        return super().train(mode)

    # ------------------------------------------------------------------------------------------------- timm's manners

    def get_classifier(self) -> Any:
        """The head, or the two heads of a distilled ViT."""
        return self.head if self.head_dist is None else (self.head, self.head_dist)

    def reset_classifier(self, num_classes: int, global_pool: Pool | None = None) -> None:
        """A new head for `num_classes` (0: none), and another pooling if given."""
        pool = global_pool or self.config.global_pool
        self.config = replace(self.config, num_classes=num_classes, global_pool=pool)
        self.num_classes, self.global_pool = num_classes, pool
        at = next(self.norm.parameters())
        self.head = new_head(self.num_features, num_classes).apply(init_dense).to(at.device, at.dtype)
        if self.head_dist is not None:
            self.head_dist = new_head(self.num_features, num_classes).apply(init_dense).to(at.device, at.dtype)


def new_head(width: int, num_classes: int) -> nn.Module:
    """A dense classifier of features (..., width); without classes the features themselves."""
    return nn.Linear(width, num_classes) if num_classes else nn.Identity()


def chosen_indices(indices: int | list[int] | None, count: int, what: str) -> set[int]:
    """The places that `indices` means among `count` blocks or stages: a count of last ones, a list, or None for all.

    >>> chosen_indices(2, 4, "blocks"), chosen_indices([0, -1], 4, "blocks")
    ({2, 3}, {0, 3})
    """
    indices = count if indices is None else indices
    wanted = list(range(-indices, 0)) if isinstance(indices, int) else indices
    if not wanted or any(not -count <= i < count for i in wanted):
        raise ValueError(f"indices={indices} does not name {what} of this model; there are {count} {what}")
    return {i % count for i in wanted}


def init_dense(module: nn.Module) -> None:
    """Dense layers start as slices do, with their own fan-in."""
    if isinstance(module, nn.Linear):
        init_weight_(module.weight, fan_in=module.in_features)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
