"""Attention with small heads on a CPU, from the packed qkv to the merged output, as an operator of torch.

`packed_attention` computes what `TAttention` otherwise does by permuting qkv, scaled_dot_product_attention and
permuting back; it is registered through torch.library with a fake and an autograd formula, so that compile and export
go on working.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from tcpvit.layers.kernels.build import DTYPES, accumulator, call, is_built, steps_aside

MAX_WIDTH = 64  # numbers in a head, d_h or C·d_h for joint attention: what the kernel has room for
WORTH_WIDTH = 64  # up to here it was measured to be faster than torch, forward and backward


class Shape(ctypes.Structure):
    """`Shape` of attention.cpp."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("groups", "parts", "tokens", "heads", "size", "group_step", "part_step")),
        ("scale", ctypes.c_double),
    ]

    @classmethod
    def of(cls, qkv: Tensor, num_heads: int, joint: bool) -> Shape:
        """For qkv (C, B, N, 3·H·D)."""
        C, B, N, features = qkv.shape
        size = features // (3 * num_heads)
        if joint:
            return cls(B, C, N, num_heads, size, N, B * N, 1 / math.sqrt(C * size))
        return cls(C * B, 1, N, num_heads, size, N, 0, 1 / math.sqrt(size))


def is_fit(qkv: Tensor, num_heads: int, joint: bool) -> bool:
    """True if the kernel takes this qkv (C, B, N, 3·H·D) and is worth it."""
    width = qkv.shape[-1] // (3 * num_heads) * (qkv.shape[0] if joint else 1)
    if qkv.device.type != "cpu" or qkv.dtype not in DTYPES or width > WORTH_WIDTH or steps_aside():
        return False
    return is_built("attention")


@torch.library.custom_op("tcpvit::packed_attention", mutates_args=())
def packed_attention(qkv: Tensor, num_heads: int, joint: bool) -> tuple[Tensor, Tensor]:
    """qkv (C, B, N, 3·H·D) -> merged heads (C, B, N, H·D), and log Σ exp of each row of scores."""
    qkv = qkv.contiguous()
    shape = Shape.of(qkv, num_heads, joint)
    if shape.parts * shape.size > MAX_WIDTH:
        raise ValueError(f"heads are at most {MAX_WIDTH} wide here, got {shape.parts * shape.size}")
    out, lse = _results(qkv, num_heads, joint)
    call("attention", "forward", qkv.dtype, qkv, out, lse, shape=shape)
    return out, lse


@packed_attention.register_fake
def _results(qkv: Tensor, num_heads: int, joint: bool) -> tuple[Tensor, Tensor]:
    C, B, N, features = qkv.shape
    lse = qkv.new_empty(B if joint else C * B, num_heads, N, dtype=accumulator(qkv.dtype))
    return qkv.new_empty(C, B, N, features // 3), lse


@torch.library.custom_op("tcpvit::packed_attention_backward", mutates_args=())
def packed_attention_backward(
    grad: Tensor, qkv: Tensor, out: Tensor, lse: Tensor, num_heads: int, joint: bool
) -> Tensor:
    """The gradient of qkv."""
    qkv = qkv.contiguous()
    grad_qkv = torch.empty_like(qkv)
    tensors = (grad.contiguous(), qkv, out, lse, grad_qkv)
    call("attention", "backward", qkv.dtype, *tensors, shape=Shape.of(qkv, num_heads, joint))
    return grad_qkv


@packed_attention_backward.register_fake
def _(grad: Tensor, qkv: Tensor, out: Tensor, lse: Tensor, num_heads: int, joint: bool) -> Tensor:
    return torch.empty_like(qkv, memory_format=torch.contiguous_format)


def _save(ctx: Any, inputs: tuple[Tensor, int, bool], output: tuple[Tensor, Tensor]) -> None:
    qkv, ctx.num_heads, ctx.joint = inputs
    ctx.save_for_backward(qkv, *output)


def _backward(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Tensor, None, None]:
    return packed_attention_backward(grad, *ctx.saved_tensors, ctx.num_heads, ctx.joint), None, None


packed_attention.register_autograd(_backward, setup_context=_save)


@register_flop_formula(torch.ops.tcpvit.packed_attention)
def _flops(qkv_shape: tuple[int, ...], *_: Any, **__: Any) -> int:
    """Scores and weighted values: two products of 2·N²·d_h for each head of each slice."""
    C, B, N, features = qkv_shape
    return 4 * C * B * N * N * (features // 3)
