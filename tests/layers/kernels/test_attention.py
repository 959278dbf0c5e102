"""The attention kernel against torch's attention, by value and by gradient, in every precision and shape it takes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from tcpvit.layers.attention import softmax_maps, split_heads
from tcpvit.layers.kernels.build import is_built
from tcpvit.layers.kernels.ops import MAX_HEAD_WIDTH, can_use_attention, packed_attention
from tcpvit.timing import using_threads

pytestmark = pytest.mark.skipif(not is_built("attention"), reason="no compiler here: the kernel is not built")


def slow(qkv, heads, joint):
    """Scores, softmax and product written out."""
    q, k, v = split_heads(qkv, heads, joint=joint)
    o = softmax_maps(q, k) @ v
    if joint:
        return o.unflatten(-1, (len(qkv), -1)).permute(3, 0, 2, 1, 4).flatten(-2)
    return o.unflatten(0, (len(qkv), -1)).transpose(2, 3).flatten(-2)


def values_and_gradients(attention, qkv, heads, joint, grad):
    qkv = qkv.clone().requires_grad_()
    out = attention(qkv, heads, joint)
    out.backward(grad)
    return out.detach(), qkv.grad


def fast(qkv, heads, joint):
    return packed_attention(qkv, heads, joint)[0]


sizes = st.tuples(*(st.integers(1, n) for n in (4, 3, 40, 3, 12)))


@given(sizes, st.booleans(), st.integers(1, 2))
def test_equals_the_slow_way(size, joint, threads):
    C, B, N, H, D = size
    qkv = torch.randn(C, B, N, 3 * H * D, dtype=torch.float64)
    grad = torch.randn(C, B, N, H * D, dtype=torch.float64)
    with using_threads(threads):
        found = values_and_gradients(fast, qkv, H, joint, grad)
    for ours, theirs in zip(found, values_and_gradients(slow, qkv, H, joint, grad), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("D", [*range(1, 34), 48, 64])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 3e-6), (torch.bfloat16, 3e-2)])
def test_every_head_size_in_low_precision(D, dtype, tolerance):
    qkv, grad = torch.randn(2, 2, 65, 3 * 2 * D).to(dtype), torch.randn(2, 2, 65, 2 * D).to(dtype)
    exact = values_and_gradients(slow, qkv.double(), 2, False, grad.double())
    for ours, theirs in zip(values_and_gradients(fast, qkv, 2, False, grad), exact, strict=True):
        assert ours.dtype == dtype
        assert (ours.double() - theirs).abs().max() < tolerance * theirs.abs().max().clamp_min(1)


@pytest.mark.parametrize("N", [1, 10, 16, 17, 130])
@pytest.mark.parametrize("D", [1, 4, 5, 16])
def test_joint_heads_in_pieces_and_any_number_of_tokens(N, D):
    qkv, grad = torch.randn(3, 2, N, 3 * 2 * D), torch.randn(3, 2, N, 2 * D)
    exact = values_and_gradients(slow, qkv.double(), 2, True, grad.double())
    for ours, theirs in zip(values_and_gradients(fast, qkv, 2, True, grad), exact, strict=True):
        assert (ours.double() - theirs).abs().max() < 3e-6 * theirs.abs().max().clamp_min(1)


@pytest.mark.parametrize("joint", [False, True])
def test_gradcheck_and_the_manners_of_an_operator(joint):
    qkv = torch.randn(2, 1, 5, 3 * 2 * 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: fast(x, 2, joint), (qkv,))
    torch.library.opcheck(torch.ops.tcpvit.packed_attention.default, (qkv, 2, joint))


def test_large_scores_do_not_overflow():
    qkv = 100 * torch.randn(1, 1, 9, 3 * 4)
    torch.testing.assert_close(fast(qkv, 1, False), slow(qkv.double(), 1, False).float(), atol=1e-3, rtol=1e-4)
    assert torch.isfinite(values_and_gradients(fast, qkv, 1, False, torch.ones(1, 1, 9, 4))[1]).all()


def test_nan_stays_nan():
    qkv = torch.randn(1, 1, 5, 12)
    qkv[..., 0] = float("nan")
    assert fast(qkv, 1, False).isnan().all()


def test_layouts_that_are_not_contiguous():
    qkv = torch.randn(2, 5, 3, 3 * 8).transpose(1, 2)
    torch.testing.assert_close(fast(qkv, 2, False), slow(qkv, 2, False))


def test_flops_are_those_of_the_two_products():
    qkv = torch.randn(2, 3, 5, 3 * 8)
    with FlopCounterMode(display=False) as ours:
        fast(qkv, 2, False)
    with FlopCounterMode(display=False) as theirs:
        slow(qkv, 2, False)
    assert ours.get_total_flops() == theirs.get_total_flops() > 0


def test_wide_heads_and_other_devices_are_left_to_torch():
    assert can_use_attention(torch.zeros(3, 1, 5, 3 * MAX_HEAD_WIDTH), 1, joint=False)
    assert not can_use_attention(torch.zeros(3, 1, 5, 3 * (MAX_HEAD_WIDTH + 1)), 1, joint=False)
    assert not can_use_attention(torch.zeros(3, 1, 5, 3 * MAX_HEAD_WIDTH), 1, joint=True)
    assert not can_use_attention(torch.zeros(3, 1, 5, 12, dtype=torch.float16), 1, joint=False)
    assert not can_use_attention(torch.zeros(3, 1, 5, 12, device="meta"), 1, joint=False)
