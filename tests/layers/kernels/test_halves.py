"""The halves of a block as operators, against the same half layer by layer, by value and by gradient."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from tcpvit.layers.attention import softmax_maps, split_heads
from tcpvit.layers.kernels.build import is_built
from tcpvit.layers.kernels.halves import (
    LANES,
    MAX_HEAD_WIDTH,
    TILE,
    attention_half,
    bundle_of,
    dealt_queries,
    dealt_tokens,
    ffn_half,
    tile_of,
)
from tcpvit.timing import using_threads

built = is_built("ffn_half") and is_built("attention_half")
pytestmark = pytest.mark.skipif(not built, reason="no compiler here: the kernels are not built")
EPS = 1e-6
THREADS = 1, 2, 3, 4, 7, 16  # some have no work


def norm(x, gamma, beta):
    return torch.addcmul(beta, F.layer_norm(x.flatten(1, -2), x.shape[-1:], eps=EPS), gamma)  # (C, R, d)


def slow_ffn(x, gamma, beta, w1, b1, w2, b2):
    return x + torch.baddbmm(b2, F.gelu(torch.baddbmm(b1, norm(x, gamma, beta), w1)), w2)


def fast_ffn(*tensors):
    return ffn_half(*tensors, False, EPS)


def slow_attention(heads, joint):
    def half(x, gamma, beta, wqkv, bqkv, wproj, bproj):
        qkv = torch.baddbmm(bqkv, norm(x, gamma, beta), wqkv).view(*x.shape[:3], -1)
        q, k, v = split_heads(qkv, heads, joint=joint)
        o = softmax_maps(q, k) @ v
        o = (
            o.unflatten(-1, (len(x), -1)).permute(3, 0, 2, 1, 4)
            if joint
            else o.unflatten(0, (len(x), -1)).transpose(2, 3)
        )
        return x + torch.baddbmm(bproj, o.flatten(-2).flatten(1, 2), wproj).view(x.shape)

    return half


def fast_attention(heads, joint):
    return lambda *tensors: attention_half(*tensors, heads, joint, False, EPS, True)[0]


def parameters(C, d, between, end):
    """γ, β, and two maps d -> between -> d, the second of which reads `end` numbers."""
    shapes = (C, 1, d), (C, 1, d), (C, d, between), (C, 1, between), (C, end, d), (C, 1, d)
    drawn = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    drawn[0] = 1 + 0.3 * drawn[0]
    drawn[2], drawn[4] = drawn[2] / d**0.5, drawn[4] / end**0.5
    return drawn


def values_and_gradients(half, tensors, grad):
    tensors = [t.clone().requires_grad_() for t in tensors]
    y = half(*tensors)
    return [y.detach(), *torch.autograd.grad(y, tensors, grad)]


def assert_equal(fast, slow, tensors, threads=1, tolerance=1e-10):
    grad = torch.randn_like(tensors[0])
    with using_threads(threads):
        found = values_and_gradients(fast, tensors, grad)
    for ours, theirs in zip(found, values_and_gradients(slow, tensors, grad), strict=True):
        torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance)


@given(
    st.integers(1, 4), st.sampled_from([0, 1, 15, 16, 63, 64, 65, 150]), st.integers(1, 20), st.sampled_from(THREADS)
)
def test_ffn_equals_layer_by_layer(C, R, d, threads):
    tensors = [torch.randn(C, R, d, dtype=torch.float64), *parameters(C, d, 2 * d + 1, 2 * d + 1)]
    assert_equal(fast_ffn, slow_ffn, tensors, threads)


@given(st.tuples(*(st.integers(1, n) for n in (4, 6, 40, 3, 6))), st.booleans(), st.sampled_from(THREADS))
def test_attention_equals_layer_by_layer(size, joint, threads):
    C, B, N, heads, per_head = size
    d = heads * per_head
    tensors = [torch.randn(C, B, N, d, dtype=torch.float64), *parameters(C, d, 3 * d, d)]
    assert_equal(fast_attention(heads, joint), slow_attention(heads, joint), tensors, threads)


def cases():
    for C, d, heads, N in (
        (3, 16, 4, 65),
        (2, 25, 5, 10),
        (1, 48, 4, 65),
        (2, 64, 4, 33),
        (1, 64, 1, 17),
        (2, 3, 1, 5),
        (32, 8, 1, 10),  # a joint head of 256 numbers, as in tcp_scene
        (5, 20, 1, 33),
        (40, 25, 1, 10),  # of 1,000
        (2, 96, 3, 20),
        (1, 160, 5, 37),
    ):
        x = torch.randn(C, 5, N, d, dtype=torch.float64)
        yield f"ffn {d}", fast_ffn, slow_ffn, [x.flatten(1, 2), *parameters(C, d, 4 * d, 4 * d)]
        for joint in (False, True):
            if C * d // heads <= MAX_HEAD_WIDTH or not joint:
                fast, slow = fast_attention(heads, joint), slow_attention(heads, joint)
                yield f"attention {d} {'joint' * joint}", fast, slow, [x, *parameters(C, d, 3 * d, d)]


@pytest.mark.parametrize(("dtype", "worse"), [(torch.float32, 2.5), (torch.bfloat16, 1)])
def test_low_precision_is_as_exact_as_layer_by_layer(dtype, worse):
    for name, fast, slow, exact in cases():
        tensors = [t.to(dtype) for t in exact]
        grad = torch.randn_like(tensors[0])
        truth = values_and_gradients(slow, [t.double() for t in tensors], grad.double())
        ours, theirs = (values_and_gradients(half, tensors, grad) for half in (fast, slow))
        for mine, other, true in zip(ours, theirs, truth, strict=True):
            assert mine.dtype == dtype
            scale = true.abs().max() * torch.finfo(dtype).eps
            assert (mine - true).abs().max() < worse * (other - true).abs().max() + 16 * scale, name


def test_gradcheck_and_the_manners_of_operators():
    x = torch.randn(2, 2, 3, 4, dtype=torch.float64)
    ffn = [t.requires_grad_() for t in (x.flatten(1, 2), *parameters(2, 4, 5, 5))]
    assert torch.autograd.gradcheck(fast_ffn, ffn)
    torch.library.opcheck(torch.ops.tcpvit.ffn_half.default, (*ffn, False, EPS))
    filters = [torch.randn(10, 1, 3, 3, dtype=torch.float64), torch.randn(10, dtype=torch.float64)]
    options = (*ffn, False, EPS, *(t.requires_grad_() for t in filters), 3, 2, True, True)
    assert torch.autograd.gradcheck(ffn_half, options)
    torch.library.opcheck(torch.ops.tcpvit.ffn_half.default, options)
    attention = [t.requires_grad_() for t in (x.clone(), *parameters(2, 4, 12, 4))]
    for joint in (False, True):
        assert torch.autograd.gradcheck(fast_attention(2, joint), attention)
        torch.library.opcheck(torch.ops.tcpvit.attention_half.default, (*attention, 2, joint, False, EPS, True))
    x = torch.randn(2, 2, 8, 4, dtype=torch.float64, requires_grad=True)
    options = (2, True, False, EPS, True, True, True, 2, 4)
    assert torch.autograd.gradcheck(lambda *t: attention_half(*t, *options)[0], (x, *attention[1:]))
    torch.library.opcheck(torch.ops.tcpvit.attention_half.default, (x, *attention[1:], *options))


def test_weights_as_those_of_a_dense_layer():
    x = torch.randn(1, 3, 7, 6, dtype=torch.float64)
    gamma, beta, w1, b1, w2, b2 = parameters(1, 6, 10, 10)

    def dense_ffn(x, gamma, beta, w1, b1, w2, b2):
        return ffn_half(x, gamma[0, 0], beta[0, 0], w1[0].T, b1[0, 0], w2[0].T, b2[0, 0], True, EPS)

    assert_equal(dense_ffn, slow_ffn, [x.flatten(1, 2), gamma, beta, w1, b1, w2, b2])

    def dense_attention(x, gamma, beta, wqkv, bqkv, wproj, bproj):
        flat = gamma[0, 0], beta[0, 0], wqkv[0].T, bqkv[0, 0], wproj[0].T, bproj[0, 0]
        return attention_half(x, *flat, 2, False, True, EPS, True)[0]

    assert_equal(dense_attention, slow_attention(2, False), [x, *parameters(1, 6, 18, 6)])


@pytest.mark.parametrize("size", [30.0, 1e4])
def test_large_scores(size):
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 2e-3)):
        x = torch.randn(2, 2, 33, 8, dtype=torch.float64)
        gamma, beta, wqkv, *rest = parameters(2, 8, 24, 8)
        tensors = [t.to(dtype) for t in (x, gamma, beta, size * wqkv, *rest)]
        exact = slow_attention(2, False)(*(t.double() for t in tensors))
        found = fast_attention(2, False)(*tensors)
        assert found.isfinite().all()
        if size < 100:  # beyond, softmax is a choice that roundings decide
            torch.testing.assert_close(found.double(), exact, atol=tolerance, rtol=tolerance)


def test_gelu_over_its_whole_range():
    h = torch.cat([torch.linspace(-9, 9, 4001), torch.tensor([-1e30, -100.0, 100.0, 1e30])])
    one, zero = torch.ones(1, 1, 1), torch.zeros(1, 1, 1)  # a norm of width 1 gives β, so that fc1 gives its bias
    w1, b1, w2 = torch.zeros(1, 1, len(h)), h.view(1, 1, -1), torch.ones(1, len(h), 1)
    for i in (0, 1000, 2000, 2100, 3000, 4000, 4001, 4002, 4003, 4004):
        pick = torch.zeros_like(w2)
        pick[0, i] = 1
        found = ffn_half(torch.zeros(1, 1, 1), one, zero, w1, b1.clamp(-1e4, 1e4), pick, zero, False, EPS)
        exact = F.gelu(h[i].double().clamp(-1e4, 1e4))
        assert abs(found.item() - exact) < 1e-6 * max(1, abs(exact)), h[i]
    x, w2 = torch.full((1, 1, 1), float("nan")), w2 / len(h)
    assert ffn_half(x, one, zero, w1, b1, w2, zero, False, EPS).isnan().all()


def test_nan_stays_in_its_image():
    x = torch.randn(1, 3, 65, 8)
    x[0, 1, 7, 3] = float("nan")
    tensors = [t.float() for t in parameters(1, 8, 24, 8)]
    y = attention_half(x, *tensors, 2, False, False, EPS, False)[0]
    assert y[0, 1].isnan().all()
    assert not y[0, [0, 2]].isnan().any()


@pytest.mark.parametrize("threads", [2, 4, 8, 16])
@pytest.mark.parametrize("slices", [1, 3, 16, 200])
def test_work_is_shared_out_evenly(threads, slices):
    for images, tokens in ((1, 65), (8, 65), (64, 65), (8, 257), (64, 10)):
        rows = images * tokens
        dealt = dealt_tokens(slices, rows, tile_of(slices, rows, threads), threads)
        assert sum(dealt) >= slices * rows
        enough = slices * rows >= 4 * threads * TILE
        assert max(dealt) <= (1.15 if enough else 1) * sum(dealt) / threads + (0 if enough else 2 * LANES)
        queries = dealt_queries(slices, images, tokens, *bundle_of(slices, images, tokens, 16, threads, True), threads)
        if slices * images >= 4 * threads:
            assert max(queries) <= 1.3 * sum(queries) / threads
        whole = -(-slices * images // threads) * (tokens + tokens / 3)  # if no image were cut
        assert max(queries) <= (whole if slices * images < threads else 1.2 * whole)
        if (threads, slices) == (2, 3):
            assert min(queries) > 0.6 * max(queries)  # nobody is idle


def test_backward_needs_what_forward_keeps():
    x, *tensors = (t.requires_grad_() for t in (torch.randn(1, 1, 5, 4).double(), *parameters(1, 4, 12, 4)))
    with pytest.raises(ValueError, match="keep=True"):
        attention_half(x, *tensors, 2, False, False, EPS, False)
