"""The slice product on a GPU: y_k = x_k w_k + b_k, (C, R, d_in) and (C, d_in, d_out) -> (C, R, d_out).

Slices of 16 to 256 numbers are too small for a library's tiles; here a program multiplies a block of rows of a slice.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tcpvit.layers.kernels.gpu import precision, tile

ROWS = 64  # of a tile
CHUNK = 1024  # rows whose outer products one program sums up


@triton.jit
def _product_kernel(
    x_ptr, w_ptr, b_ptr, y_ptr, rows, d_in, d_out,
    x_slice, x_row, x_col, w_slice, w_row, w_col, b_slice,
    HAS_BIAS: tl.constexpr, ROWS: tl.constexpr, D_IN: tl.constexpr, D_OUT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    k = tl.program_id(2).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    out = tl.program_id(1) * D_OUT + tl.arange(0, D_OUT)
    total = tl.zeros((ROWS, D_OUT), tl.float32)
    for start in range(0, d_in, D_IN):
        i = start + tl.arange(0, D_IN)
        x_place = k * x_slice + row[:, None].to(tl.int64) * x_row + i[None, :] * x_col
        x = tl.load(x_ptr + x_place, mask=(row[:, None] < rows) & (i[None, :] < d_in), other=0.0)
        w_place = k * w_slice + i[:, None] * w_row + out[None, :] * w_col
        w = tl.load(w_ptr + w_place, mask=(i[:, None] < d_in) & (out[None, :] < d_out), other=0.0)
        total = tl.dot(x, w, total, input_precision=PRECISION)
    if HAS_BIAS:
        total += tl.load(b_ptr + k * b_slice + out, mask=out < d_out, other=0.0).to(tl.float32)[None, :]
    y_place = (k * rows + row[:, None]) * d_out + out[None, :]
    tl.store(y_ptr + y_place, total.to(y_ptr.dtype.element_ty), mask=(row[:, None] < rows) & (out[None, :] < d_out))


@triton.jit
def _outer_kernel(
    x_ptr, g_ptr, part_ptr, rows, d_in, d_out, chunks,
    CHUNK: tl.constexpr, ROWS: tl.constexpr, D_IN: tl.constexpr, D_OUT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """x_kᵀ g_k over a chunk of rows: (C, R, d_in) and (C, R, d_out) -> (C, chunks, d_in, d_out)."""
    chunk, k = tl.program_id(0), tl.program_id(2).to(tl.int64)
    wide = tl.cdiv(d_out, D_OUT)
    i = (tl.program_id(1) // wide) * D_IN + tl.arange(0, D_IN)
    out = (tl.program_id(1) % wide) * D_OUT + tl.arange(0, D_OUT)
    total = tl.zeros((D_IN, D_OUT), tl.float32)
    for start in range(0, CHUNK, ROWS):
        row = chunk * CHUNK + start + tl.arange(0, ROWS)
        x_place = (k * rows + row[None, :]) * d_in + i[:, None]
        x = tl.load(x_ptr + x_place, mask=(row[None, :] < rows) & (i[:, None] < d_in), other=0.0)
        g_place = (k * rows + row[:, None]) * d_out + out[None, :]
        g = tl.load(g_ptr + g_place, mask=(row[:, None] < rows) & (out[None, :] < d_out), other=0.0)
        total = tl.dot(x, g, total, input_precision=PRECISION)
    place = ((k * chunks + chunk) * d_in + i[:, None]) * d_out + out[None, :]
    tl.store(part_ptr + place, total, mask=(i[:, None] < d_in) & (out[None, :] < d_out))


def forward(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (C, R, d_in) times weight (C, d_in, d_out), plus bias (C, 1, d_out)."""
    (C, R, d_in), d_out = x.shape, weight.shape[-1]
    y = x.new_empty(C, R, d_out)
    wide = tile(d_out)
    grid = (triton.cdiv(R, ROWS), triton.cdiv(d_out, wide), C)
    _product_kernel[grid](
        x, weight, bias, y, R, d_in, d_out, *x.stride(), *weight.stride(), 0 if bias is None else bias.stride(0),
        HAS_BIAS=bias is not None, ROWS=ROWS, D_IN=tile(d_in), D_OUT=wide, PRECISION=precision(x),
    )  # fmt: skip
    return y


def backward(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, weight and bias; rows are summed up in chunks, in an order that does not change."""
    grad, x = grad.contiguous(), x.contiguous()
    (C, R, d_in), d_out = x.shape, weight.shape[-1]
    chunks, tall, wide = triton.cdiv(R, CHUNK), tile(d_in), tile(d_out)
    parts = x.new_empty(C, chunks, d_in, d_out, dtype=torch.float32)
    grid = (chunks, triton.cdiv(d_in, tall) * triton.cdiv(d_out, wide), C)
    _outer_kernel[grid](
        x, grad, parts, R, d_in, d_out, chunks,
        CHUNK=CHUNK, ROWS=ROWS, D_IN=tall, D_OUT=wide, PRECISION=precision(x),
    )  # fmt: skip
    d_bias = grad.sum(1, keepdim=True, dtype=torch.float32)
    return forward(grad, weight.mT), parts.sum(1).to(weight.dtype), d_bias.to(weight.dtype)
