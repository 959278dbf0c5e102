"""Tubes of flat features through a C×C matrix on a CPU, in one pass over the memory, as operators of torch.

`split_tubes` enters the hat domain, (R, C) -> (C, R), `join_tubes` leaves it. Each is the other's gradient, with the
matrix transposed.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from tcpvit.layers.kernels.build import call, is_built, steps_aside

# Lengths of tubes for which it was measured to be faster than torch: those that compilers take apart in vectors, and
# on the way back all there are.
WORTH_SPLITTING, WORTH_JOINING = (2, 3, 4, 8), (2, 3, 4, 5, 6, 7, 8)
KERNEL_DTYPES = (torch.float32, torch.float64)
WORTH_NUMBERS = 2**13  # from here on; below, calling an operator of our own takes longer than it saves


class Shape(ctypes.Structure):
    """`Shape` of tubes.cpp."""

    _fields_ = [(name, ctypes.c_int64) for name in ("tubes", "length")]


def is_fit(x: Tensor, length: int, worth: tuple[int, ...]) -> bool:
    """True if the kernel takes numbers of this kind in tubes of that length, and is worth it for these lengths."""
    if x.device.type != "cpu" or x.dtype not in KERNEL_DTYPES or length not in worth or steps_aside():
        return False
    return x.numel() >= WORTH_NUMBERS and is_built("tubes")


@torch.library.custom_op("tcpvit::split_tubes", mutates_args=())
def split_tubes(x: Tensor, matrix: Tensor) -> Tensor:
    """y[k, r] = Σ_q matrix[k, q]·x[r, q]: (R, C) and (C, C) -> (C, R)."""
    return _run("split", x, matrix)


@torch.library.custom_op("tcpvit::join_tubes", mutates_args=())
def join_tubes(x: Tensor, matrix: Tensor) -> Tensor:
    """y[r, p] = Σ_k matrix[p, k]·x[k, r]: (C, R) and (C, C) -> (R, C)."""
    return _run("join", x, matrix)


def _run(way: str, x: Tensor, matrix: Tensor) -> Tensor:
    if x.dtype not in KERNEL_DTYPES or len(matrix) not in WORTH_JOINING:
        raise ValueError(f"tubes are of 2 to 8 floats or doubles here, got {len(matrix)} of {x.dtype}")
    y = x.new_empty(x.shape[::-1])
    shape = Shape(y.numel() // len(matrix), len(matrix))
    call("tubes", way, x.dtype, x.contiguous(), matrix.to(x.dtype).contiguous(), y, shape=shape)
    return y


@split_tubes.register_fake
def _(x: Tensor, matrix: Tensor) -> Tensor:
    return x.new_empty(x.shape[::-1])


@join_tubes.register_fake
def _(x: Tensor, matrix: Tensor) -> Tensor:
    return x.new_empty(x.shape[::-1])


def _save(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    x, matrix = inputs
    ctx.save_for_backward(x if matrix.requires_grad else None, matrix)


def _backward_of_split(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None]:
    x, matrix = ctx.saved_tensors
    return join_tubes(grad, matrix.mT), None if x is None else (grad @ x).to(matrix.dtype)


def _backward_of_join(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None]:
    x, matrix = ctx.saved_tensors
    return split_tubes(grad, matrix.mT), None if x is None else (grad.mT @ x.mT).to(matrix.dtype)


split_tubes.register_autograd(_backward_of_split, setup_context=_save)
join_tubes.register_autograd(_backward_of_join, setup_context=_save)


@register_flop_formula([torch.ops.tcpvit.split_tubes, torch.ops.tcpvit.join_tubes])
def _flops(x_shape: tuple[int, int], matrix_shape: tuple[int, int], *_: Any, **__: Any) -> int:
    """A product with a C×C matrix for each tube."""
    return 2 * x_shape[0] * x_shape[1] * matrix_shape[0]
