"""The two halves of a block as operators: FFN and attention, each from its norm to its residual.

On a CPU a slice of 16 to 64 numbers passes through the memory again and again if every layer is an operator of its own;
here tiles of tokens stay in the cache from the norm to the residual. Backward computes again what forward did not keep.
A Std-ViT's layers are those of one slice, with weights as nn.Linear has them (`dense`).
"""

from __future__ import annotations

import ctypes
import functools
import itertools
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from tcpvit.algebra.cache import constant_in_graphs
from tcpvit.layers.kernels import gpu
from tcpvit.layers.kernels.build import (
    DTYPES,
    accumulator,
    call,
    is_built,
    operators_refused,
    refuse_second_derivatives,
)

NARROW = 64  # slices so wide always gain; wider ones where our products are as fast and all threads have work
MOST_SUMMED = 2**22  # numbers of the gradients of one d × d matrix, which each thread sums for itself
MAX_HEAD_WIDTH = 1024  # numbers in a head; the halves save more than attention alone, and gain with wider ones
MAX_LOWERED_WIDTH = 32  # of plain halves under autocast: torch's products are of bfloat16, ours as exact as always
CPU_INFO = Path("/proc/cpuinfo")
TILE = 64  # tokens, as in ffn_half.cpp
LANES = 16  # tokens in the widest vector
ENOUGH = 64  # tiles for each thread: beyond, one more or less does not matter
MOST_NUMBERS = 2**17  # of the hidden features of a unit of work whose slices or tokens go together: half of a cache
BUNDLE, MOST_BUNDLED = 256, 2**14  # tokens of the images that are attended to at a time, and their numbers in a group


def can_use_half(half: str, x: Tensor, weight: Tensor, plain: bool = True, together: bool = False) -> bool:
    """True if the kernel of that half takes tokens (..., d) with parameters of that kind, and is worth it.

    A `plain` half is hardly more than its products: slices are not coupled, and tokens not pooled. The slices of an
    image may go `together`, to one thread.
    """
    if weight.dtype != x.dtype:
        return False
    if x.is_cuda:
        fits = half == "ffn_half" and x.shape[-1] <= gpu.MAX_WIDTH
        return fits and not torch.is_autocast_enabled("cuda") and gpu.can_use_gpu(x)
    if x.device.type != "cpu" or x.dtype not in DTYPES or operators_refused():
        return False
    lowered = torch.is_autocast_enabled("cpu") and x.dtype == torch.float32
    if plain and lowered and x.shape[-1] > MAX_LOWERED_WIDTH:
        return False
    if x.shape[-1] > NARROW and (lowered or not _gains_when_wide(x, together)):
        return False
    return is_built(half)


def _gains_when_wide(x: Tensor, together: bool) -> bool:
    """Whether slices beyond `NARROW` are worth it: torch's products have all threads for an image, ours have one."""
    d, threads = x.shape[-1], _num_threads()
    alone = x.shape[-3] if together else prod(x.shape[:-2])  # images, or slices of them
    busy = alone >= threads and threads * d * d <= MOST_SUMMED
    return busy and x.dtype == torch.float32 and d <= max_width()


@constant_in_graphs
def _num_threads() -> int:
    return torch.get_num_threads()


@constant_in_graphs
def max_width() -> int:
    """The widest slice for which our products are as fast as torch's."""
    return 768 if _is_mkl_slow() else 192


@functools.cache
def _is_mkl_slow() -> bool:
    """Whether torch's products are MKL's on a processor of AMD, where it takes slow ones unless told otherwise."""
    if not (torch.backends.mkl.is_available() and CPU_INFO.is_file() and "AuthenticAMD" in CPU_INFO.read_text()):
        return False
    told = getattr(ctypes.CDLL(None), "mkl_serv_intel_cpu_true", None)  # by a library that was loaded first
    return not (told and told())


def can_couple(x: Tensor, numbers: int) -> bool:
    """True if the kernel takes slices or the tokens of an image together, with so many hidden numbers at a time."""
    return x.device.type == "cpu" and numbers <= MOST_NUMBERS


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


def _contiguous(*parameters: Tensor | None) -> list[Tensor | None]:
    return [None if p is None else p.contiguous() for p in parameters]


def _new_gradients(x: Tensor, *parameters: Tensor | None) -> list[Tensor | None]:
    """Where the gradients of tokens and parameters go: zeros if there are no tokens, for which none are written."""
    new = torch.empty_like if x.numel() else torch.zeros_like
    return [None if p is None else new(p, memory_format=torch.contiguous_format) for p in (x, *parameters)]


# ------------------------------------------------------------------------------------------------------- FFN half


class FfnShape(ctypes.Structure):
    """`Shape` of ffn_half.cpp."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("slices", "rows", "width", "hidden", "dense", "tile", "parts")),
        *((name, ctypes.c_int64) for name in ("joint", "shuffle", "side", "height", "across", "mixes")),
        ("eps", ctypes.c_double),
    ]

    @classmethod
    def of(
        cls,
        x: Tensor,
        w1: Tensor,
        dense: bool,
        eps: float,
        filters: Tensor | None,
        height: int,
        across: int,
        joint: bool,
        shuffle: bool,
        mixes: bool,
    ) -> FfnShape:
        """For x (C, R, d)."""
        C, R, d = x.shape
        parts = C if joint or shuffle or mixes else 1
        side = 0 if filters is None else filters.shape[-1]
        tile = height * across if side else tile_of(C // parts, R, torch.get_num_threads())
        hidden = w1.shape[-2 if dense else -1]
        return cls(C, R, d, hidden, dense, tile, parts, joint, shuffle, side, height, across, mixes, eps)


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
    filters: Tensor | None = None,
    filter_bias: Tensor | None = None,
    height: int = 0,
    across: int = 0,
    joint: bool = False,
    shuffle: bool = False,
    mix1: Tensor | None = None,
    mix2: Tensor | None = None,
) -> Tensor:
    """x + GELU(norm(x) w1 + b1) w2 + b2 for x (C, R, d); parameters (C, ..., d or h), or as nn.Linear's if `dense`.

    Filters (C·h, 1, side, side) stand before GELU, on tokens of grids of height × across. The norm may be over all
    slices (`joint`), fc2 may read them shuffled, and (C, C) matrices may mix what fc1 and fc2 read.
    """
    x = x.contiguous()
    y = torch.empty_like(x)
    parameters = _contiguous(gamma, beta, w1, b1, w2, b2, filters, filter_bias, mix1, mix2)
    shape = FfnShape.of(x, w1, dense, eps, filters, height, across, joint, shuffle, mix1 is not None)
    call("ffn_half", "forward", x.dtype, x, *parameters, y, shape=shape)
    return y


@ffn_half.register_kernel("cuda")
def ffn_half_on_gpu(*inputs: Any) -> Tensor:
    """The same by Triton; it knows no filters and couplings."""
    from tcpvit.layers.kernels.gpu import ffn

    return ffn.forward(*inputs[:9])


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
    filters: Tensor | None,
    filter_bias: Tensor | None,
    mix1: Tensor | None,
    mix2: Tensor | None,
    dense: bool,
    eps: float,
    height: int,
    across: int,
    joint: bool,
    shuffle: bool,
) -> list[Tensor]:
    """The gradients of x, gamma, beta, w1, b1, w2 and b2, and of filters, their bias and mixes if there are."""
    x = x.contiguous()
    shape = FfnShape.of(x, w1, dense, eps, filters, height, across, joint, shuffle, mix1 is not None)
    parameters = _contiguous(gamma, beta, w1, b1, w2, b2, filters, filter_bias, mix1, mix2)
    gradients = _new_gradients(x, *parameters)
    call("ffn_half", "backward", x.dtype, grad.contiguous(), x, *parameters, *gradients, shape=shape)
    return [gradient for gradient in gradients if gradient is not None]


@ffn_half_backward.register_kernel("cuda")
def ffn_half_backward_on_gpu(*inputs: Any) -> list[Tensor]:
    """The same by Triton."""
    from tcpvit.layers.kernels.gpu import ffn

    return ffn.backward(*inputs[:8], *inputs[12:14])


@ffn_half_backward.register_fake
def _(grad: Tensor, *inputs: Any) -> list[Tensor]:
    return [torch.empty_like(p, memory_format=torch.contiguous_format) for p in inputs[:11] if p is not None]


def _save_ffn(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, dense, eps, filters, filter_bias, height, across, joint, shuffle, mix1, mix2 = inputs
    ctx.options = dense, eps, height, across, joint, shuffle
    ctx.save_for_backward(*tensors, filters, filter_bias, mix1, mix2)


def _ffn_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    gradients = iter(ffn_half_backward(grad, *ctx.saved_tensors, *ctx.options))
    found = [None if tensor is None else next(gradients) for tensor in ctx.saved_tensors]
    *plain, d_filters, d_bias, d_mix1, d_mix2 = found
    return (*plain, None, None, d_filters, d_bias, None, None, None, None, d_mix1, d_mix2)


ffn_half.register_autograd(_ffn_backward, setup_context=_save_ffn)
ffn_half_backward.register_autograd(refuse_second_derivatives)


@register_flop_formula(torch.ops.tcpvit.ffn_half)
def _ffn_flops(x_shape: tuple[int, ...], gamma: Any, beta: Any, w1_shape: tuple[int, ...], *rest: Any, **_: Any) -> int:
    """fc1 and fc2, each a product of R×d×h for each slice, and the filters."""
    hidden = w1_shape[-1] * w1_shape[-2] // x_shape[2]
    taps = prod(rest[5][-2:]) if len(rest) > 5 and rest[5] else 0
    return x_shape[0] * x_shape[1] * hidden * (4 * x_shape[2] + 2 * taps)


# ------------------------------------------------------------------------------------------------- attention half


class AttentionHalfShape(ctypes.Structure):
    """`Shape` of attention_half.cpp."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("slices", "images", "tokens", "width", "heads", "joint", "dense")),
        *((name, ctypes.c_int64) for name in ("bundle", "cuts", "parts", "norm_joint", "shuffle", "pool")),
        *((name, ctypes.c_int64) for name in ("across", "mixes")),
        ("eps", ctypes.c_double),
    ]

    @classmethod
    def of(
        cls,
        x: Tensor,
        num_heads: int,
        joint: bool,
        dense: bool,
        eps: float,
        norm_joint: bool,
        shuffle: bool,
        pool: int,
        across: int,
        mixes: bool,
        cut: bool,
    ) -> AttentionHalfShape:
        """For x (C, B, N, d); the queries of an image may be `cut`."""
        C, B, N, d = x.shape
        parts = C if joint or norm_joint or shuffle or mixes else 1
        bundle, cuts = bundle_of(C // parts, B, N, parts * d, torch.get_num_threads(), cut and pool == 1)
        sizes = C, B, N, d, num_heads, joint, dense, bundle, cuts, parts, norm_joint, shuffle, pool
        return cls(*sizes, across, mixes, eps)


@functools.lru_cache(maxsize=1024)
def bundle_of(groups: int, images: int, tokens: int, width: int, threads: int, cut: bool) -> tuple[int, int]:
    """How many images are a unit of work, or into how many units one image is cut, so that threads have as much each.

    >>> bundle_of(3, 64, 65, 16, 2, True), bundle_of(3, 1, 65, 16, 2, True), bundle_of(3, 1, 65, 16, 2, False)
    ((2, 1), (1, 2), (1, 1))
    """
    most = max(1, min(min(BUNDLE, MOST_BUNDLED // width) // tokens, images))
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
    norm_joint: bool = False,
    shuffle: bool = False,
    pool: int = 1,
    across: int = 0,
    mix1: Tensor | None = None,
    mix2: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """x + attention(norm(x) wqkv + bqkv) wproj + bproj for x (C, B, N, d); parameters as in `ffn_half`.

    The norm may be over all slices, proj may read them shuffled, (C, C) matrices may mix what qkv and proj read, and
    attention may be between the means of pool × pool tokens of a grid, so many `across`. With y what backward needs, if
    it is to be kept: the attended values (C, B, d, N / pool²), and log Σ exp of the scores.
    """
    x = x.contiguous()
    options = num_heads, joint, dense, eps, norm_joint, shuffle, pool, across
    results = _attention_half_results(x, gamma, beta, wqkv, bqkv, wproj, bproj, *options[:4], keep, *options[4:])
    parameters = _contiguous(gamma, beta, wqkv, bqkv, wproj, bproj, mix1, mix2)
    shape = AttentionHalfShape.of(x, *options, mix1 is not None, cut=not keep)
    pointers = results if keep else (results[0], None, None)
    call("attention_half", "forward", x.dtype, x, *parameters, *pointers, shape=shape)
    return results


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
    norm_joint: bool = False,
    shuffle: bool = False,
    pool: int = 1,
    across: int = 0,
    mix1: Tensor | None = None,
    mix2: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    C, B, N, d = x.shape
    kind = accumulator(x.dtype)
    if not keep:
        return y, x.new_empty(0, dtype=kind), x.new_empty(0, dtype=kind)
    n = N // pool**2
    return y, x.new_empty(C, B, d, n, dtype=kind), x.new_empty(1 if joint else C, B, num_heads, n, dtype=kind)


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
    mix1: Tensor | None,
    mix2: Tensor | None,
    kept: Tensor,
    lse: Tensor,
    num_heads: int,
    joint: bool,
    dense: bool,
    eps: float,
    norm_joint: bool,
    shuffle: bool,
    pool: int,
    across: int,
) -> list[Tensor]:
    """The gradients of x and of the parameters that there are."""
    x = x.contiguous()
    options = num_heads, joint, dense, eps, norm_joint, shuffle, pool, across
    shape = AttentionHalfShape.of(x, *options, mix1 is not None, cut=False)
    parameters = _contiguous(gamma, beta, wqkv, bqkv, wproj, bproj, mix1, mix2)
    gradients = _new_gradients(x, *parameters)
    tensors = grad.contiguous(), x, kept, lse, *parameters, *gradients
    call("attention_half", "backward", x.dtype, *tensors, shape=shape)
    return [gradient for gradient in gradients if gradient is not None]


@attention_half_backward.register_fake
def _(grad: Tensor, *inputs: Any) -> list[Tensor]:
    return [torch.empty_like(p, memory_format=torch.contiguous_format) for p in inputs[:9] if p is not None]


def _save_attention_half(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    *tensors, num_heads, joint, dense, eps, keep, norm_joint, shuffle, pool, across, mix1, mix2 = inputs
    if not keep:
        raise ValueError("attention_half has no gradients unless keep=True")
    ctx.set_materialize_grads(False)  # or zeros would be filled in for what only backward reads
    ctx.options = num_heads, joint, dense, eps, norm_joint, shuffle, pool, across
    ctx.save_for_backward(*tensors, mix1, mix2, *output[1:])


def _attention_half_backward(ctx: Any, grad: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 18
    gradients = iter(attention_half_backward(grad, *ctx.saved_tensors, *ctx.options))
    *plain, d_mix1, d_mix2 = (None if tensor is None else next(gradients) for tensor in ctx.saved_tensors[:9])
    return (*plain, *[None] * 9, d_mix1, d_mix2)


attention_half.register_autograd(_attention_half_backward, setup_context=_save_attention_half)
attention_half_backward.register_autograd(refuse_second_derivatives)


@register_flop_formula(torch.ops.tcpvit.attention_half)
def _attention_half_flops(x_shape: tuple[int, ...], *rest: Any, **_: Any) -> int:
    """qkv and proj, 4·d² for each token of a slice that attends, and scores and weighted values."""
    C, B, N, d = x_shape
    n = N // (rest[13] if len(rest) > 13 else 1) ** 2
    return 2 * C * B * n * (4 * d * d + 2 * n * d)
