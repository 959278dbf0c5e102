"""The kernel of t-LayerNorm against torch's LayerNorm of each slice."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from tcpvit.layers.kernels.build import is_built
from tcpvit.layers.kernels.ops import MAX_NORM_WIDTH, can_use_layer_norm, slice_layer_norm
from tcpvit.timing import using_threads

pytestmark = pytest.mark.skipif(not is_built("layer_norm"), reason="no compiler here: the kernel is not built")


def slow(x, weight, bias, eps):
    pairs = zip(x, weight.squeeze(1), bias.squeeze(1), strict=True)
    return torch.stack([F.layer_norm(x_k, x_k.shape[-1:], w, b, eps) for x_k, w, b in pairs])


def fast(x, weight, bias, eps):
    return slice_layer_norm(x, weight, bias, eps)[0]


def values_and_gradients(norm, inputs, grad):
    inputs = [t.clone().requires_grad_() for t in inputs]
    y = norm(*inputs, 1e-6)
    y.backward(grad)
    return [y.detach(), *(t.grad for t in inputs)]


def random(C, R, d, dtype=torch.float64):
    x = 3 + 2 * torch.randn(C, R, d, dtype=torch.float64)
    weight, bias = torch.randn(2, C, 1, d, dtype=torch.float64)
    return [t.to(dtype) for t in (x, weight, bias)], torch.randn(C, R, d, dtype=torch.float64).to(dtype)


@given(st.integers(1, 4), st.sampled_from([1, 2, 5, 255, 256, 257, 600]), st.integers(2, 40), st.integers(1, 2))
def test_equals_layer_norm_of_each_slice(C, R, d, threads):
    inputs, grad = random(C, R, d)
    with using_threads(threads):
        found = values_and_gradients(fast, inputs, grad)
    for ours, theirs in zip(found, values_and_gradients(slow, inputs, grad), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
@pytest.mark.parametrize("d", [4, 15, 16, 17, 25, 64])
def test_low_precision(d, dtype, tolerance):
    inputs, grad = random(3, 70, d, dtype)
    exact = values_and_gradients(slow, [t.double() for t in inputs], grad.double())
    for ours, theirs in zip(values_and_gradients(fast, inputs, grad), exact, strict=True):
        assert ours.dtype == dtype
        assert (ours.double() - theirs).abs().max() < tolerance * theirs.abs().max()


def test_gradcheck_and_the_manners_of_an_operator():
    (x, weight, bias), _ = random(2, 3, 5)
    inputs = [t.requires_grad_() for t in (x, weight, bias)]
    assert torch.autograd.gradcheck(lambda *t: fast(*t, 1e-6), inputs)
    torch.library.opcheck(torch.ops.tcpvit.slice_layer_norm.default, (*inputs, 1e-6))


def test_a_constant_row_gives_the_shift_and_nan_stays_nan():
    x, one, zero = torch.ones(1, 2, 16), torch.ones(1, 1, 16), torch.zeros(1, 1, 16)
    torch.testing.assert_close(fast(x, one, zero + 5, 1e-6), zero.expand(1, 2, 16) + 5)
    x[0, 0, 3] = float("nan")
    assert fast(x, one, zero, 1e-6)[0, 0].isnan().all()
    assert not fast(x, one, zero, 1e-6)[0, 1].isnan().any()


def test_which_tensors_are_taken():
    weight = torch.ones(3, 1, MAX_NORM_WIDTH)
    assert can_use_layer_norm(torch.zeros(3, 5, MAX_NORM_WIDTH), weight)
    assert not can_use_layer_norm(torch.zeros(3, 5, MAX_NORM_WIDTH + 1), torch.ones(3, 1, MAX_NORM_WIDTH + 1))
    assert not can_use_layer_norm(torch.zeros(3, 5, MAX_NORM_WIDTH).bfloat16(), weight)
    assert not can_use_layer_norm(torch.zeros(3, 5, MAX_NORM_WIDTH, device="meta"), weight.to("meta"))
