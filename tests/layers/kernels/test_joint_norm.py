"""The kernel of the joint norm against torch's LayerNorm over all slices of a token."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from tcpvit.layers.kernels.build import is_built
from tcpvit.layers.kernels.ops import can_use_joint_norm, joint_layer_norm
from tcpvit.timing import using_threads

pytestmark = pytest.mark.skipif(not is_built("joint_norm"), reason="no compiler here: the kernel is not built")


def slow(x, weight, bias, eps):
    C, _, d = x.shape
    flat = F.layer_norm(x.transpose(0, 1).flatten(1), (C * d,), eps=eps)  # (R, C·d)
    return flat.unflatten(1, (C, d)).transpose(0, 1) * weight + bias


def fast(x, weight, bias, eps):
    return joint_layer_norm(x, weight, bias, eps)[0]


def values_and_gradients(norm, inputs, grad):
    inputs = [t.clone().requires_grad_() for t in inputs]
    y = norm(*inputs, 1e-6)
    y.backward(grad)
    return [y.detach(), *(t.grad for t in inputs)]


def random(C, R, d, own, dtype=torch.float64):
    x = 3 + 2 * torch.randn(C, R, d, dtype=torch.float64)
    weight, bias = torch.randn(2, own, 1, d, dtype=torch.float64)
    return [t.to(dtype) for t in (x, weight, bias)], torch.randn(C, R, d, dtype=torch.float64).to(dtype)


@given(
    st.integers(1, 5), st.sampled_from([1, 2, 31, 32, 33, 100]), st.integers(1, 20), st.booleans(), st.integers(1, 2)
)
def test_equals_layer_norm_of_whole_tokens(C, R, d, shared, threads):
    inputs, grad = random(C, R, d + (C == 1), 1 if shared else C)
    with using_threads(threads):
        found = values_and_gradients(fast, inputs, grad)
    for ours, theirs in zip(found, values_and_gradients(slow, inputs, grad), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
@pytest.mark.parametrize("own", [1, 32])
def test_low_precision(own, dtype, tolerance):
    inputs, grad = random(32, 70, 8, own, dtype)
    exact = values_and_gradients(slow, [t.double() for t in inputs], grad.double())
    for ours, theirs in zip(values_and_gradients(fast, inputs, grad), exact, strict=True):
        assert ours.dtype == dtype
        assert (ours.double() - theirs).abs().max() < tolerance * theirs.abs().max()


@pytest.mark.parametrize("own", [1, 3])
def test_gradcheck_and_the_manners_of_an_operator(own):
    (x, weight, bias), _ = random(3, 4, 5, own)
    inputs = [t.requires_grad_() for t in (x, weight, bias)]
    assert torch.autograd.gradcheck(lambda *t: fast(*t, 1e-6), inputs)
    torch.library.opcheck(torch.ops.tcpvit.joint_layer_norm.default, (*inputs, 1e-6))


def test_nan_stays_in_its_token():
    x, one, zero = torch.randn(2, 3, 4), torch.ones(1, 1, 4), torch.zeros(1, 1, 4)
    x[0, 1, 2] = float("nan")
    y = fast(x, one, zero, 1e-6)
    assert y[:, 1].isnan().all()
    assert not y[:, [0, 2]].isnan().any()


def test_which_tensors_are_taken():
    weight = torch.ones(3, 1, 8)
    assert can_use_joint_norm(torch.zeros(3, 5, 8), weight)
    assert not can_use_joint_norm(torch.zeros(3, 5, 8).bfloat16(), weight)
    assert not can_use_joint_norm(torch.zeros(3, 5, 8, device="meta"), weight.to("meta"))
