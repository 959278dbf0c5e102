"""The FFN half of a block on a GPU, from its norm to its residual: y = x + GELU(norm(x) w1 + b1) w2 + b2, x (C, R, d).

A program has a block of tokens of a slice and goes through the hidden features; nothing between norm and residual is
written to memory, and backward computes it again. Weights come with strides: those of nn.Linear are transposed views.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tcpvit.layers.kernels.gpu import precision, tile

ROWS, HIDDEN = 64, 32  # of a tile
CHUNK = 1024  # rows whose gradients of the weights one program sums up


@triton.jit
def _load_normed(x_ptr, gamma_ptr, beta_ptr, k, row, rows, width, eps, WIDTH: tl.constexpr):
    """x, normed to mean 0 and deviation 1, 1/deviation, γ, and what fc1 takes."""
    j = tl.arange(0, WIDTH)
    inside = (row[:, None] < rows) & (j[None, :] < width)
    x = tl.load(x_ptr + (k * rows + row[:, None]) * width + j[None, :], mask=inside, other=0.0).to(tl.float32)
    centred = tl.where(inside, x - (tl.sum(x, 1) / width)[:, None], 0.0)
    rstd = 1 / tl.sqrt(tl.sum(centred * centred, 1) / width + eps)
    gamma = tl.load(gamma_ptr + k * width + j, mask=j < width, other=0.0).to(tl.float32)
    beta = tl.load(beta_ptr + k * width + j, mask=j < width, other=0.0).to(tl.float32)
    unit = centred * rstd[:, None]
    return x, unit, rstd, gamma, unit * gamma[None, :] + beta[None, :]


@triton.jit
def _load_weights(ptr, k, first, firsts, second, seconds, slice_step, first_step, second_step):
    place = k * slice_step + first[:, None] * first_step + second[None, :] * second_step
    return tl.load(ptr + place, mask=(first[:, None] < firsts) & (second[None, :] < seconds), other=0.0)


@triton.jit
def _gelu(h):
    return 0.5 * h * (1 + tl.erf(h * 0.7071067811865476))


@triton.jit
def _gelu_slope(h):
    return 0.5 * (1 + tl.erf(h * 0.7071067811865476)) + h * tl.exp(-0.5 * h * h) * 0.3989422804014327


@triton.jit
def _forward_kernel(
    x_ptr, gamma_ptr, beta_ptr, w1_ptr, b1_ptr, w2_ptr, b2_ptr, y_ptr, rows, width, hidden, eps,
    w1_slice, w1_in, w1_out, w2_slice, w2_in, w2_out,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, HIDDEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    k = tl.program_id(1).to(tl.int64)
    row, j = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    x, _unit, _rstd, _gamma, normed = _load_normed(x_ptr, gamma_ptr, beta_ptr, k, row, rows, width, eps, WIDTH)
    kind: tl.constexpr = x_ptr.dtype.element_ty
    total = x + tl.load(b2_ptr + k * width + j, mask=j < width, other=0.0).to(tl.float32)[None, :]
    for start in range(0, hidden, HIDDEN):
        i = start + tl.arange(0, HIDDEN)
        w1 = _load_weights(w1_ptr, k, j, width, i, hidden, w1_slice, w1_in, w1_out)
        w2 = _load_weights(w2_ptr, k, i, hidden, j, width, w2_slice, w2_in, w2_out)
        b1 = tl.load(b1_ptr + k * hidden + i, mask=i < hidden, other=0.0).to(tl.float32)
        h = tl.dot(normed.to(kind), w1, input_precision=PRECISION) + b1[None, :]
        total = tl.dot(_gelu(h).to(kind), w2, total, input_precision=PRECISION)
    place = (k * rows + row[:, None]) * width + j[None, :]
    tl.store(y_ptr + place, total.to(kind), mask=(row[:, None] < rows) & (j[None, :] < width))


@triton.jit
def _input_kernel(
    grad_ptr, x_ptr, gamma_ptr, beta_ptr, w1_ptr, b1_ptr, w2_ptr, d_x_ptr, part_ptr, rows, width, hidden, eps,
    w1_slice, w1_in, w1_out, w2_slice, w2_in, w2_out,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, HIDDEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient of x, and sums for those of γ and β: parts (2, C, blocks, width)."""
    k = tl.program_id(1).to(tl.int64)
    row, j = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    inside = (row[:, None] < rows) & (j[None, :] < width)
    place = (k * rows + row[:, None]) * width + j[None, :]
    _x, unit, rstd, gamma, normed = _load_normed(x_ptr, gamma_ptr, beta_ptr, k, row, rows, width, eps, WIDTH)
    grad = tl.load(grad_ptr + place, mask=inside, other=0.0)
    kind: tl.constexpr = x_ptr.dtype.element_ty
    d_normed = tl.zeros((ROWS, WIDTH), tl.float32)
    for start in range(0, hidden, HIDDEN):
        i = start + tl.arange(0, HIDDEN)
        w1 = _load_weights(w1_ptr, k, j, width, i, hidden, w1_slice, w1_in, w1_out)
        w2 = _load_weights(w2_ptr, k, i, hidden, j, width, w2_slice, w2_in, w2_out)
        b1 = tl.load(b1_ptr + k * hidden + i, mask=i < hidden, other=0.0).to(tl.float32)
        h = tl.dot(normed.to(kind), w1, input_precision=PRECISION) + b1[None, :]
        d_h = tl.dot(grad, tl.trans(w2), input_precision=PRECISION) * _gelu_slope(h)
        d_normed = tl.dot(d_h.to(kind), tl.trans(w1), d_normed, input_precision=PRECISION)
    d_unit = d_normed * gamma[None, :]
    mean, along = tl.sum(d_unit, 1) / width, tl.sum(d_unit * unit, 1) / width
    d_x = grad.to(tl.float32) + rstd[:, None] * (d_unit - mean[:, None] - unit * along[:, None])
    tl.store(d_x_ptr + place, d_x.to(kind), mask=inside)
    blocks, slices = tl.num_programs(0), tl.num_programs(1)
    part = (k * blocks + tl.program_id(0)) * width + j
    counted = tl.where(inside, d_normed, 0.0)
    tl.store(part_ptr + part, tl.sum(counted * unit, 0), mask=j < width)
    tl.store(part_ptr + slices * blocks * width + part, tl.sum(counted, 0), mask=j < width)


@triton.jit
def _weights_kernel(
    grad_ptr, x_ptr, gamma_ptr, beta_ptr, w1_ptr, b1_ptr, w2_ptr, d_w1_ptr, d_b1_ptr, d_w2_ptr,
    rows, width, hidden, eps, w1_slice, w1_in, w1_out, w2_slice, w2_in, w2_out,
    CHUNK: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, HIDDEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Sums over a chunk of rows for the gradients of w1ᵀ, b1 and w2: (C, chunks, hidden, width or 1)."""
    k, chunk = tl.program_id(2).to(tl.int64), tl.program_id(0)
    i, j = tl.program_id(1) * HIDDEN + tl.arange(0, HIDDEN), tl.arange(0, WIDTH)
    w1 = _load_weights(w1_ptr, k, j, width, i, hidden, w1_slice, w1_in, w1_out)
    w2 = _load_weights(w2_ptr, k, i, hidden, j, width, w2_slice, w2_in, w2_out)
    b1 = tl.load(b1_ptr + k * hidden + i, mask=i < hidden, other=0.0).to(tl.float32)
    kind: tl.constexpr = x_ptr.dtype.element_ty
    d_w1 = tl.zeros((HIDDEN, WIDTH), tl.float32)
    d_w2 = tl.zeros((HIDDEN, WIDTH), tl.float32)
    d_b1 = tl.zeros((HIDDEN,), tl.float32)
    for start in range(0, CHUNK, ROWS):
        row = chunk * CHUNK + start + tl.arange(0, ROWS)
        _x, _unit, _rstd, _gamma, normed = _load_normed(x_ptr, gamma_ptr, beta_ptr, k, row, rows, width, eps, WIDTH)
        place = (k * rows + row[:, None]) * width + j[None, :]
        # rows beyond the last have no gradient, and so no part in any sum
        grad = tl.load(grad_ptr + place, mask=(row[:, None] < rows) & (j[None, :] < width), other=0.0)
        h = tl.dot(normed.to(kind), w1, input_precision=PRECISION) + b1[None, :]
        d_h = tl.dot(grad, tl.trans(w2), input_precision=PRECISION) * _gelu_slope(h)
        d_w1 = tl.dot(tl.trans(d_h.to(kind)), normed.to(kind), d_w1, input_precision=PRECISION)
        d_w2 = tl.dot(tl.trans(_gelu(h).to(kind)), grad, d_w2, input_precision=PRECISION)
        d_b1 += tl.sum(d_h, 0)
    first = (k * tl.num_programs(0) + chunk) * hidden + i
    place, inside = first[:, None] * width + j[None, :], (i[:, None] < hidden) & (j[None, :] < width)
    tl.store(d_w1_ptr + place, d_w1, mask=inside)
    tl.store(d_w2_ptr + place, d_w2, mask=inside)
    tl.store(d_b1_ptr + first, d_b1, mask=i < hidden)


def forward(
    x: Tensor, gamma: Tensor, beta: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, dense: bool, eps: float
) -> Tensor:
    """y (C, R, d); weights (C, d, h) and (C, h, d), or as nn.Linear has them if `dense`."""
    x = x.contiguous()
    (C, R, d), y = x.shape, torch.empty_like(x)
    gamma, beta, b1, b2 = (p.contiguous() for p in (gamma, beta, b1, b2))
    w1, w2 = _by_slices(w1, dense), _by_slices(w2, dense)
    _forward_kernel[(triton.cdiv(R, ROWS), C)](
        x, gamma, beta, w1, b1, w2, b2, y, R, d, w1.shape[2], eps, *w1.stride(), *w2.stride(),
        ROWS=ROWS, WIDTH=tile(d), HIDDEN=HIDDEN, PRECISION=precision(x),
    )  # fmt: skip
    return y


def backward(
    grad: Tensor, x: Tensor, gamma: Tensor, beta: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor,
    dense: bool, eps: float,
) -> list[Tensor]:  # fmt: skip
    """The gradients of x, gamma, beta, w1, b1, w2 and b2; sums are taken in an order that does not change."""
    grad, x = grad.contiguous(), x.contiguous()
    first, second = _by_slices(w1, dense), _by_slices(w2, dense)
    (C, R, d), h = x.shape, first.shape[2]
    inputs = (grad, x, gamma.contiguous(), beta.contiguous(), first, b1.contiguous(), second)
    sizes = (R, d, h, eps, *first.stride(), *second.stride())
    options = {"ROWS": ROWS, "WIDTH": tile(d), "HIDDEN": HIDDEN, "PRECISION": precision(x)}
    d_x, blocks, chunks = torch.empty_like(x), triton.cdiv(R, ROWS), triton.cdiv(R, CHUNK)
    norms = x.new_empty(2, C, blocks, d, dtype=torch.float32)
    _input_kernel[(blocks, C)](*inputs, d_x, norms, *sizes, **options)
    weights = x.new_empty(2, C, chunks, h, d, dtype=torch.float32)
    biases = x.new_empty(C, chunks, h, dtype=torch.float32)
    grid = (chunks, triton.cdiv(h, HIDDEN), C)
    _weights_kernel[grid](*inputs, weights[0], biases, weights[1], *sizes, CHUNK=CHUNK, **options)
    d_gamma, d_beta = norms.sum(2)
    d_w1, d_w2 = weights.sum(2)  # (C, h, d)
    d_b1, d_b2 = biases.sum(1), grad.sum(1, dtype=torch.float32)
    found = (d_gamma, d_beta, d_w1 if dense else d_w1.mT, d_b1, d_w2.mT if dense else d_w2, d_b2)
    likes = (gamma, beta, w1, b1, w2, b2)
    # copies: what an operator returns shares no memory
    return [d_x, *(p.new_empty(p.shape).copy_(f.reshape(p.shape)) for f, p in zip(found, likes, strict=True))]


def _by_slices(weight: Tensor, dense: bool) -> Tensor:
    """(C, d_in, d_out), a view."""
    return weight.mT.unsqueeze(0) if dense else weight
