"""Drop-ins behave as the layers they replace, for those who call them and for those who read their weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tcpvit.tensorize.drop_ins import TubalMultiheadAttention, densified, tensorized

SAME = {"atol": 1e-6, "rtol": 1e-5}


def pair_of(layer, tube=3, init="project"):
    """A drop-in, and the dense layer that computes the same."""
    drop_in, _ = tensorized(layer, tube, "dct", init)
    drop_in.train(layer.training)
    return drop_in, densified(drop_in).train(layer.training)


@pytest.mark.parametrize(("kernel", "stride"), [(1, 1), (1, 2), (4, 4), ((2, 3), (2, 3))])
@pytest.mark.parametrize("size", [(12, 12), (13, 14)])
@pytest.mark.parametrize("bias", [True, False])
def test_convolutions(kernel, stride, size, bias):
    conv = nn.Conv2d(6, 9, kernel, stride, bias=bias)
    drop_in, dense = pair_of(conv)
    x = torch.randn(2, 6, *size)
    torch.testing.assert_close(drop_in(x), dense(x), **SAME)
    torch.testing.assert_close(drop_in(x[0]), dense(x[0]), **SAME)
    torch.testing.assert_close(drop_in(x), F.conv2d(x, drop_in.weight, drop_in.bias, stride), **SAME)
    assert (dense.in_channels, dense.out_channels, dense.stride) == (6, 9, conv.stride)


def test_the_tube_of_a_patch_runs_along_its_channels():
    """Filters whose channels are mixed by a matrix that the transform diagonalises are kept exactly."""
    from tcpvit.algebra import get_transform

    phi = get_transform("dct", 3).matrix.float()
    taps = torch.randn(4, 2, 2, 3)  # one eigenvalue of each slice for every (out, y, x)
    filters = torch.einsum("kp,oyxk,kq->opqyx", phi, taps, phi).reshape(12, 3, 2, 2)
    conv = nn.Conv2d(3, 12, 2, 2)
    conv.weight.data.copy_(filters)
    _, errors = tensorized(conv, 3, "dct", "project")
    assert errors[""] < 1e-6


def test_conv1d_of_transformers():
    from transformers.pytorch_utils import Conv1D

    conv = Conv1D(18, 12)
    drop_in, dense = pair_of(conv)
    x = torch.randn(2, 5, 12)
    torch.testing.assert_close(drop_in(x), dense(x), **SAME)
    assert isinstance(dense, Conv1D)
    assert drop_in.weight.shape == conv.weight.shape == dense.weight.shape
    assert (drop_in.nf, drop_in.nx) == (conv.nf, conv.nx)


ATTENTIONS = [
    {"batch_first": True},
    {"batch_first": False},
    {"batch_first": True, "kdim": 6, "vdim": 18},
    {"batch_first": False, "kdim": 6, "vdim": 18, "bias": False},
    {"batch_first": True, "bias": False},
    {"batch_first": True, "add_bias_kv": True},
    {"batch_first": True, "add_zero_attn": True},
]


def masks(kind, batch, heads, n, s):
    """Masks that let everybody look somewhere."""
    padding = torch.zeros(batch, s, dtype=torch.bool)
    padding[0, -2:] = True
    causal = torch.ones(n, s, dtype=torch.bool).triu(1)
    numbers = torch.randn(batch * heads, n, s)
    return {
        "none": {},
        "padding": {"key_padding_mask": padding},
        "causal": {"attn_mask": causal},
        "causal hint": {"attn_mask": causal, "is_causal": True},
        "numbers": {"attn_mask": numbers},
        "both": {"attn_mask": numbers, "key_padding_mask": padding},
    }[kind]


@pytest.mark.parametrize("options", ATTENTIONS, ids=str)
@pytest.mark.parametrize("mask", ["none", "padding", "causal", "causal hint", "numbers", "both"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.filterwarnings("ignore:Support for mismatched")
def test_attention(options, mask, training):
    drop_in, dense = pair_of(nn.MultiheadAttention(12, 4, **options).train(training))
    assert type(dense) is nn.MultiheadAttention
    batch, n, s = 2, 5, 5 if "kdim" not in options else 7
    query = torch.randn(batch, n, 12)
    key, value = (torch.randn(batch, s, width) for width in (options.get("kdim", 12), options.get("vdim", 12)))
    given = masks(mask, batch, 4, n, s)
    for inputs in [(query, key, value)] + ([(query, query, query)] if s == n else []):
        if not options["batch_first"]:
            inputs = [x.transpose(0, 1) for x in inputs]
        for grad in (True, False):
            with torch.set_grad_enabled(grad):
                for weights in ({}, {"need_weights": False}, {"average_attn_weights": False}):
                    ours, theirs = drop_in(*inputs, **given, **weights), dense(*inputs, **given, **weights)
                    torch.testing.assert_close(ours, theirs, **SAME)


def test_attention_of_a_single_sentence():
    drop_in, dense = pair_of(nn.MultiheadAttention(12, 4))
    x = torch.randn(5, 12)
    torch.testing.assert_close(drop_in(x, x, x), dense(x, x, x), **SAME)


def test_attention_drops_as_it_should():
    drop_in, _ = pair_of(nn.MultiheadAttention(12, 4, dropout=0.5))
    x = torch.randn(3, 2, 12)
    _, maps = drop_in(x, x, x, average_attn_weights=False)
    assert 0.2 < (maps == 0).float().mean() < 0.8
    drop_in.eval()
    assert (drop_in(x, x, x)[1] > 0).all()


@pytest.mark.parametrize("batch_first", [True, False])
def test_the_fast_path_of_torchs_encoder_layer_reads_dense_weights(batch_first):
    layer = nn.TransformerEncoderLayer(12, 4, 24, batch_first=batch_first)
    layer.self_attn, _ = tensorized(layer.self_attn, 3, "dct", "project")
    layer.eval()
    x = torch.randn(5, 2, 12)
    slow = layer(x)
    with torch.no_grad():
        torch.testing.assert_close(layer(x), slow, **SAME)


def test_gradients_reach_the_slices_through_weights_that_others_read():
    drop_in, _ = pair_of(nn.MultiheadAttention(12, 4, batch_first=True))
    x = torch.randn(2, 5, 12)
    drop_in(x, x, x)[0].square().sum().backward()
    ours = [p.grad.clone() for p in drop_in.parameters()]
    drop_in.zero_grad()
    nn.MultiheadAttention.forward(drop_in, x, x, x)[0].square().sum().backward()
    for found, parameter in zip(ours, drop_in.parameters(), strict=True):
        torch.testing.assert_close(found, parameter.grad, atol=1e-5, rtol=1e-4)


def test_attention_keeps_its_bias_parameters():
    layer = nn.MultiheadAttention(12, 4, add_bias_kv=True)
    drop_in, dense = pair_of(layer)
    assert isinstance(drop_in, TubalMultiheadAttention)
    for made in (drop_in, dense):
        assert made.in_proj_bias is layer.in_proj_bias
        assert made.bias_k is layer.bias_k
        assert made.out_proj.bias is layer.out_proj.bias


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtype_is_kept(dtype):
    drop_in, _ = tensorized(nn.Linear(6, 6).to(dtype), 3, "dct", "project")
    assert {t.dtype for t in [*drop_in.parameters(), *drop_in.buffers()]} == {dtype}
    assert densified(drop_in).weight.dtype == dtype


def test_fresh_weights_are_as_strong_as_the_models():
    linear = nn.Linear(600, 600)
    nn.init.normal_(linear.weight, std=0.02)
    drop_in, errors = tensorized(linear, 3, "dct", "fresh")
    x = torch.randn(100, 600)
    assert errors == {"": None}
    assert (drop_in(x) - drop_in.bias).std().item() == pytest.approx((linear(x) - linear.bias).std().item(), rel=0.03)
    nn.init.zeros_(linear.weight)
    drop_in, _ = tensorized(linear, 3, "dct", "fresh")
    assert (drop_in.weight_hat == 0).all()
