"""Triton's kernels in its interpreter, on a CPU: run by test_gpu.py in a process of its own with TRITON_INTERPRET=1.

The operators get them as their kernels for a CPU, so that layers, operators, autograd formulas and kernels are tested
as they are used on a GPU, against the definitions written out in layers/reference.py. The interpreter does not multiply
bfloat16; float16 stands for it.
"""

import os

import pytest
import torch
from torch.nn import functional as F

from tcpvit.layers import linear, reference
from tcpvit.layers.block import TBlock
from tcpvit.layers.kernels import halves, ops, product
from tcpvit.layers.kernels.gpu import attention as gpu_attention
from tcpvit.layers.kernels.gpu import ffn as gpu_ffn
from tcpvit.layers.kernels.gpu import product as gpu_product

assert os.environ["TRITON_INTERPRET"] == "1"
ops.packed_attention.register_kernel("cpu")(gpu_attention.forward)
ops.packed_attention_backward.register_kernel("cpu")(gpu_attention.backward)
halves.ffn_half.register_kernel("cpu")(halves.ffn_half_on_gpu)
halves.ffn_half_backward.register_kernel("cpu")(halves.ffn_half_backward_on_gpu)
product.slice_product.register_kernel("cpu")(gpu_product.forward)
product.slice_product_backward.register_kernel("cpu")(gpu_product.backward)


@pytest.fixture
def through_triton(monkeypatch):
    monkeypatch.setattr(ops, "can_use_attention", lambda *_: True)
    monkeypatch.setattr(linear, "can_use_product", lambda *_: True)
    monkeypatch.setattr(halves, "can_use_half", lambda half, *_: half == "ffn_half")


def gradients(function, inputs, grad):
    """The result of a function of a list of tensors, and the gradients of these."""
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    y = function(*inputs)
    return [y.detach(), *torch.autograd.grad(y, inputs, grad.to(y.dtype))]


def assert_near(found, expected, tolerance):
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape
        assert (ours.double() - theirs.double()).abs().max() <= tolerance * theirs.abs().max().double().clamp_min(1)


@pytest.mark.parametrize(("heads", "d", "N", "joint"), [(1, 5, 3, False), (2, 10, 70, False), (1, 4, 70, True)])
def test_a_block_is_the_reference(through_triton, heads, d, N, joint):
    torch.manual_seed(0)
    block = TBlock(d, heads, 3, attention="joint" if joint else "slice", mlp_ratio=2)
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    x, grad = torch.randn(2, N, d, 3), torch.randn(2, N, d, 3)

    def fast(x):
        return block.transform.from_hat_tokens(block(block.transform.to_hat_tokens(x)))

    def with_weights(function, tensor):
        tensor = tensor.clone().requires_grad_()
        y = function(tensor)
        return [y.detach(), *torch.autograd.grad(y, [tensor, *block.parameters()], grad.to(y.dtype))]

    found = with_weights(fast, x)
    block.double()
    assert_near(found, with_weights(lambda t: reference.block(block, t), x.double()), 2e-5)


@pytest.mark.parametrize(
    ("C", "R", "d_in", "d_out", "dtype", "tolerance"),
    [
        (3, 1, 2, 75, torch.float32, 1e-5),
        (2, 70, 80, 5, torch.float32, 1e-5),
        (1, 1100, 16, 16, torch.float32, 1e-5),
        (2, 70, 20, 5, torch.float16, 3e-3),
    ],
)
def test_products_of_any_size_with_and_without_bias(C, R, d_in, d_out, dtype, tolerance):
    x, weight, bias = (torch.randn(*s).to(dtype) for s in ((C, R, d_in), (C, d_in, d_out), (C, 1, d_out)))
    grad = torch.randn(C, R, d_out).to(dtype)
    wide = [t.double() for t in (x, weight, bias)]
    found = gradients(product.slice_product, (x, weight, bias), grad)
    assert {t.dtype for t in found} == {dtype}
    assert_near(found, gradients(lambda x, w, b: torch.baddbmm(b, x, w), wide, grad), tolerance)
    found = gradients(lambda x, w: product.slice_product(x, w, None), (x.mT.contiguous().mT, weight), grad)
    assert_near(found, gradients(torch.bmm, wide[:2], grad), tolerance)


def test_large_scores_do_not_overflow_and_low_precision_is_kept():
    qkv = 100 * torch.randn(1, 2, 20, 3 * 8)
    out, lse = gpu_attention.forward(qkv, 1, False)
    assert out.isfinite().all()
    assert lse.isfinite().all()
    half = (qkv / 100).to(torch.float16)
    found = gradients(lambda t: ops.packed_attention(t, 2, False)[0], [half], torch.ones(1, 2, 20, 8))
    exact = gradients(lambda t: ops.packed_attention(t, 2, False)[0], [half.float()], torch.ones(1, 2, 20, 8))
    assert found[0].dtype == torch.float16
    assert_near(found, exact, 3e-3)


def parameters_of_ffn(C, d, h, dense):
    shapes = [(C, 1, d), (C, 1, d), (C, d, h), (C, 1, h), (C, h, d), (C, 1, d)]
    found = [torch.randn(*shape) for shape in shapes]
    return [p[0, 0] if p.shape[1] == 1 else p[0].mT.contiguous() for p in found] if dense else found


def plain_ffn(x, gamma, beta, w1, b1, w2, b2, dense):
    normed = F.layer_norm(x, x.shape[-1:], eps=1e-6) * gamma + beta
    if dense:
        return x + F.linear(F.gelu(F.linear(normed, w1, b1)), w2, b2)
    return x + torch.baddbmm(b2, F.gelu(torch.baddbmm(b1, normed, w1)), w2)


@pytest.mark.parametrize(("C", "R", "d", "h", "dense"), [(3, 70, 20, 50, False), (1, 5, 64, 33, True)])
def test_ffn_half_of_slices_and_of_dense_layers(C, R, d, h, dense):
    x, grad, parameters = torch.randn(C, R, d), torch.randn(C, R, d), parameters_of_ffn(C, d, h, dense)
    y = gpu_ffn.forward(x, *parameters, dense, 1e-6)
    found = [y, *gpu_ffn.backward(grad, x, *parameters, dense, 1e-6)]
    wide = [t.double() for t in (x, *parameters)]
    assert_near(found, gradients(lambda *t: plain_ffn(*t, dense), wide, grad), 1e-5)


def test_ffn_half_sums_over_chunks_of_rows(monkeypatch):
    monkeypatch.setattr(gpu_ffn, "CHUNK", 64)
    x, grad, parameters = torch.randn(2, 130, 4), torch.randn(2, 130, 4), parameters_of_ffn(2, 4, 8, False)
    found = gpu_ffn.backward(grad, x, *parameters, False, 1e-6)
    expected = gradients(lambda *t: plain_ffn(*t, False), [t.double() for t in (x, *parameters)], grad)
    assert_near(found, expected[1:], 1e-5)
