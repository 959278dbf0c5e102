"""t-Linear and its drop-in, against the reference and against nn.Linear."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tcpvit.algebra import block_matrix, cprod, get_transform
from tcpvit.layers import TLinear, TubalLinear, linear, reference
from tcpvit.timing import using_threads

TRANSFORMS = ["dct", "haar", "identity", "cosine_kka", "random_orthogonal"]
ORTHOGONAL = [name for name in TRANSFORMS if name != "cosine_kka"]
F64 = torch.float64


@given(st.sampled_from(TRANSFORMS), st.integers(1, 5), st.integers(1, 6), st.integers(1, 6), st.booleans())
def test_t_linear_is_the_c_product(name, tube, d_in, d_out, bias):
    layer = TLinear(d_in, d_out, tube, name, bias=bias).double()
    x = torch.randn(2, 7, d_in, tube, dtype=F64)
    y = layer.transform.from_hat_tokens(layer(layer.transform.to_hat_tokens(x)))
    torch.testing.assert_close(y, cprod(x, layer.weight, name))  # the bias is zero at the start
    torch.testing.assert_close(y, reference.linear(layer, x))


def test_the_bias_is_one_vector_per_slice():
    layer = TLinear(4, 6, tube=3)
    assert layer.bias_hat.numel() == 18
    nn.init.normal_(layer.bias_hat)
    x_hat = torch.randn(3, 2, 4)
    torch.testing.assert_close(layer(x_hat)[1], x_hat[1] @ layer.weight_hat[1] + layer.bias_hat[1])


def test_parameters_are_one_over_c_of_the_dense_layer():
    assert TubalLinear(48, 96, tube=3, bias=False).weight_hat.numel() * 3 == nn.Linear(48, 96).weight.numel()


@given(st.sampled_from(TRANSFORMS), st.integers(1, 5), st.integers(1, 5), st.integers(1, 5))
def test_drop_in_equals_its_dense_layer(name, tube, d_in, d_out):
    layer = TubalLinear(d_in * tube, d_out * tube, tube, name).double()
    nn.init.normal_(layer.bias)
    x = torch.randn(3, 4, d_in * tube, dtype=F64)
    torch.testing.assert_close(layer(x), layer.to_dense()(x))
    torch.testing.assert_close(layer(x), torch.nn.functional.linear(x, layer.weight, layer.bias))


def test_drop_in_and_encoder_layer_compute_the_same():
    inside, outside = TLinear(4, 6, 3).double(), TubalLinear(12, 18, 3).double()
    with torch.no_grad():
        outside.weight_hat.copy_(inside.weight_hat)
    x = torch.randn(2, 5, 4, 3, dtype=F64)
    expected = inside.transform.from_hat_tokens(inside(inside.transform.to_hat_tokens(x)))
    torch.testing.assert_close(outside(x.flatten(-2)), expected.flatten(-2))


def test_dense_weight_is_the_block_matrix_of_the_algebra():
    """Row vectors here, columns there: x ⋆ W = (Wᵀ ⋆ xᵀ)ᵀ."""
    layer = TubalLinear(12, 18, 3).double()
    W = layer.transform.from_hat_tokens(layer.weight_hat)  # (d_in, d_out, C)
    torch.testing.assert_close(layer.weight, block_matrix(W.transpose(0, 1)))


def test_dense_weight_carries_gradients():
    layer = TubalLinear(6, 6, 3).double()
    x = torch.randn(5, 6, dtype=F64)
    layer(x).square().sum().backward()
    direct = layer.weight_hat.grad.clone()
    layer.weight_hat.grad = None
    torch.nn.functional.linear(x, layer.weight, layer.bias).square().sum().backward()
    torch.testing.assert_close(layer.weight_hat.grad, direct)


@pytest.mark.parametrize("name", ORTHOGONAL)
def test_from_dense_inverts_to_dense(name):
    layer = TubalLinear(12, 18, 3, name).double()
    back, error = TubalLinear.from_dense(layer.to_dense(), 3, name)
    assert error < 1e-12
    torch.testing.assert_close(back.weight_hat, layer.weight_hat)


@given(st.sampled_from(ORTHOGONAL), st.integers(2, 4))
def test_from_dense_is_the_frobenius_nearest(name, tube):
    """The error is orthogonal to every c-product layer, and no neighbour is nearer."""
    linear = nn.Linear(3 * tube, 2 * tube).double()
    layer, error = TubalLinear.from_dense(linear, tube, name)
    rest = (linear.weight - layer.weight).detach()
    other = TubalLinear(3 * tube, 2 * tube, tube, name).double()
    assert abs((rest * other.weight).sum().item()) < 1e-10
    assert error == pytest.approx((rest.norm() / linear.weight.norm()).item())
    with torch.no_grad():
        layer.weight_hat.add_(0.01 * torch.randn_like(layer.weight_hat))
    assert (linear.weight - layer.weight).norm() > rest.norm()


def test_from_dense_keeps_the_diagonal_blocks_of_the_hat_basis():
    linear, phi = nn.Linear(6, 9).double(), get_transform("dct", 3).matrix
    layer, _ = TubalLinear.from_dense(linear, 3)
    hat = torch.einsum("kp,opiq,lq->oikl", phi, linear.weight.view(3, 3, 2, 3), phi)
    torch.testing.assert_close(layer.weight_hat, hat.diagonal(dim1=2, dim2=3).permute(2, 1, 0))


def test_from_dense_of_zero_weights_has_error_zero():
    linear = nn.Linear(6, 6)
    nn.init.zeros_(linear.weight)
    assert TubalLinear.from_dense(linear, 3)[1] == 0


def test_errors():
    with pytest.raises(ValueError, match="at least one entry, got length 0"):
        TubalLinear(48, 96, 0)
    with pytest.raises(ValueError, match="in_features=10 is no multiple of the tube 3"):
        TubalLinear(10, 9, 3)
    with pytest.raises(ValueError, match="out_features=10"):
        TubalLinear(9, 10, 3)
    with pytest.raises(ValueError, match="orthogonal transforms only"):
        TubalLinear.from_dense(nn.Linear(6, 6), 3, "cosine_kka")


def test_initial_deviation_follows_the_slices_fan_in():
    weight = TLinear(400, 400, tube=3).weight_hat
    # a normal cut at two deviations has 0.88 of the deviation
    assert weight.std().item() == pytest.approx(0.88 / 20, rel=0.02)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [6, 7])  # seven rows cannot be halved
def test_threads_share_slices_evenly_and_change_nothing(monkeypatch, rows, bias):
    monkeypatch.setattr(linear, "MIN_WEIGHTS_TO_SPLIT", 0)
    layer = TLinear(4, 5, tube=3, bias=bias).double()
    x_hat = torch.randn(3, rows, 4, dtype=torch.float64, requires_grad=True)
    inputs = (x_hat, *layer.parameters())
    found = {}
    for threads in (1, 2):
        with using_threads(threads):
            y_hat = layer(x_hat)
            found[threads] = y_hat, *torch.autograd.grad(y_hat.square().sum(), inputs)
    torch.testing.assert_close(found[2], found[1])


@given(slices=st.integers(1, 64), threads=st.integers(1, 16))
def test_parts_give_every_thread_as_many(slices, threads):
    parts = linear.even_parts(slices, threads)
    assert 1 <= parts <= threads
    if parts > 1:
        assert slices * parts % threads == 0
