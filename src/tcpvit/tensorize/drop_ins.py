"""Drop-ins: c-product layers that stand where foreign code expects one of its own.

Each takes and gives what the layer it replaces does, and shows its dense weights, differentiable, under the old names,
because other people's code reads them (BEiT, SwinV2, EVA and nn.TransformerEncoderLayer do). `tensorized` makes the
drop-in of a layer, `densified` is the exact way back. Biases stay the same parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from tcpvit.layers.linear import TransformOf, TubalLinear, tubal_product
from tcpvit.layers.transform import HatTransform
from tcpvit.tensorize.config import Init
from tcpvit.tensorize.fit import Fit, nearest
from tcpvit.tensorize.libraries import is_conv1d

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

    def to_dense(self) -> Any:
        """The Conv1D that computes the same."""
        from transformers.pytorch_utils import Conv1D

        dense = Conv1D(self.out_features, self.in_features)
        dense.weight = like(self.main_weight, self.weight)
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

    def forward(self, x: Tensor) -> Tensor:
        """(..., in, H, W) -> (..., out, H', W')."""
        return super().forward(self.patches(x, self.kernel_size, self.stride)).movedim(-1, -3).contiguous()

    @staticmethod
    def patches(x: Tensor, kernel: tuple[int, int], stride: tuple[int, int]) -> Tensor:
        """What it reads: (..., in, H, W) -> (..., H', W', h·w·in), channels fastest."""
        (height, width), (down, right) = kernel, stride
        if kernel == (1, 1):
            return x[..., ::down, ::right].movedim(-3, -1)
        rows, columns = x.shape[-2] // height, x.shape[-1] // width
        x = x[..., : rows * height, : columns * width]  # as a convolution leaves out what is over
        patches = x.unflatten(-1, (columns, width)).unflatten(-3, (rows, height))  # (..., in, rows, h, columns, w)
        return patches.movedim(-5, -1).transpose(-4, -3).flatten(-3)

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
        dense.weight = like(self.main_weight, self.weight)
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
    in_proj: Any  # packed
    q_proj: Any  # or separate
    k_proj: Any
    v_proj: Any

    def __init__(self) -> None:
        nn.Module.__init__(self)  # its projections come from `of`

    @classmethod
    def of(
        cls, attention: nn.MultiheadAttention, make: Callable[..., tuple[nn.Module, float | None]]
    ) -> tuple[TubalMultiheadAttention, Errors]:
        """The drop-in of `attention`, and the projection errors of its linear maps: make(name, weight, bias) has each.

        Maps that are plain linear layers compute the same.
        """
        new = cls()
        copy_settings(attention, new)
        errors: Errors = {}
        packed = {"in_proj": attention.in_proj_weight}
        separate = {f"{x}_proj": getattr(attention, f"{x}_proj_weight") for x in "qkv"}
        for name, weight in (packed | separate).items():
            layer = None
            if weight is not None:
                layer, errors[name] = make(name, weight, None)
            setattr(new, name, layer)
        out = attention.out_proj
        new.out_proj, errors["out_proj"] = make("out_proj", out.weight, out.bias)
        return new, errors

    def to_dense(self) -> nn.MultiheadAttention:
        """The nn.MultiheadAttention that computes the same."""
        dense = nn.MultiheadAttention(self.embed_dim, 1, kdim=self.kdim, vdim=self.vdim, device="meta")
        copy_settings(self, dense)
        for name in ("in_proj", "q_proj", "k_proj", "v_proj"):
            layer = getattr(self, name)
            weight = None if layer is None else like(layer.main_weight, layer.weight)
            dense.register_parameter(f"{name}_weight", weight)
        out = self.out_proj
        dense.out_proj = NonDynamicallyQuantizableLinear(out.in_features, out.out_features, device="meta")
        dense.out_proj.weight = like(out.main_weight, out.weight)
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
        elif not isinstance(self.in_proj, TubalLinear) or self.in_proj.rank:
            found = [self.in_proj(x).chunk(3, -1)[part] for part, x in enumerate((query, key, value))]
        else:
            assert self.in_proj.weight_hat is not None
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


def maps_of(module: nn.Module) -> dict[str, Tensor]:
    """The dense (out, in) matrices of a plain layer, views of its weights, by name: "" if there is one only."""
    if isinstance(module, nn.MultiheadAttention):
        named = {f"{x}_proj": getattr(module, f"{x}_proj_weight") for x in ("in", "q", "k", "v")}
        return {name: w for name, w in named.items() if w is not None} | {"out_proj": module.out_proj.weight}
    if isinstance(module, nn.Conv2d):
        return {"": module.weight.movedim(1, -1).flatten(1)}
    weight = module.weight
    assert isinstance(weight, Tensor)
    return {"": weight.mT if is_conv1d(module) else weight}


def make_map(
    matrix: Tensor,
    bias: Tensor | None,
    tube: int,
    transform: TransformOf,
    init: Init,
    cls: Any = TubalLinear,
    rank: int = 0,
) -> tuple[Any, float | None]:
    """A c-product layer in the place of a dense (out, in) matrix: nearest to it, or drawn with its deviation."""
    features, device, dtype = (matrix.shape[1], matrix.shape[0]), matrix.device, matrix.dtype
    with torch.device(device):
        phi = transform if isinstance(transform, HatTransform) else HatTransform(transform, tube)
    with torch.device("meta"):  # whose weights cost nothing to draw
        layer = cls(*features, tube, phi, bias=False, rank=rank)
    layer.to_empty(device=device)
    if phi is not transform:
        layer.transform = phi  # its own
    layer.to(torch.promote_types(dtype, torch.float32))
    error = None
    if init == "project" and rank:
        error = set_fit_(layer, nearest(matrix.detach().mT, tube, rank, phi))
    elif init == "project":
        error = layer.project_(matrix.detach())
    else:
        layer.reset_parameters()
        if not matrix.is_meta and layer.weight_hat is not None:
            draw_(layer, matrix.detach())
    layer.to(dtype).requires_grad_(matrix.requires_grad)
    layer.bias = bias
    return layer, error


@torch.no_grad()
def set_fit_(layer: TubalLinear, fit: Fit) -> float:
    """Give a layer fitted weights, and return their relative error."""
    values = (fit.slices, None if fit.v is None else fit.v.mT, None if fit.u is None else fit.u.mT)
    for parameter, value in zip((layer.weight_hat, layer.v, layer.u), values, strict=True):
        if parameter is not None and value is not None:
            parameter.copy_(value)
    return math.sqrt(fit.error)


@torch.no_grad()
def draw_(layer: TubalLinear, dense: Tensor) -> None:
    """Draw the slices so that outputs are as strong as those of `dense`: a slice sums over d inputs, not over d·C."""
    assert layer.weight_hat is not None
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


def tensorized(
    module: nn.Module,
    tube: int,
    transform: TransformOf,
    init: Init,
    rank: int = 0,
    forms: Mapping[str, tuple[int, int]] | None = None,
) -> tuple[nn.Module, Errors]:
    """The drop-in of a layer, and the projection errors of its maps; `forms` are tube and rank of some of them."""

    def make(name: str, weight: Tensor, bias: Tensor | None, cls: Any = TubalLinear) -> tuple[Any, float | None]:
        its_tube, its_rank = (forms or {}).get(name, (tube, rank))
        phi = transform if its_tube > 1 else "identity"
        return make_map(weight, bias, its_tube, phi, init, cls, its_rank)

    if isinstance(module, nn.MultiheadAttention):
        return TubalMultiheadAttention.of(module, make)
    kinds = {nn.Linear: TubalLinear, nn.Conv2d: TubalPatchConv2d}
    cls = next((ours for theirs, ours in kinds.items() if isinstance(module, theirs)), TubalConv1D)
    layer, error = make("", maps_of(module)[""], module.bias, cls)  # type: ignore[arg-type]
    if isinstance(module, nn.Conv2d):
        layer.in_channels = module.in_channels
        layer.kernel_size, layer.stride = pair(module.kernel_size), pair(module.stride)
    return layer, {"": error}


def opened(attention: nn.MultiheadAttention) -> TubalMultiheadAttention:
    """The attention with plain linear layers as its maps, which share its weights: what they see can be looked at."""

    def linear(name: str, weight: Tensor, bias: Tensor | None) -> tuple[nn.Module, None]:
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
        layer.weight = weight if isinstance(weight, nn.Parameter) else nn.Parameter(weight)
        layer.bias = bias  # type: ignore[assignment]
        return layer, None

    return TubalMultiheadAttention.of(attention, linear)[0]


def densified(module: nn.Module) -> nn.Module:
    """The layer that a drop-in stands for, computing the same."""
    if isinstance(module, TubalMultiheadAttention | TubalConv1D | TubalPatchConv2d):
        return module.to_dense()
    assert isinstance(module, TubalLinear)
    dense = nn.Linear(module.in_features, module.out_features, bias=module.bias is not None, device="meta")
    dense.weight = like(module.main_weight, module.weight)
    dense.bias = module.bias  # type: ignore[assignment]
    return dense
