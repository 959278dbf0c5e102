"""Attention of small heads on a GPU, packed as qkv comes: (C, B, N, 3·H·D) -> (C, B, N, H·D).

A group is what is attended to together: an image of a slice, or with joint attention an image, whose heads lie in C
parts of the memory, D numbers in each. A program has a block of queries (or keys) and goes through all keys (queries).
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from tcpvit.layers.kernels.gpu import precision, tile

TOKENS = 64  # of a tile
FEWER = 32  # in backward with wide heads, whose tiles would not fit into the shared memory of every GPU


@triton.jit
def _load_heads(ptr, token, tokens, base, row_step, part_step, D: tl.constexpr, width, WIDTH: tl.constexpr):
    """Rows `token` of a head, (TOKENS, WIDTH): `width` numbers, D in each part."""
    j = tl.arange(0, WIDTH)
    place = base + token[:, None] * row_step + (j // D)[None, :] * part_step + (j % D)[None, :]
    return tl.load(ptr + place, mask=(token[:, None] < tokens) & (j[None, :] < width), other=0.0)


@triton.jit
def _store_heads(ptr, value, token, tokens, base, row_step, part_step, D: tl.constexpr, width, WIDTH: tl.constexpr):
    j = tl.arange(0, WIDTH)
    place = base + token[:, None] * row_step + (j // D)[None, :] * part_step + (j % D)[None, :]
    mask = (token[:, None] < tokens) & (j[None, :] < width)
    tl.store(ptr + place, value.to(ptr.dtype.element_ty), mask=mask)


@triton.jit
def _forward_kernel(
    qkv_ptr, out_ptr, lse_ptr, tokens, heads, parts_rows, width, scale,
    D: tl.constexpr, WIDTH: tl.constexpr, TOKENS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    group, head = tl.program_id(2).to(tl.int64), tl.program_id(1)
    row = heads * D  # numbers of a token in `out`; three times as many in `qkv`
    base = group * tokens * 3 * row + head * D
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    q = _load_heads(qkv_ptr, token, tokens, base, 3 * row, parts_rows * 3 * row, D, width, WIDTH)
    largest = tl.full((TOKENS,), float("-inf"), tl.float32)
    total = tl.zeros((TOKENS,), tl.float32)
    out = tl.zeros((TOKENS, WIDTH), tl.float32)
    for start in range(0, tokens, TOKENS):
        key = start + tl.arange(0, TOKENS)
        k = _load_heads(qkv_ptr, key, tokens, base + row, 3 * row, parts_rows * 3 * row, D, width, WIDTH)
        v = _load_heads(qkv_ptr, key, tokens, base + 2 * row, 3 * row, parts_rows * 3 * row, D, width, WIDTH)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
        scores = tl.where(key[None, :] < tokens, scores, float("-inf"))
        larger = tl.maximum(largest, tl.max(scores, 1))
        weights = tl.exp(scores - larger[:, None])
        shrink = tl.exp(largest - larger)
        total = total * shrink + tl.sum(weights, 1)
        out = tl.dot(weights.to(v.dtype), v, out * shrink[:, None], input_precision=PRECISION)
        largest = larger
    out = out / total[:, None]
    base = group * tokens * row + head * D
    _store_heads(out_ptr, out, token, tokens, base, row, parts_rows * row, D, width, WIDTH)
    tl.store(lse_ptr + (group * heads + head) * tokens + token, largest + tl.log(total), mask=token < tokens)


@triton.jit
def _score_gradient(q, k, v, grad, out, lse, key, tokens, scale, PRECISION: tl.constexpr):
    """The softmax weights of queries (rows) to keys (columns), and the gradient of their scaled scores."""
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
    weights = tl.where(key[None, :] < tokens, tl.exp(scores - lse[:, None]), 0.0)
    of_weights = tl.dot(grad, tl.trans(v), input_precision=PRECISION)
    mean = tl.sum(grad.to(tl.float32) * out.to(tl.float32), 1)
    return weights, weights * (of_weights - mean[:, None]) * scale


@triton.jit
def _backward_kernel(
    grad_ptr, qkv_ptr, out_ptr, lse_ptr, d_qkv_ptr, tokens, heads, parts_rows, width, scale,
    D: tl.constexpr, WIDTH: tl.constexpr, TOKENS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of queries, then of the same block of keys and values."""
    group, head = tl.program_id(2).to(tl.int64), tl.program_id(1)
    row = heads * D
    part, out_part = parts_rows * 3 * row, parts_rows * row
    base, out_base = group * tokens * 3 * row + head * D, group * tokens * row + head * D
    lse_ptr += (group * heads + head) * tokens
    mine = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    q = _load_heads(qkv_ptr, mine, tokens, base, 3 * row, part, D, width, WIDTH)
    k = _load_heads(qkv_ptr, mine, tokens, base + row, 3 * row, part, D, width, WIDTH)
    v = _load_heads(qkv_ptr, mine, tokens, base + 2 * row, 3 * row, part, D, width, WIDTH)
    grad = _load_heads(grad_ptr, mine, tokens, out_base, row, out_part, D, width, WIDTH)
    out = _load_heads(out_ptr, mine, tokens, out_base, row, out_part, D, width, WIDTH)
    lse = tl.load(lse_ptr + mine, mask=mine < tokens, other=float("inf"))
    d_q = tl.zeros((TOKENS, WIDTH), tl.float32)
    d_k = tl.zeros((TOKENS, WIDTH), tl.float32)
    d_v = tl.zeros((TOKENS, WIDTH), tl.float32)
    for start in range(0, tokens, TOKENS):
        other = start + tl.arange(0, TOKENS)
        k_other = _load_heads(qkv_ptr, other, tokens, base + row, 3 * row, part, D, width, WIDTH)
        v_other = _load_heads(qkv_ptr, other, tokens, base + 2 * row, 3 * row, part, D, width, WIDTH)
        _, d_scores = _score_gradient(q, k_other, v_other, grad, out, lse, other, tokens, scale, PRECISION)
        d_q = tl.dot(d_scores.to(k.dtype), k_other, d_q, input_precision=PRECISION)
        q_other = _load_heads(qkv_ptr, other, tokens, base, 3 * row, part, D, width, WIDTH)
        grad_other = _load_heads(grad_ptr, other, tokens, out_base, row, out_part, D, width, WIDTH)
        out_other = _load_heads(out_ptr, other, tokens, out_base, row, out_part, D, width, WIDTH)
        lse_other = tl.load(lse_ptr + other, mask=other < tokens, other=float("inf"))
        weights, d_scores = _score_gradient(
            q_other, k, v, grad_other, out_other, lse_other, mine, tokens, scale, PRECISION
        )
        d_v = tl.dot(tl.trans(weights.to(v.dtype)), grad_other, d_v, input_precision=PRECISION)
        d_k = tl.dot(tl.trans(d_scores.to(k.dtype)), q_other, d_k, input_precision=PRECISION)
    _store_heads(d_qkv_ptr, d_q, mine, tokens, base, 3 * row, part, D, width, WIDTH)
    _store_heads(d_qkv_ptr, d_k, mine, tokens, base + row, 3 * row, part, D, width, WIDTH)
    _store_heads(d_qkv_ptr, d_v, mine, tokens, base + 2 * row, 3 * row, part, D, width, WIDTH)


def forward(qkv: Tensor, num_heads: int, joint: bool) -> tuple[Tensor, Tensor]:
    """The attended values, (C, B, N, H·D), and log Σ exp of each row of scores, (groups, H, N)."""
    qkv = qkv.contiguous()
    C, B, N, features = qkv.shape
    out = qkv.new_empty(C, B, N, features // 3)
    lse = qkv.new_empty(B if joint else C * B, num_heads, N, dtype=torch.float32)
    _launch(_forward_kernel, (qkv, out, lse), qkv, num_heads, joint, most=TOKENS)
    return out, lse


def backward(grad: Tensor, qkv: Tensor, out: Tensor, lse: Tensor, num_heads: int, joint: bool) -> Tensor:
    """The gradient of qkv."""
    qkv = qkv.contiguous()
    d_qkv = torch.empty_like(qkv)
    tensors = (grad.contiguous(), qkv, out, lse, d_qkv)
    _launch(_backward_kernel, tensors, qkv, num_heads, joint, most=backward_tokens(head_width(qkv, num_heads, joint)))
    return d_qkv


def head_width(qkv: Tensor, num_heads: int, joint: bool) -> int:
    """How many numbers a head has: D, or C·D for joint attention.

    >>> head_width(torch.empty(3, 2, 65, 3 * 16), 4, joint=True)
    12
    """
    return qkv.shape[-1] // (3 * num_heads) * (len(qkv) if joint else 1)


def backward_tokens(width: int) -> int:
    """The most tokens of a tile in backward."""
    return TOKENS if tile(width) == 16 else FEWER


def _launch(kernel, tensors: tuple[Tensor, ...], qkv: Tensor, num_heads: int, joint: bool, most: int) -> None:
    C, B, N, features = qkv.shape
    width, tokens = head_width(qkv, num_heads, joint), tile(N, most)
    kernel[(triton.cdiv(N, tokens), num_heads, B if joint else C * B)](
        *tensors, N, num_heads, B * N, width, 1 / math.sqrt(width),
        D=features // (3 * num_heads), WIDTH=tile(width), TOKENS=tokens, PRECISION=precision(qkv), num_stages=2,
    )  # fmt: skip
