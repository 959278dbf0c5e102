"""Drop-ins: c-product layers that stand where foreign code expects one of its own.

Each takes and gives what the layer it replaces does, and shows its dense weights, differentiable, under the old names,
because other people's code reads them (BEiT, SwinV2, EVA and nn.TransformerEncoderLayer do). `tensorized` makes the
drop-in of a layer, `densified` is the exact way back. Biases stay the same parameters.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from tcpvit.layers.linear import TransformOf, TubalLinear, tubal_product
from tcpvit.tensorize.config import Init

Errors = dict[str, float | None]  # the relative projection error of each linear map of a layer; None if drawn anew


class TubalConv1D(TubalLinear):
    """In the place of transformers' Conv1D, a linear layer whose weight is (in, out)."""

    @property
    def nf(self) -> int:
        """Output features."""
        return self.out_features

    @property
    def nx(self) -> int:
        """Input features."""
        return self.in_features

    @property
    def weight(self) -> Tensor:
        """The dense (in, out) matrix."""
        return self.dense_matrix().mT

    @classmethod
    def of(cls, conv: Any, tube: int, transform: TransformOf, init: Init) -> tuple[TubalConv1D, Errors]:
        """The drop-in of `conv`, and its projection error."""
        layer, error = make_map(conv.weight.mT, conv.bias, tube, transform, init, cls)
        return layer, {"": error}

    def to_dense(self) -> Any:
        """The Conv1D that computes the same."""
        from transformers.pytorch_utils import Conv1D

        dense = Conv1D(self.out_features, self.in_features)
        dense.weight = like(self.weight_hat, self.weight)
        dense.bias = self.bias
        return dense


class TubalPatchConv2d(TubalLinear):
    """In the place of a nn.Conv2d that is a linear map of pixels (1×1) or of patches (its stride is its kernel).

    The tube runs along the input channels, as the paper's flatten(P², C).
    """

    in_channels: int
    kernel_size: tuple[int, int]
    stride: tuple[int, int]

    padding, dilation, groups, padding_mode = (0, 0), (1, 1), 1, "zeros"

    @property
    def out_channels(self) -> int:
        """Output channels."""
        return self.out_features

    @property
    def weight(self) -> Tensor:
        """The dense (out, in, height, width) filters."""
        return self.dense_matrix().unflatten(1, (*self.kernel_size, -1)).movedim(-1, 1)

    @classmethod
    def of(cls, conv: nn.Conv2d, tube: int, transform: TransformOf, init: Init) -> tuple[TubalPatchConv2d, Errors]:
        """The drop-in of `conv`, and its projection error."""
        matrix = conv.weight.movedim(1, -1).flatten(1)  # channels fastest
        layer, error = make_map(matrix, conv.bias, tube, transform, init, cls)
        layer.in_channels = conv.in_channels
        layer.kernel_size, layer.stride = pair(conv.kernel_size), pair(conv.stride)
        return layer, {"": error}

    def forward(self, x: Tensor) -> Tensor:
        """(..., in, H, W) -> (..., out, H', W')."""
        (height, width), (down, right) = self.kernel_size, self.stride
        if self.kernel_size == (1, 1):
            return super().forward(x[..., ::down, ::right].movedim(-3, -1)).movedim(-1, -3).contiguous()
        rows, columns = x.shape[-2] // height, x.shape[-1] // width
        x = x[..., : rows * height, : columns * width]  # as a convolution leaves out what is over
        patches = x.unflatten(-1, (columns, width)).unflatten(-3, (rows, height))  # (..., in, rows, h, columns, w)
        patches = patches.movedim(-5, -1).transpose(-4, -3).flatten(-3)  # (..., rows, columns, h·w·in)
        return super().forward(patches).movedim(-1, -3).contiguous()

    def to_dense(self) -> Any:
        """The nn.Conv2d that computes the same."""
        dense = nn.Conv2d(
            self.in_channels,
            self.out_features,
            self.kernel_size,
            self.stride,
            bias=self.bias is not None,
            device="meta",
        )
        dense.weight = like(self.weight_hat, self.weight)
        dense.bias = self.bias
        return dense

    def extra_repr(self) -> str:
        """What `repr` shows."""
        return (
            f"{self.in_channels}, {self.out_features}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"tube={self.tube}, bias={self.bias is not None}"
        )


class TubalMultiheadAttention(nn.MultiheadAttention):
    """In the place of nn.MultiheadAttention, with packed or separate projections.

    It projects by c-products itself; what reads `in_proj_weight`, `q_proj_weight` or `out_proj.weight` from outside, as
    the fast path of nn.TransformerEncoderLayer does, gets dense weights and computes the same.
    """

    out_proj: Any
    in_proj: TubalLinear | None  # packed
    q_proj: TubalLinear | None  # or separate
    k_proj: TubalLinear | None
    v_proj: TubalLinear | None

    def __init__(self) -> None:
        nn.Module.__init__(self)  # its projections come from `of`

    @classmethod
    def of(
        cls, attention: nn.MultiheadAttention, tube: int, transform: TransformOf, init: Init
    ) -> tuple[TubalMultiheadAttention, Errors]:
        """The drop-in of `attention`, and the projection errors of its linear maps."""
        new = cls()
        copy_settings(attention, new)
        errors: Errors = {}
        packed = {"in_proj": attention.in_proj_weight}
        separate = {f"{x}_proj": getattr(attention, f"{x}_proj_weight") for x in "qkv"}
        for name, weight in (packed | separate).items():
            layer = None
            if weight is not None:
                layer, errors[name] = make_map(weight, None, tube, transform, init)
            setattr(new, name, layer)
        new.out_proj, errors["out_proj"] = make_map(
            attention.out_proj.weight, attention.out_proj.bias, tube, transform, init
        )
        return new, errors

    def to_dense(self) -> nn.MultiheadAttention:
        """The nn.MultiheadAttention that computes the same."""
        dense = nn.MultiheadAttention(self.embed_dim, 1, kdim=self.kdim, vdim=self.vdim, device="meta")
        copy_settings(self, dense)
        for name in ("in_proj", "q_proj", "k_proj", "v_proj"):
            layer = getattr(self, name)
            weight = None if layer is None else like(layer.weight_hat, layer.weight)
            dense.register_parameter(f"{name}_weight", weight)
        out = self.out_proj
        dense.out_proj = NonDynamicallyQuantizableLinear(out.in_features, out.out_features, device="meta")
        dense.out_proj.weight = like(out.weight_hat, out.weight)
        dense.out_proj.bias = out.bias
        return dense

    # Dense weights under their old names, for those who read them.
    in_proj_weight = property(lambda self: dense_or_none(self.in_proj))
    q_proj_weight = property(lambda self: dense_or_none(self.q_proj))
    k_proj_weight = property(lambda self: dense_or_none(self.k_proj))
    v_proj_weight = property(lambda self: dense_or_none(self.v_proj))

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As nn.MultiheadAttention's."""
        unusual = self.bias_k is not None or self.add_zero_attn or query.is_nested
        if unusual or query.ndim != 3 or (is_causal and attn_mask is None):
            return super().forward(
                query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
            )
        q, k, v = (self._heads(x) for x in self._project(query, key, value))  # (B, H, N, d_h)
        mask = self._mask(attn_mask, key_padding_mask, q)
        dropout = self.dropout if self.training else 0.0
        if need_weights:
            scores = q @ k.mT / math.sqrt(self.head_dim)
            maps = (scores if mask is None else scores + mask).softmax(-1)
            maps = F.dropout(maps, dropout)
            y = maps @ v
        else:
            maps, y = None, F.scaled_dot_product_attention(q, k, v, mask, dropout)
        y = self.out_proj(y.transpose(1, 2).flatten(2))  # (B, N, E)
        if maps is not None and average_attn_weights:
            maps = maps.mean(1)
        return (y if self.batch_first else y.transpose(0, 1)), maps

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        """Queries, keys and values as the batch comes."""
        if self.in_proj is None:
            maps: list[Any] = [self.q_proj, self.k_proj, self.v_proj]
            found = [project(x) for project, x in zip(maps, (query, key, value), strict=True)]
        elif query is key is value:
            found = list(self.in_proj(query).chunk(3, -1))
        else:
            weights, transform = self.in_proj.weight_hat.chunk(3, -1), self.in_proj.transform
            found = [tubal_product(x, w, transform) for x, w in zip((query, key, value), weights, strict=True)]
        if self.in_proj_bias is None:
            return found
        return [x + b.to(x.dtype) for x, b in zip(found, self.in_proj_bias.chunk(3), strict=True)]

    def _heads(self, x: Tensor) -> Tensor:
        """(B, N, E), or (N, B, E) if the batch does not come first -> (B, H, N, d_h)."""
        x = x if self.batch_first else x.transpose(0, 1)
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def _mask(self, attn_mask: Tensor | None, key_padding_mask: Tensor | None, q: Tensor) -> Tensor | None:
        """Both masks as numbers to add to the scores, (B or 1, H or 1, N or 1, S)."""
        mask = None
        if attn_mask is not None:
            mask = as_numbers(attn_mask, q.dtype)
            mask = mask.unflatten(0, (-1, self.num_heads)) if mask.ndim == 3 else mask[None, None]
        if key_padding_mask is not None:
            padding = as_numbers(key_padding_mask, q.dtype)[:, None, None]
            mask = padding if mask is None else mask + padding
        return mask


def make_map(
    matrix: Tensor, bias: Tensor | None, tube: int, transform: TransformOf, init: Init, cls: Any = TubalLinear
) -> tuple[Any, float | None]:
    """A c-product layer in the place of a dense (out, in) matrix: nearest to it, or drawn with its deviation."""
    features, device, dtype = (matrix.shape[1], matrix.shape[0]), matrix.device, matrix.dtype
    with torch.device(device):
        layer = cls(*features, tube, transform, bias=False)
    layer.to(torch.promote_types(dtype, torch.float32))
    error = None
    if init == "project":
        error = layer.project_(matrix.detach())
    elif not matrix.is_meta:
        draw_(layer, matrix.detach())
    layer.to(dtype).weight_hat.requires_grad_(matrix.requires_grad)
    layer.bias = bias
    return layer, error


@torch.no_grad()
def draw_(layer: TubalLinear, dense: Tensor) -> None:
    """Draw the slices so that outputs are as strong as those of `dense`: a slice sums over d inputs, not over d·C."""
    strength = dense.float().square().mean().sqrt().item() * math.sqrt(layer.tube)
    nn.init.trunc_normal_(layer.weight_hat).mul_(strength / 0.8796)  # the deviation of a normal that is cut at two


def as_numbers(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask of booleans, true where nobody may look, as numbers to add."""
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, -math.inf)


def dense_or_none(layer: TubalLinear | None) -> Tensor | None:
    """The dense weight of a layer that may not be there."""
    return None if layer is None else layer.weight


def like(old: Tensor, value: Tensor) -> nn.Parameter:
    """`value` as a parameter that learns if `old` did."""
    return nn.Parameter(value.detach().clone(memory_format=torch.contiguous_format), requires_grad=old.requires_grad)


def copy_settings(old: nn.MultiheadAttention, new: nn.MultiheadAttention) -> None:
    """Everything of an attention but its weights."""
    for name in ("embed_dim", "kdim", "vdim", "_qkv_same_embed_dim", "num_heads", "head_dim"):
        setattr(new, name, getattr(old, name))
    new.dropout, new.batch_first, new.add_zero_attn = old.dropout, old.batch_first, old.add_zero_attn
    for name in ("in_proj_bias", "bias_k", "bias_v"):
        vars(new).pop(name, None)  # an absent bias is no parameter there
        new.register_parameter(name, getattr(old, name))


def pair(size: int | tuple[int, ...]) -> tuple[int, int]:
    """A size of nn.Conv2d, written out."""
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def tensorized(module: nn.Module, tube: int, transform: TransformOf, init: Init) -> tuple[nn.Module, Errors]:
    """The drop-in of a layer, and the projection errors of its linear maps."""
    if isinstance(module, nn.MultiheadAttention):
        return TubalMultiheadAttention.of(module, tube, transform, init)
    if isinstance(module, nn.Conv2d):
        return TubalPatchConv2d.of(module, tube, transform, init)
    if isinstance(module, nn.Linear):
        layer, error = make_map(module.weight, module.bias, tube, transform, init)
        return layer, {"": error}
    return TubalConv1D.of(module, tube, transform, init)


def densified(module: nn.Module) -> nn.Module:
    """The layer that a drop-in stands for, computing the same."""
    if isinstance(module, TubalMultiheadAttention | TubalConv1D | TubalPatchConv2d):
        return module.to_dense()
    assert isinstance(module, TubalLinear)
    dense = nn.Linear(module.in_features, module.out_features, bias=module.bias is not None, device="meta")
    dense.weight = like(module.weight_hat, module.weight)
    dense.bias = module.bias  # type: ignore[assignment]
    return dense
