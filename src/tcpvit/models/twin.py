"""The dense twin of a TCP-ViT: plain nn.Linears with equal outputs (FACTS: every t-Linear is a dense layer).

Its tokens are the hat slices laid end to end, (B, 1+N, C·d). Every linear map of the TCP-ViT, coupling, shuffle and
transform included, becomes one nn.Linear; the per-slice LayerNorm stays. Slice attention has C·H heads of size d_h,
joint attention H heads of size C·d_h. It has C times the weights and is there to check, to compare and to export.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tcpvit.layers import (
    Attention,
    Block,
    Mlp,
    PatchEmbed,
    TBlock,
    TConv2d,
    TLayerNorm,
    TMlp,
    TokenEmbedding,
    shuffle_slices,
)
from tcpvit.layers.embed import patch_grid
from tcpvit.layers.local import ConvEmbed, TokenConv
from tcpvit.models.vit import VisionTransformer


class SliceLayerNorm(nn.Module):
    """LayerNorm of every slice by itself (or of all together), on slices laid end to end: (..., C·d) -> (..., C·d)."""

    def __init__(self, norm: TLayerNorm):
        super().__init__()
        self.shape, self.eps = (1, norm.tube * norm.d) if norm.joint else (norm.tube, norm.d), norm.eps
        gamma, beta = (p.detach().expand(norm.tube, -1, -1) for p in (norm.weight_hat, norm.bias_hat))
        self.weight, self.bias = nn.Parameter(gamma.flatten().clone()), nn.Parameter(beta.flatten().clone())

    def forward(self, x: Tensor) -> Tensor:
        """Same shape."""
        normed = F.layer_norm(x.unflatten(-1, self.shape), self.shape[1:], eps=self.eps)
        return normed.flatten(-2) * self.weight + self.bias


class DenseTwin(nn.Module):
    """Made by `dense_twin`; `forward` and `forward_features` as the TCP-ViT's."""

    def __init__(self, model: VisionTransformer):
        super().__init__()
        assert model.transform is not None
        config, phi = model.config, model.transform
        C, d, D = config.tube_length, config.d, config.width
        self.patch_shape, self.global_pool = config.patch_shape, model.global_pool
        self.before = copy.deepcopy(nn.Sequential(model.bands, model.stem))
        self.patch_embed = _twin_embed(model)
        self.embed = TokenEmbedding(
            (1,),
            model.embed.grid,
            D,
            distilled=config.distilled,
            class_token=config.class_token,
            positions=config.positions,
        )
        for name, parameter in self.embed.named_parameters():
            parameter.data.copy_(_end_to_end(model.embed.get_parameter(name).expand(C, -1, -1, -1)))
        self.blocks = nn.ModuleList(_twin_block(block) for block in model.blocks)  # type: ignore[arg-type]
        self.norm = SliceLayerNorm(model.norm)  # type: ignore[arg-type]
        self.from_hat = nn.Linear(D, D, bias=False)
        units = torch.eye(D).to(phi.matrices()[1]).view(D, C, d).transpose(0, 1)  # every unit token, slices first
        self.from_hat.weight.data.copy_(phi.from_hat_tokens(units).flatten(1).mT)
        self.head, self.head_dist = copy.deepcopy((model.head, model.head_dist))

    def forward_features(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, 1+N, D) in the spatial domain, tube fastest."""
        grid = patch_grid(images.shape[2:], self.patch_shape)
        x = self.embed(self.patch_embed(self.before(images)), grid)
        for block in self.blocks:
            x = block(x, grid)
        return self.from_hat(self.norm(x))

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> logits."""
        tokens = self.forward_features(images)
        if self.head_dist is not None:
            return (self.head(tokens[:, 0]) + self.head_dist(tokens[:, 1])) / 2
        first = self.embed.num_prefix_tokens
        return self.head(tokens[:, 0] if self.global_pool == "token" else tokens[:, first:].mean(1))


@torch.no_grad()
def dense_twin(model: VisionTransformer) -> DenseTwin:
    """The model of plain nn.Linears that computes the same as `model`, for every option of a TCP-ViT.

    >>> from tcpvit.models import create_model
    >>> tcp = create_model("tcp_vit_cifar")
    >>> images = torch.randn(2, 3, 32, 32)
    >>> torch.allclose(dense_twin(tcp)(images), tcp(images), atol=1e-4)
    True
    """
    if not isinstance(model, VisionTransformer):
        raise ValueError(f"dense_twin takes a TCP-ViT, got a {type(model).__name__}; of a segmenter pass its backbone")
    if model.transform is None:
        raise ValueError("dense_twin takes a TCP-ViT, got a standard ViT, which is dense already")
    at = next(model.parameters())
    previous = torch.get_default_dtype()
    torch.set_default_dtype(at.dtype)
    try:
        with torch.device(at.device):
            return DenseTwin(model).train(model.training)
    finally:
        torch.set_default_dtype(previous)


@torch.no_grad()
def dense_map(function: Callable[[Tensor], Tensor], tube: int, d_in: int) -> tuple[Tensor, Tensor]:
    """The matrix (C·d_in, out) and the shift (out) of an affine map of slices (C, n, d_in) to slices or rows.

    >>> dense_map(lambda x_hat: 2 * x_hat, tube=2, d_in=1)
    (tensor([[2., 0.],
            [0., 2.]]), tensor([0., 0.]))
    """
    units = torch.eye(tube * d_in).view(-1, tube, d_in).transpose(0, 1).contiguous()  # (C, C·d_in, d_in)
    shift = as_rows(function(torch.zeros(tube, 1, d_in)))  # (1, out)
    return as_rows(function(units)) - shift, shift[0]


def as_rows(slices: Tensor) -> Tensor:
    """Slices (C, n, d) -> rows (n, C·d) with the slices end to end; rows stay as they are."""
    return slices.transpose(0, 1).flatten(1) if slices.ndim == 3 else slices


def head_order(tube: int, heads: int, d_h: int, joint: bool, parts: int = 1) -> Tensor:
    """Where features (parts, softmax map, its width) stand among slices end to end, (C, parts, heads, d_h).

    >>> head_order(2, 2, 1, joint=True).tolist(), head_order(2, 2, 1, joint=False).tolist()
    ([0, 2, 1, 3], [0, 1, 2, 3])
    """
    order = torch.arange(tube * parts * heads * d_h).view(tube, parts, heads, d_h)
    return (order.permute(1, 2, 0, 3) if joint else order.transpose(0, 1)).flatten()


@torch.no_grad()
def patch_map(model: VisionTransformer) -> tuple[Tensor, Tensor]:
    """The matrix (P²·channels, C·d) and the shift from a flat patch, channels fastest, to the slices of its token."""
    sides, channels = model.config.patch_shape, model.config.embedded_channels
    pixels = prod(sides) * channels
    units = torch.eye(pixels).view(pixels, *sides, channels).movedim(-1, 1)  # images of one patch

    def token(images: Tensor) -> Tensor:
        return as_rows(model.patch_embed(images).flatten(-3, -2)).reshape(len(images), -1)  # (n, C·d)

    shift = token(torch.zeros(1, channels, *sides))
    return token(units) - shift, shift[0]


def _twin_block(block: TBlock) -> Block:
    attn, mlp = block.attn, block.mlp
    C, d, hidden = attn.tube, attn.qkv.d_in, mlp.hidden
    heads = attn.num_heads if attn.joint else C * attn.num_heads
    layer = partial(Attention, along=attn.along)
    twin: Any = Block(C * d, heads, attn_layer=layer, attention_pool=block.pool)
    twin.mlp = Mlp(C * d, C * hidden, local=mlp.local.kernel if mlp.local else 0, gated=mlp.gated)
    twin.norm1, twin.norm2 = SliceLayerNorm(block.norm1), SliceLayerNorm(block.norm2)
    qkv_order, order = (head_order(C, attn.num_heads, attn.head_dim, attn.joint, parts) for parts in (3, 1))
    _fold(twin.attn.qkv, *dense_map(attn.qkv, C, d), columns=qkv_order)
    project = dense_map(lambda o: attn.proj(shuffle_slices(o) if attn.shuffle else o), C, d)
    _fold(twin.attn.proj, project[0][order], project[1])
    order = torch.arange(C * mlp.fc1.d_out).view(C, -1, hidden).transpose(0, 1).flatten()  # (C, 1 or 2, hidden)
    _fold(twin.mlp.fc1, *dense_map(lambda x: _leave_if(mlp, mlp.fc1(x)), C, d), columns=order)
    if mlp.local is not None:
        _twin_filters(mlp, twin.mlp.local)
    _fold(twin.mlp.fc2, *dense_map(lambda h: mlp.fc2(_enter_if(mlp, h)), C, hidden))
    return twin


def _twin_filters(mlp: TMlp, twin: TokenConv) -> None:
    """Filters of slices laid end to end; Φ⁻¹ is in fc1 then, and passes filters only if all slices share them."""
    filters = mlp.local
    assert filters is not None
    if mlp.spatial and filters.own > 1:
        raise ValueError(
            "filters by slices before a spatial GELU have no dense twin: the transform stands between them"
        )
    times = mlp.fc1.tube // filters.own
    bias = filters.bias_hat.repeat(times).view(mlp.fc1.tube, 1, mlp.hidden)
    twin.weight_hat.data.copy_(filters.weight_hat.repeat(times, 1, 1, 1))
    twin.bias_hat.data.copy_(_leave_if(mlp, bias).flatten())


def _twin_embed(model: VisionTransformer) -> PatchEmbed | ConvEmbed:
    config, embed = model.config, model.patch_embed
    if not isinstance(embed, ConvEmbed):
        patches = PatchEmbed(config.embedded_channels, config.patch_shape, config.width)
        _fold(patches.proj, *patch_map(model))
        return patches
    twin = ConvEmbed(config.channels, config.patch_shape[0], config.between, config.width)
    twin.first = copy.deepcopy(embed.first)
    dense: Any
    conv: Any
    for dense, conv in zip(twin.rest, embed.rest, strict=True):
        taps = [torch.block_diag(*weights) for weights in _taps(conv)]
        dense.weight_hat.data.copy_(torch.stack(taps, -1).view_as(dense.weight_hat))
        dense.bias_hat.data.copy_(conv.bias_hat)
    return twin


def _taps(conv: TConv2d) -> list[tuple[Tensor, ...]]:
    """For each place of a filter the matrix of each slice, (d_out, d_in)."""
    places = conv.weight_hat.unflatten(0, (conv.tube, -1)).flatten(3)  # (C, d_out, d_in, k²)
    return [place.unbind(0) for place in places.unbind(-1)]


def _leave_if(mlp: TMlp, h_hat: Tensor) -> Tensor:
    """What GELU acts on: Φ⁻¹ folds into fc1 if the activation is spatial."""
    return mlp.transform.from_hat(h_hat) if mlp.spatial else h_hat


def _enter_if(mlp: TMlp, h: Tensor) -> Tensor:
    """From GELU to fc2: Φ and the shuffle fold into fc2."""
    h_hat = mlp.transform.to_hat(h) if mlp.spatial else h
    return shuffle_slices(h_hat) if mlp.shuffle else h_hat


def _end_to_end(x_hat: Tensor) -> Tensor:
    """(C, 1, n, d) -> (1, n, C·d)."""
    return x_hat.squeeze(1).transpose(0, 1).flatten(1).unsqueeze(0)


def _fold(linear: nn.Linear, matrix: Tensor, shift: Tensor, columns: Tensor | slice = slice(None)) -> None:
    """Let the layer compute x @ matrix + shift, its outputs in the order of `columns`."""
    linear.weight.data.copy_(matrix[:, columns].mT)
    linear.bias.data.copy_(shift[columns])
