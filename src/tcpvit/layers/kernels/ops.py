"""Operators of torch for what it has no fast kernel for: small heads, narrow norms, short tubes, products of slices.

Each is registered through torch.library with a fake and an autograd formula, so that compile and export go on
working. `can_use_*` says whether a kernel takes a tensor and is faster than torch; each has a fallback in torch.
Kernels for a CPU are in C++, those for a GPU in Triton (`gpu`).
"""

from __future__ import annotations

import ctypes
import math
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from tcpvit.layers.kernels import gpu
from tcpvit.layers.kernels.build import (
    DTYPES,
    accumulator,
    call,
    is_built,
    operators_refused,
    refuse_second_derivatives,
)

# Sizes for which the kernels were measured to be faster than torch, forward and backward.
MAX_HEAD_WIDTH = 256  # numbers in a head, d_h or C·d_h for joint attention; of wider ones torch is faster
MAX_NORM_WIDTH = 64
TO_HAT_LENGTHS, FROM_HAT_LENGTHS = (2, 3, 4, 8), (2, 3, 4, 5, 6, 7, 8)  # those that compilers vectorise, and all
MIN_NUMBERS = 2**13  # in tubes; below, calling an operator of our own takes longer than it saves

NORM_ROWS, JOINT_NORM_ROWS = 256, 32  # as in layer_norm.cpp and joint_norm.cpp
TUBES_DTYPES = (torch.float32, torch.float64)


# --------------------------------------------------------------------------------------------------- attention


class AttentionShape(ctypes.Structure):
    """`Shape` of attention.cpp."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("groups", "parts", "tokens", "heads", "size", "group_step", "part_step")),
        ("scale", ctypes.c_double),
    ]

    @classmethod
    def of(cls, qkv: Tensor, num_heads: int, joint: bool) -> AttentionShape:
        """For qkv (C, B, N, 3·H·D)."""
        C, B, N, features = qkv.shape
        size = features // (3 * num_heads)
        if joint:
            return cls(B, C, N, num_heads, size, N, B * N, 1 / math.sqrt(C * size))
        return cls(C * B, 1, N, num_heads, size, N, 0, 1 / math.sqrt(size))


def can_use_attention(qkv: Tensor, num_heads: int, joint: bool) -> bool:
    """True if the kernel takes this qkv (C, B, N, 3·H·D) and is worth it."""
    width = qkv.shape[-1] // (3 * num_heads) * (qkv.shape[0] if joint else 1)
    if qkv.is_cuda:
        return width <= gpu.MAX_WIDTH and gpu.can_use_gpu(qkv)
    if qkv.device.type != "cpu" or qkv.dtype not in DTYPES or width > MAX_HEAD_WIDTH or operators_refused():
        return False
    return is_built("attention")


@torch.library.custom_op("tcpvit::packed_attention", mutates_args=())
def packed_attention(qkv: Tensor, num_heads: int, joint: bool) -> tuple[Tensor, Tensor]:
    """qkv (C, B, N, 3·H·D) -> merged heads (C, B, N, H·D), and log Σ exp of each row of scores."""
    qkv = qkv.contiguous()
    shape = AttentionShape.of(qkv, num_heads, joint)
    if shape.parts * shape.size > MAX_HEAD_WIDTH:
        raise ValueError(f"heads are at most {MAX_HEAD_WIDTH} wide here, got {shape.parts * shape.size}")
    out, lse = _attention_results(qkv, num_heads, joint)
    call("attention", "forward", qkv.dtype, qkv, out, lse, shape=shape)
    return out, lse


@packed_attention.register_kernel("cuda")
def _(qkv: Tensor, num_heads: int, joint: bool) -> tuple[Tensor, Tensor]:
    from tcpvit.layers.kernels.gpu import attention

    return attention.forward(qkv, num_heads, joint)


@packed_attention.register_fake
def _attention_results(qkv: Tensor, num_heads: int, joint: bool) -> tuple[Tensor, Tensor]:
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
    call("attention", "backward", qkv.dtype, *tensors, shape=AttentionShape.of(qkv, num_heads, joint))
    return grad_qkv


@packed_attention_backward.register_kernel("cuda")
def _(grad: Tensor, qkv: Tensor, out: Tensor, lse: Tensor, num_heads: int, joint: bool) -> Tensor:
    from tcpvit.layers.kernels.gpu import attention

    return attention.backward(grad, qkv, out, lse, num_heads, joint)


@packed_attention_backward.register_fake
def _(grad: Tensor, qkv: Tensor, out: Tensor, lse: Tensor, num_heads: int, joint: bool) -> Tensor:
    return torch.empty_like(qkv, memory_format=torch.contiguous_format)


def _save_attention(ctx: Any, inputs: tuple[Tensor, int, bool], output: tuple[Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)  # or zeros would be filled in for what only backward reads
    qkv, ctx.num_heads, ctx.joint = inputs
    ctx.save_for_backward(qkv, *output)


def _attention_backward(ctx: Any, grad: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, None, None]:
    if grad is None:
        return None, None, None
    return packed_attention_backward(grad, *ctx.saved_tensors, ctx.num_heads, ctx.joint), None, None


packed_attention.register_autograd(_attention_backward, setup_context=_save_attention)
packed_attention_backward.register_autograd(refuse_second_derivatives)


@register_flop_formula(torch.ops.tcpvit.packed_attention)
def _attention_flops(qkv_shape: tuple[int, ...], *_: Any, **__: Any) -> int:
    """Scores and weighted values: two products of 2·N²·d_h for each head of each slice."""
    C, B, N, features = qkv_shape
    return 4 * C * B * N * N * (features // 3)


# ------------------------------------------------------------------------------------------------- layer norm


class NormShape(ctypes.Structure):
    """`Shape` of layer_norm.cpp."""

    _fields_ = [*((name, ctypes.c_int64) for name in ("slices", "rows", "width")), ("eps", ctypes.c_double)]


def can_use_layer_norm(x: Tensor, weight: Tensor) -> bool:
    """True if the kernel takes these, (C, R, d) and (C, 1, d), and is worth it."""
    return x.shape[-1] <= MAX_NORM_WIDTH and _takes_norm(x, weight) and is_built("layer_norm")


def _takes_norm(x: Tensor, weight: Tensor) -> bool:
    return x.device.type == "cpu" and x.dtype in DTYPES and weight.dtype == x.dtype and not operators_refused()


@torch.library.custom_op("tcpvit::slice_layer_norm", mutates_args=())
def slice_layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """x (C, R, d), weight and bias (C, 1, d) -> y (C, R, d), and mean and 1/deviation of each row."""
    x, weight, bias = x.contiguous(), weight.contiguous(), bias.contiguous()
    y, mean, rstd = _norm_results(x, weight, bias, eps)
    call("layer_norm", "forward", x.dtype, x, weight, bias, y, mean, rstd, shape=NormShape(*x.shape, eps))
    return y, mean, rstd


@slice_layer_norm.register_fake
def _norm_results(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    row = x.new_empty(x.shape[:2], dtype=accumulator(x.dtype))
    return torch.empty_like(x, memory_format=torch.contiguous_format), row, torch.empty_like(row)


@torch.library.custom_op("tcpvit::slice_layer_norm_backward", mutates_args=())
def slice_layer_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, weight and bias."""
    grad, x, weight = grad.contiguous(), x.contiguous(), weight.contiguous()
    slices, rows, width = x.shape
    parts = x.new_empty(2, slices, -(-rows // NORM_ROWS), width, dtype=accumulator(x.dtype))
    d_x = torch.empty_like(x)
    pointers = (grad, x, weight, mean, rstd, d_x, parts[0], parts[1])
    call("layer_norm", "backward", x.dtype, *pointers, shape=NormShape(*x.shape, 0.0))
    d_weight, d_bias = parts.sum(2, keepdim=True).to(x.dtype).unbind(0)  # (C, 1, d)
    return d_x, d_weight.clone(), d_bias.clone()


def _save_norm(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, float], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)  # or zeros would be filled in for what only backward reads
    ctx.save_for_backward(inputs[0], inputs[1], output[1], output[2])


def _norm_backward(ctx: Any, grad: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    return (None,) * 4 if grad is None else (*slice_layer_norm_backward(grad, *ctx.saved_tensors), None)


slice_layer_norm.register_autograd(_norm_backward, setup_context=_save_norm)
slice_layer_norm_backward.register_autograd(refuse_second_derivatives)


# ------------------------------------------------------------------------------------------------- joint norm


class JointNormShape(ctypes.Structure):
    """`Shape` of joint_norm.cpp."""

    _fields_ = [*((name, ctypes.c_int64) for name in ("slices", "rows", "width", "own")), ("eps", ctypes.c_double)]


def can_use_joint_norm(x: Tensor, weight: Tensor) -> bool:
    """True if the kernel takes these, (C, R, d) and (C or 1, 1, d)."""
    return _takes_norm(x, weight) and is_built("joint_norm")


@torch.library.custom_op("tcpvit::joint_layer_norm", mutates_args=())
def joint_layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """x (C, R, d), weight and bias (C or 1, 1, d) -> y (C, R, d), and mean and 1/deviation of each token, (R)."""
    x, weight, bias = x.contiguous(), weight.contiguous(), bias.contiguous()
    y, mean, rstd = _joint_norm_results(x, weight, bias, eps)
    shape = JointNormShape(*x.shape, len(weight), eps)
    call("joint_norm", "forward", x.dtype, x, weight, bias, y, mean, rstd, shape=shape)
    return y, mean, rstd


@joint_layer_norm.register_fake
def _joint_norm_results(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    token = x.new_empty(x.shape[1], dtype=accumulator(x.dtype))
    return torch.empty_like(x, memory_format=torch.contiguous_format), token, torch.empty_like(token)


@torch.library.custom_op("tcpvit::joint_layer_norm_backward", mutates_args=())
def joint_layer_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, weight and bias."""
    grad, x, weight = grad.contiguous(), x.contiguous(), weight.contiguous()
    blocks = -(-x.shape[1] // JOINT_NORM_ROWS)
    parts = x.new_empty(2, blocks, *weight.shape, dtype=accumulator(x.dtype))
    d_x = torch.empty_like(x)
    pointers = (grad, x, weight, mean, rstd, d_x, parts[0], parts[1])
    call("joint_norm", "backward", x.dtype, *pointers, shape=JointNormShape(*x.shape, len(weight), 0.0))
    d_weight, d_bias = parts.sum(1).to(x.dtype).unbind(0)
    return d_x, d_weight.clone(), d_bias.clone()


@slice_layer_norm_backward.register_fake
@joint_layer_norm_backward.register_fake
def _(grad: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    d_x, d_weight = (torch.empty_like(t, memory_format=torch.contiguous_format) for t in (x, weight))
    return d_x, d_weight, torch.empty_like(d_weight)


def _joint_norm_backward(ctx: Any, grad: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    return (None,) * 4 if grad is None else (*joint_layer_norm_backward(grad, *ctx.saved_tensors), None)


joint_layer_norm.register_autograd(_joint_norm_backward, setup_context=_save_norm)
joint_layer_norm_backward.register_autograd(refuse_second_derivatives)


# ------------------------------------------------------------------------------------------------------ tubes


class TubesShape(ctypes.Structure):
    """`Shape` of tubes.cpp."""

    _fields_ = [(name, ctypes.c_int64) for name in ("tubes", "length")]


def can_use_tubes(x: Tensor, length: int, lengths: tuple[int, ...]) -> bool:
    """True if the kernel takes numbers of this kind in tubes of that length, and is worth it for these lengths."""
    if x.device.type != "cpu" or x.dtype not in TUBES_DTYPES or length not in lengths or operators_refused():
        return False
    return x.numel() >= MIN_NUMBERS and is_built("tubes")


@torch.library.custom_op("tcpvit::to_hat_tubes", mutates_args=())
def to_hat_tubes(x: Tensor, matrix: Tensor) -> Tensor:
    """y[k, r] = Σ_q matrix[k, q]·x[r, q]: (R, C) and (C, C) -> (C, R)."""
    return _run_tubes("to_hat", x, matrix)


@torch.library.custom_op("tcpvit::from_hat_tubes", mutates_args=())
def from_hat_tubes(x: Tensor, matrix: Tensor) -> Tensor:
    """y[r, p] = Σ_k matrix[p, k]·x[k, r]: (C, R) and (C, C) -> (R, C)."""
    return _run_tubes("from_hat", x, matrix)


def _run_tubes(direction: str, x: Tensor, matrix: Tensor) -> Tensor:
    if x.dtype not in TUBES_DTYPES or len(matrix) not in FROM_HAT_LENGTHS:
        raise ValueError(f"tubes are of 2 to 8 floats or doubles here, got {len(matrix)} of {x.dtype}")
    y = x.new_empty(x.shape[::-1])
    shape = TubesShape(y.numel() // len(matrix), len(matrix))
    call("tubes", direction, x.dtype, x.contiguous(), matrix.to(x.dtype).contiguous(), y, shape=shape)
    return y


@to_hat_tubes.register_fake
@from_hat_tubes.register_fake
def _(x: Tensor, matrix: Tensor) -> Tensor:
    return x.new_empty(x.shape[::-1])


def _save_tubes(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    x, matrix = inputs
    ctx.save_for_backward(x if matrix.requires_grad else None, matrix)


def _to_hat_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None]:
    x, matrix = ctx.saved_tensors
    return from_hat_tubes(grad, matrix.mT), None if x is None else (grad @ x).to(matrix.dtype)


def _from_hat_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None]:
    x, matrix = ctx.saved_tensors
    return to_hat_tubes(grad, matrix.mT), None if x is None else (grad.mT @ x.mT).to(matrix.dtype)


to_hat_tubes.register_autograd(_to_hat_backward, setup_context=_save_tubes)
from_hat_tubes.register_autograd(_from_hat_backward, setup_context=_save_tubes)


@register_flop_formula([torch.ops.tcpvit.to_hat_tubes, torch.ops.tcpvit.from_hat_tubes])
def _tubes_flops(x_shape: tuple[int, int], matrix_shape: tuple[int, int], *_: Any, **__: Any) -> int:
    """A product with a C×C matrix for each tube."""
    return 2 * x_shape[0] * x_shape[1] * matrix_shape[0]
