"""Models as other runtimes like them: the same function in few, plain operations, for export and small batches.

What is fixed is folded into the maps beside it, exactly: Φ and the class token's position into the patch embedding, the
scale 1/√width into the queries, γ and β of the norms, and Φ⁻¹ into the head. Matrix products, softmax, norm and GELU
remain. Tokens are rows (B·N, C·d) with the slices end to end. A linear map of slices has one of two forms: `split`, one
product for each slice, or `dense`, one product with the block-diagonal matrix, which does C times the work and no more.
Models of other kinds, those of many slices, and those whose tokens meet neighbours on a grid stay as they are but for
`fuse_()`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tcpvit.errors import did_you_mean
from tcpvit.layers.coupling import shuffle_slices
from tcpvit.layers.embed import patchify
from tcpvit.layers.linear import TLinear
from tcpvit.layers.norm import TLayerNorm
from tcpvit.models.config import ViTConfig
from tcpvit.models.twin import as_rows, dense_map, head_order, patch_map
from tcpvit.models.vit import VisionTransformer

Form = Literal["auto", "slices", "split", "dense", "mixed"]
FORMS: tuple[str, ...] = get_args(Form)
MOST_SLICES = 4  # beyond, one batched product serves all slices
DENSE_WIDTH = (
    32  # slices up to this width: their attention maps are faster dense, in every runtime (benchmarks/deploy.py)
)


def deployed(model: nn.Module, form: Form = "auto") -> nn.Module:
    """A copy of the model for inference elsewhere, computing the same; `form` is that of the linear maps of slices.

    "mixed" has dense maps around the attention and split ones in the FFN; "slices" leaves batched products; "auto"
    decides by the width of the slices.

    >>> from tcpvit.models import create_model
    >>> model, images = create_model("tcp_vit_cifar_plus").eval(), torch.randn(2, 3, 32, 32)
    >>> torch.allclose(deployed(model)(images), model(images), atol=1e-5)
    True
    """
    if form not in FORMS:
        raise ValueError(f"no form of a graph is called {form!r}{did_you_mean(form, FORMS)}")
    plain: Any = copy.deepcopy(model).eval().requires_grad_(False)
    if hasattr(plain, "fuse_"):
        plain.fuse_()
    if form == "auto":
        form = chosen_form(plain)
    if form == "slices" or not isinstance(plain, VisionTransformer) or not is_of_rows(plain.config):
        return plain
    return RowsViT(plain, form).eval().requires_grad_(False)


def is_of_rows(config: ViTConfig) -> bool:
    """Whether tokens meet in attention over all of them and nowhere else: neighbours and groups need their grid."""
    on_grid = config.factorised or config.local or config.attention_pool > 1 or config.embedding == "conv"
    return not on_grid and not config.gated


def chosen_form(model: nn.Module) -> Form:
    """The form in which a model runs fastest elsewhere."""
    if not isinstance(model, VisionTransformer) or model.config.tube_length > MOST_SLICES:
        return "slices"
    return "mixed" if model.config.d <= DENSE_WIDTH else "split"


def linear(matrix: Tensor, shift: Tensor) -> nn.Linear:
    """A layer that computes x @ matrix + shift."""
    layer = nn.Linear(matrix.shape[0], matrix.shape[1], device="meta")
    layer.weight, layer.bias = nn.Parameter(matrix.mT.contiguous()), nn.Parameter(shift.contiguous())
    return layer


class SplitLinear(nn.Module):
    """One product for each slice: C rows (n, d_in) -> C rows (n, d_out)."""

    def __init__(self, layer: TLinear):
        super().__init__()
        assert layer.bias_hat is not None
        pairs = zip(layer.weight_hat.detach(), layer.bias_hat.detach(), strict=True)
        self.maps = nn.ModuleList(linear(weight, shift[0]) for weight, shift in pairs)

    def forward(self, slices: Sequence[Tensor]) -> list[Tensor]:
        """Slice by slice."""
        return [apply(x) for apply, x in zip(self.maps, slices, strict=True)]


class RowsNorm(nn.Module):
    """The norm of rows (n, C·d) without γ and β: of each slice, or of the whole row."""

    def __init__(self, norm: Any, tube: int, d: int):
        super().__init__()
        joint = tube == 1 or norm.joint
        self.groups, self.width, self.eps = 1 if joint else tube, tube * d if joint else d, norm.eps

    def forward(self, x: Tensor) -> Tensor:
        """(n, C·d) -> (n, C·d)."""
        if self.groups == 1:
            return F.layer_norm(x, (self.width,), eps=self.eps)
        return F.layer_norm(x.reshape(-1, self.width), (self.width,), eps=self.eps).view(-1, self.groups * self.width)


def scaled(norm: Any) -> Callable[[Tensor], Tensor]:
    """γ and β of a norm as a function of slices (C, n, d); `fuse_()` has left 1 and 0 where it could."""
    weight, shift = (norm.weight_hat, norm.bias_hat) if isinstance(norm, TLayerNorm) else (norm.weight, norm.bias)
    return lambda slices: slices * weight + shift


class RowsMlp(nn.Module):
    """The FFN of rows (n, C·d), by slices or dense."""

    def __init__(self, mlp: Any, norm: Any, tube: int, d: int, split: bool):
        super().__init__()
        self.d, self.split = d, split
        if split:
            self.fc1: nn.Module = SplitLinear(mlp.fc1)
            self.fc2: nn.Module = SplitLinear(mlp.fc2)
            return
        affine, spatial = scaled(norm), getattr(mlp, "spatial", False)  # a standard FFN has no domains

        def before(x: Tensor) -> Tensor:
            hidden = mlp.fc1(affine(x))
            return mlp.transform.from_hat(hidden) if spatial else hidden

        def after(hidden: Tensor) -> Tensor:
            hidden = mlp.transform.to_hat(hidden) if spatial else hidden
            return mlp.fc2(shuffle_slices(hidden) if getattr(mlp, "shuffle", False) else hidden)

        self.fc1 = linear(*dense_map(before, tube, d))
        self.fc2 = linear(*dense_map(after, tube, self.fc1.out_features // tube))

    def forward(self, x: Tensor) -> Tensor:
        """(n, C·d) -> (n, C·d)."""
        if not self.split:
            return self.fc2(F.gelu(self.fc1(x)))
        hidden = [F.gelu(h) for h in self.fc1(x.split(self.d, dim=1))]
        return torch.cat(self.fc2(hidden), dim=1)


class RowsAttention(nn.Module):
    """Attention of rows (B·N, C·d) in blocks of N tokens; `maps` softmax maps over features of some width."""

    def __init__(self, attention: Any, norm: Any, tokens: int, tube: int, split: bool):
        super().__init__()
        self.tokens, self.tube, self.split = tokens, tube, split
        self.heads, self.d_h = attention.num_heads, attention.head_dim
        self.d = self.heads * self.d_h
        self.joint = tube > 1 and attention.joint
        self.maps, self.width = (self.heads, tube * self.d_h) if self.joint else (tube * self.heads, self.d_h)
        if split:
            self.qkv: Any = SplitLinear(attention.qkv)
            self.proj: Any = SplitLinear(attention.proj)
        else:
            self._build_dense(attention, scaled(norm))
        with torch.no_grad():  # the scale of the scores goes into the queries
            for layer in self.qkv.maps if split else [self.qkv]:
                for parameter in layer.parameters():
                    parameter[: len(parameter) // 3] /= math.sqrt(self.width)

    def _build_dense(self, attention: Any, affine: Callable[[Tensor], Tensor]) -> None:
        """The features stand as (3, maps, width) behind qkv and as (maps, width) before proj."""
        columns, rows = (head_order(self.tube, self.heads, self.d_h, self.joint, parts) for parts in (3, 1))
        shuffle = getattr(attention, "shuffle", False)
        matrix, shift = dense_map(lambda x: attention.qkv(affine(x)), self.tube, self.d)
        self.qkv = linear(matrix[:, columns], shift[columns])
        project = (lambda o: attention.proj(shuffle_slices(o))) if shuffle else attention.proj
        matrix, shift = dense_map(project, self.tube, self.d)
        self.proj = linear(matrix[rows], shift)

    def forward(self, x: Tensor) -> Tensor:
        """(B·N, C·d) -> (B·N, C·d)."""
        features = self._gather(self.qkv(x.split(self.d, dim=1))) if self.split else self.qkv(x)
        parts = features.view(-1, self.tokens, 3, self.maps, self.width).permute(2, 0, 3, 1, 4)
        q, k, v = parts.unbind(0)  # (B, maps, N, width)
        o = torch.softmax(q @ k.transpose(-1, -2), dim=-1) @ v
        rows = o.transpose(1, 2).reshape(-1, self.maps * self.width)
        return torch.cat(self.proj(self._slices(rows)), dim=1) if self.split else self.proj(rows)

    def _gather(self, slices: list[Tensor]) -> Tensor:
        """C rows (n, 3·H·d_h) -> (n, 3, maps, width)."""
        parts = [x.view(-1, 3, self.heads, self.d_h) for x in slices]
        return torch.cat(parts, dim=3 if self.joint else 2)

    def _slices(self, rows: Tensor) -> Sequence[Tensor]:
        """(n, maps·width) -> C rows (n, d)."""
        if not self.joint:
            return rows.split(self.d, dim=1)
        parts = rows.view(-1, self.heads, self.width).split(self.d_h, dim=2)
        return [part.reshape(-1, self.d) for part in parts]


class RowsBlock(nn.Module):
    """A fused `Block` or `TBlock` on rows (B·N, C·d)."""

    def __init__(self, block: Any, tokens: int, tube: int, d: int, form: str):
        super().__init__()
        maps = block.attn.qkv, block.attn.proj, block.mlp.fc1, block.mlp.fc2
        split = all(map(is_plain, maps)) and not block.mlp.spatial and not block.mlp.shuffle
        self.norm1, self.norm2 = RowsNorm(block.norm1, tube, d), RowsNorm(block.norm2, tube, d)
        self.attn = RowsAttention(block.attn, block.norm1, tokens, tube, split and form == "split")
        self.mlp = RowsMlp(block.mlp, block.norm2, tube, d, split and form != "dense")

    def forward(self, x: Tensor) -> Tensor:
        """(B·N, C·d) -> (B·N, C·d)."""
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


def is_plain(layer: nn.Module) -> bool:
    """One matrix and one bias for each slice, and nothing else."""
    return type(layer) is TLinear and layer.bias_hat is not None and len(layer.weight_hat) == layer.tube


class RowsViT(nn.Module):
    """A fused `VisionTransformer`, Std or TCP, on rows of tokens: images (B, C, H, W) -> logits (B, classes)."""

    def __init__(self, model: VisionTransformer, form: str):
        super().__init__()
        config = model.config
        tube, d = config.tube_length, config.d
        self.bands, self.stem = model.bands, model.stem
        self.patch = config.patch_shape
        self.grid = config.grid_of(*config.image_shape)
        self.prefix, self.width, self.pool = config.num_prefix_tokens, config.width, config.global_pool
        self.tokens = self.prefix + math.prod(self.grid)
        self._embed(model)
        self.blocks = nn.ModuleList(RowsBlock(block, self.tokens, tube, d, form) for block in model.blocks)
        self.norm = RowsNorm(model.norm, tube, d)
        self.head = linear(*self._head(model, tube, d))

    @torch.no_grad()
    def _embed(self, model: VisionTransformer) -> None:
        """The matrix of a patch's pixels, (c·P², C·d), and the table of everything that is added, (1+N, C·d)."""
        sides = (pixels * patches for pixels, patches in zip(self.patch, self.grid, strict=True))
        blank = torch.zeros(1, model.config.embedded_channels, *sides)
        table = model.embed(model.patch_embed(blank), self.grid)
        self.pixels = nn.Parameter(patch_map(model)[0])
        self.table = nn.Parameter(as_rows(table.squeeze(-3)).reshape(self.tokens, -1))

    def _head(self, model: VisionTransformer, tube: int, d: int) -> tuple[Tensor, Tensor]:
        """From the norm to the logits; two tokens of a distilled model stand side by side."""
        heads = [model.head] if model.head_dist is None else [model.head, model.head_dist]
        affine = scaled(model.norm)

        def through(head: nn.Module) -> Callable[[Tensor], Tensor]:
            def function(slices: Tensor) -> Tensor:
                x = affine(slices)
                return head(x[0] if model.transform is None else model.transform.from_hat_tokens(x).flatten(-2))

            return function

        parts = [dense_map(through(head), tube, d) for head in heads]
        matrix = torch.cat([matrix for matrix, _ in parts]) / len(heads)
        return matrix, torch.stack([shift for _, shift in parts]).mean(0)

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, classes)."""
        images = self.stem(self.bands(images))
        patches = patchify(images, self.patch).flatten(2)  # (B, N, P²·C)
        x = F.pad(patches @ self.pixels, (0, 0, self.prefix, 0)) + self.table  # (B, 1+N, C·d)
        x = x.view(-1, self.width)
        for block in self.blocks:
            x = block(x)
        x = x.view(-1, self.tokens, self.width)
        if self.pool == "avg":
            normed = self.norm(x[:, self.prefix :].reshape(-1, self.width))
            return self.head(normed.view(-1, math.prod(self.grid), self.width).mean(1))
        normed = self.norm(x[:, : self.prefix].reshape(-1, self.width))  # the head reads no others
        return self.head(normed.view(-1, self.prefix * self.width))
