"""The two halves of a block as operators: FFN and attention, each from its norm to its residual.

On a CPU a slice of 16 to 64 numbers passes through the memory again and again if every layer is an operator of its own;
here tiles of tokens stay in the cache from the norm to the residual. Backward computes again what forward did not keep.
A Std-ViT's layers are those of one slice, with weights as nn.Linear has them (`dense`).
"""

from __future__ import annotations

import ctypes
import functools
import itertools
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from tcpvit.layers.kernels import gpu
from tcpvit.layers.kernels.build import DTYPES, accumulator, call, is_built, operators_refused

MAX_WIDTH = 64  # of a slice: beyond, torch's matrix products are as fast
TILE = 64  # tokens, as in ffn_half.cpp
LANES = 16  # tokens in the widest vector, and LINE of lanes.h
ENOUGH = 64  # tiles for each thread: beyond, one more or less does not matter
BUNDLE = 256  # tokens of the images that are attended to at a time


def can_use_half(half: str, x: Tensor, weight: Tensor) -> bool:
    """True if the kernel of that half takes tokens (..., d) with parameters of that kind, and is worth it."""
    if x.shape[-1] > MAX_WIDTH or weight.dtype != x.dtype:
        return False
    if x.is_cuda:
        return half == "ffn_half" and not torch.is_autocast_enabled("cuda") and gpu.can_use_gpu(x)
    if x.device.type != "cpu" or x.dtype not in DTYPES or operators_refused() or torch.is_autocast_enabled("cpu"):
        return False
    return is_built(half)


# ------------------------------------------------------------------------------------------------------- the work


@functools.lru_cache(maxsize=1024)
def tile_of(slices: int, rows: int, threads: int) -> int:
    """How many tokens are a unit of work, so that threads have as many tokens each: a multiple of LANES up to TILE.

    >>> tile_of(3, 16640, 2), tile_of(3, 65, 2), tile_of(3, 65, 4)
    (64, 48, 16)
    """
    if threads == 1 or slices * rows > ENOUGH * threads * TILE:
        return TILE
    return min(range(TILE, 0, -LANES), key=lambda tile: max(dealt_tokens(slices, rows, tile, threads)))


def dealt_tokens(slices: int, rows: int, tile: int, threads: int) -> list[int]:
    """How many tokens each thread gets, with the padding of their last vector: neighbouring tiles, as many to each."""
    tokens = [min(tile, rows - first) for first in range(0, rows, tile)] * slices
    units = [-(-count // LANES) * LANES for count in tokens]
    ends = [len(units) * thread // threads for thread in range(threads + 1)]  # `dealt` of lanes.h
    return [sum(units[first:last]) for first, last in itertools.pairwise(ends)]


def _lined(count: int) -> int:
    return -(-count // LANES) * LANES


def _contiguous(*parameters: Tensor | None) -> list[Tensor | None]:
    return [None if p is None else p.contiguous() for p in parameters]


def _gradient(gain: Tensor, like: Tensor) -> Tensor:
    """A new tensor of the shape and precision of a parameter."""
    return torch.empty_like(like, memory_format=torch.contiguous_format).copy_(gain.reshape(like.shape))


# ------------------------------------------------------------------------------------------------------- FFN half


class FfnShape(ctypes.Structure):
    """`Shape` of ffn_half.cpp."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("slices", "rows", "width", "hidden", "dense", "tile")),
        ("eps", ctypes.c_double),
    ]

    @classmethod
    def of(cls, x: Tensor, w1: Tensor, dense: bool, eps: float) -> FfnShape:
        """For x (C, R, d)."""
        C, R, d = x.shape
        return cls(C, R, d, w1.shape[-2 if dense else -1], dense, tile_of(C, R, torch.get_num_threads()), eps)


@torch.library.custom_op("tcpvit::ffn_half", mutates_args=())
def ffn_half(
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    w1: Tensor,
    b1: Tensor,
    w2: Tensor,
    b2: Tensor,
    dense: bool,
    eps: float,
) -> Tensor:
    """x + GELU(norm(x) w1 + b1) w2 + b2 for x (C, R, d); parameters (C, ..., d or h), or as nn.Linear's if `dense`."""
    x = x.contiguous()
    y = torch.empty_like(x)
    parameters = _contiguous(gamma, beta, w1, b1, w2, b2)
    call("ffn_half", "forward", x.dtype, x, *parameters, y, shape=FfnShape.of(x, w1, dense, eps))
    return y


@ffn_half.register_kernel("cuda")
def _(*inputs: Any) -> Tensor:
    from tcpvit.layers.kernels.gpu import ffn

    return ffn.forward(*inputs)


@ffn_half.register_fake
def _(x: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@torch.library.custom_op("tcpvit::ffn_half_backward", mutates_args=())
def ffn_half_backward(
    grad: Tensor,
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    w1: Tensor,
    b1: Tensor,
    w2: Tensor,
    b2: Tensor,
    dense: bool,
    eps: float,
) -> list[Tensor]:
    """The gradients of x, gamma, beta, w1, b1, w2 and b2."""
    x = x.contiguous()
    shape = FfnShape.of(x, w1, dense, eps)
    C, d, h = len(x), shape.width, shape.hidden
    wide, vectors = _lined(d), _lined(3 * d + h)
    gains = x.new_zeros(C, vectors + 2 * h * wide, dtype=accumulator(x.dtype))
    d_x = torch.empty_like(x)
    parameters = _contiguous(gamma, beta, w1, b1, w2)
    call("ffn_half", "backward", x.dtype, grad.contiguous(), x, *parameters, d_x, gains, shape=shape)
    d_gamma, d_beta, d_b2, d_b1, _, *matrices = gains.split([d, d, d, h, vectors - 3 * d - h, h * wide, h * wide], 1)
    d_w1, d_w2 = (gain.view(C, h, wide)[..., :d] for gain in matrices)  # (C, h, d)
    found = (d_gamma, d_beta, d_w1 if dense else d_w1.mT, d_b1, d_w2.mT if dense else d_w2, d_b2)
    return [d_x, *map(_gradient, found, (gamma, beta, w1, b1, w2, b2))]


@ffn_half_backward.register_kernel("cuda")
def _(*inputs: Any) -> list[Tensor]:
    from tcpvit.layers.kernels.gpu import ffn

    return ffn.backward(*inputs)


@ffn_half_backward.register_fake
def _(grad: Tensor, *parameters: Any) -> list[Tensor]:
    return [torch.empty_like(p, memory_format=torch.contiguous_format) for p in parameters[:7]]


def _save_ffn(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.dense, ctx.eps = inputs
    ctx.save_for_backward(*tensors)


def _ffn_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return (*ffn_half_backward(grad, *ctx.saved_tensors, ctx.dense, ctx.eps), None, None)


ffn_half.register_autograd(_ffn_backward, setup_context=_save_ffn)


@register_flop_formula(torch.ops.tcpvit.ffn_half)
def _ffn_flops(x_shape: tuple[int, ...], gamma: Any, beta: Any, w1_shape: tuple[int, ...], *_: Any, **__: Any) -> int:
    """fc1 and fc2, each a product of R×d×h for each slice."""
    return 4 * x_shape[0] * x_shape[1] * w1_shape[-1] * w1_shape[-2]


# ------------------------------------------------------------------------------------------------- attention half


class AttentionHalfShape(ctypes.Structure):
    """`Shape` of attention_half.cpp."""

    _fields_ = [
        *(
            (name, ctypes.c_int64)
            for name in ("slices", "images", "tokens", "width", "heads", "joint", "dense", "bundle", "cuts")
        ),
        ("eps", ctypes.c_double),
    ]

    @classmethod
    def of(cls, x: Tensor, num_heads: int, joint: bool, dense: bool, eps: float, cut: bool) -> AttentionHalfShape:
        """For x (C, B, N, d); the queries of an image may be `cut`."""
        C, B, N, d = x.shape
        bundle, cuts = bundle_of(1 if joint else C, B, N, torch.get_num_threads(), cut)
        return cls(C, B, N, d, num_heads, joint, dense, bundle, cuts, eps)


@functools.lru_cache(maxsize=1024)
def bundle_of(groups: int, images: int, tokens: int, threads: int, cut: bool) -> tuple[int, int]:
    """How many images are a unit of work, or into how many units one image is cut, so that threads have as much each.

    >>> bundle_of(3, 64, 65, 2, True), bundle_of(3, 1, 65, 2, True), bundle_of(3, 1, 65, 2, False)
    ((2, 1), (1, 2), (1, 1))
    """
    most = max(1, min(BUNDLE // tokens, images))
    if threads == 1 or groups * images > ENOUGH * threads * most:
        return most, 1
    choices = [(bundle, 1) for bundle in range(most, 0, -1)]
    choices += [(1, cuts) for cuts in range(2, 1 + -(-tokens // LANES))] if cut else []

    def busiest(choice: tuple[int, int]) -> float:
        return max(dealt_queries(groups, images, tokens, *choice, threads))

    return min(choices, key=busiest)


def dealt_queries(groups: int, images: int, tokens: int, bundle: int, cuts: int, threads: int) -> list[float]:
    """How many queries each thread gets; a unit of work also has the keys of its images, which cost about a third."""
    vectors = -(-tokens // LANES)
    parts = [min(tokens, vectors * (cut + 1) // cuts * LANES) - vectors * cut // cuts * LANES for cut in range(cuts)]
    bundles = [min(bundle, images - first) for first in range(0, images, bundle)]
    units = [count * (part + tokens / 3) for count in bundles for part in parts] * groups
    ends = [len(units) * thread // threads for thread in range(threads + 1)]  # `dealt` of lanes.h
    return [sum(units[first:last]) for first, last in itertools.pairwise(ends)]


@torch.library.custom_op("tcpvit::attention_half", mutates_args=())
def attention_half(
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    wqkv: Tensor,
    bqkv: Tensor | None,
    wproj: Tensor,
    bproj: Tensor,
    num_heads: int,
    joint: bool,
    dense: bool,
    eps: float,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """x + attention(norm(x) wqkv + bqkv) wproj + bproj for x (C, B, N, d); parameters as in `ffn_half`.

    With it what backward needs, if it is to be kept: the attended values (C, B, d, N), and log Σ exp of the scores.
    """
    x = x.contiguous()
    y, kept, lse = _attention_half_results(x, gamma, beta, wqkv, bqkv, wproj, bproj, num_heads, joint, dense, eps, keep)
    parameters = _contiguous(gamma, beta, wqkv, bqkv, wproj, bproj)
    shape = AttentionHalfShape.of(x, num_heads, joint, dense, eps, not keep)
    results = (y, kept, lse) if keep else (y, None, None)
    call("attention_half", "forward", x.dtype, x, *parameters, *results, shape=shape)
    return y, kept, lse


@attention_half.register_fake
def _attention_half_results(
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    wqkv: Tensor,
    bqkv: Tensor | None,
    wproj: Tensor,
    bproj: Tensor,
    num_heads: int,
    joint: bool,
    dense: bool,
    eps: float,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    C, B, N, d = x.shape
    kind = accumulator(x.dtype)
    if not keep:
        return y, x.new_empty(0, dtype=kind), x.new_empty(0, dtype=kind)
    return y, x.new_empty(C, B, d, N, dtype=kind), x.new_empty(1 if joint else C, B, num_heads, N, dtype=kind)


@torch.library.custom_op("tcpvit::attention_half_backward", mutates_args=())
def attention_half_backward(
    grad: Tensor,
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    wqkv: Tensor,
    bqkv: Tensor | None,
    wproj: Tensor,
    bproj: Tensor,
    kept: Tensor,
    lse: Tensor,
    num_heads: int,
    joint: bool,
    dense: bool,
    eps: float,
) -> list[Tensor]:
    """The gradients of x, gamma, beta, wqkv, bqkv (of zeros, if there is none), wproj and bproj."""
    x = x.contiguous()
    C, d = len(x), x.shape[-1]
    wide, vectors = _lined(d), _lined(6 * d)
    gains = x.new_zeros(C, vectors + 4 * d * wide, dtype=accumulator(x.dtype))
    d_x = torch.empty_like(x)
    parameters = _contiguous(gamma, beta, wqkv, bqkv, wproj, bproj)
    shape = AttentionHalfShape.of(x, num_heads, joint, dense, eps, False)
    call("attention_half", "backward", x.dtype, grad.contiguous(), x, kept, lse, *parameters, d_x, gains, shape=shape)
    sizes = [d, d, d, 3 * d, vectors - 6 * d, 3 * d * wide, d * wide]
    d_gamma, d_beta, d_bproj, d_bqkv, _, *matrices = gains.split(sizes, 1)
    d_wqkv, d_wproj = (gain.view(C, -1, wide)[..., :d] for gain in matrices)  # (C, 3·d, d) and (C, d_in, d_out)
    found = (d_gamma, d_beta, d_wqkv if dense else d_wqkv.mT, d_bqkv, d_wproj.mT if dense else d_wproj, d_bproj)
    return [d_x, *map(_gradient, found, (gamma, beta, wqkv, _bias_or_zeros(bqkv, wqkv, dense), wproj, bproj))]


@attention_half_backward.register_fake
def _(grad: Tensor, *inputs: Any) -> list[Tensor]:
    *parameters, _kept, _lse, _num_heads, _joint, dense, _eps = inputs
    x, gamma, beta, wqkv, bqkv, wproj, bproj = parameters
    likes = (x, gamma, beta, wqkv, _bias_or_zeros(bqkv, wqkv, dense), wproj, bproj)
    return [torch.empty_like(like, memory_format=torch.contiguous_format) for like in likes]


def _bias_or_zeros(bias: Tensor | None, weight: Tensor, dense: bool) -> Tensor:
    if bias is not None:
        return bias
    return weight.new_zeros(len(weight)) if dense else weight.new_zeros(len(weight), 1, weight.shape[-1])


def _save_attention_half(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    *tensors, ctx.num_heads, ctx.joint, ctx.dense, ctx.eps, keep = inputs
    if not keep:
        raise ValueError("attention_half has no gradients unless keep=True")
    ctx.save_for_backward(*tensors, *output[1:])


def _attention_half_backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    options = ctx.num_heads, ctx.joint, ctx.dense, ctx.eps
    found: list[Tensor | None] = list(attention_half_backward(grad, *ctx.saved_tensors, *options))
    if ctx.saved_tensors[4] is None:
        found[4] = None
    return (*found, None, None, None, None, None)


attention_half.register_autograd(_attention_half_backward, setup_context=_save_attention_half)


@register_flop_formula(torch.ops.tcpvit.attention_half)
def _attention_half_flops(x_shape: tuple[int, ...], *_: Any, **__: Any) -> int:
    """qkv and proj, 4·d² for each token of a slice, and scores and weighted values."""
    C, B, N, d = x_shape
    return 2 * C * B * N * (4 * d * d + 2 * N * d)
