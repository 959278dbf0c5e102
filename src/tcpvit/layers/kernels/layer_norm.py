"""LayerNorm of narrow slices on a CPU, each slice with its own scale and shift, as an operator of torch."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from tcpvit.layers.kernels.build import DTYPES, accumulator, call, is_built, steps_aside

WORTH_WIDTH = 64  # up to here it was measured to be faster than torch, forward and backward
ROWS = 256  # as in layer_norm.cpp


class Shape(ctypes.Structure):
    """`Shape` of layer_norm.cpp."""

    _fields_ = [*((name, ctypes.c_int64) for name in ("slices", "rows", "width")), ("eps", ctypes.c_double)]


def is_fit(x: Tensor, weight: Tensor) -> bool:
    """True if the kernel takes these, (C, R, d) and (C, 1, d), and is worth it."""
    if x.device.type != "cpu" or x.dtype not in DTYPES or weight.dtype != x.dtype or steps_aside():
        return False
    return x.shape[-1] <= WORTH_WIDTH and is_built("layer_norm")


@torch.library.custom_op("tcpvit::slice_layer_norm", mutates_args=())
def slice_layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """x (C, R, d), weight and bias (C, 1, d) -> y (C, R, d), and mean and 1/deviation of each row."""
    x, weight, bias = x.contiguous(), weight.contiguous(), bias.contiguous()
    y, mean, rstd = _results(x, weight, bias, eps)
    call("layer_norm", "forward", x.dtype, x, weight, bias, y, mean, rstd, shape=Shape(*x.shape, eps))
    return y, mean, rstd


@slice_layer_norm.register_fake
def _results(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    row = x.new_empty(x.shape[:2], dtype=accumulator(x.dtype))
    return torch.empty_like(x, memory_format=torch.contiguous_format), row, torch.empty_like(row)


@torch.library.custom_op("tcpvit::slice_layer_norm_backward", mutates_args=())
def slice_layer_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, weight and bias."""
    grad, x, weight = grad.contiguous(), x.contiguous(), weight.contiguous()
    slices, rows, width = x.shape
    parts = x.new_empty(2, slices, -(-rows // ROWS), width, dtype=accumulator(x.dtype))
    d_x = torch.empty_like(x)
    pointers = (grad, x, weight, mean, rstd, d_x, parts[0], parts[1])
    call("layer_norm", "backward", x.dtype, *pointers, shape=Shape(*x.shape, 0.0))
    d_weight, d_bias = parts.sum(2, keepdim=True).to(x.dtype).unbind(0)  # (C, 1, d)
    return d_x, d_weight.clone(), d_bias.clone()


@slice_layer_norm_backward.register_fake
def _(grad: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    d_x, d_weight = (torch.empty_like(t, memory_format=torch.contiguous_format) for t in (x, weight))
    return d_x, d_weight, torch.empty_like(d_weight)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, float], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.save_for_backward(inputs[0], inputs[1], output[1], output[2])


def _backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    return (*slice_layer_norm_backward(grad, *ctx.saved_tensors), None)


slice_layer_norm.register_autograd(_backward, setup_context=_save)
