"""Gradients of a t-Linear (paper, Eqs. grad_w and grad_x) against autograd, and their norms in both domains."""

from __future__ import annotations

import pytest
import torch

from tcpvit import algebra
from tcpvit.layers import TLinear

ORTHOGONAL = ["dct", "dst", "haar", "hadamard", "identity", "random_orthogonal"]
N, D_IN, D_OUT, TUBE = 7, 5, 6, 4


@pytest.fixture
def gradients():
    """Autograd's gradients of a loss of Y = X ⋆ W, all of them spatial tensors."""

    def gradients(transform: str) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        layer = TLinear(D_IN, D_OUT, TUBE, transform, bias=False).double()
        X = torch.randn(N, D_IN, TUBE, dtype=torch.float64, requires_grad=True)
        Y = layer.transform.from_hat_tokens(layer(layer.transform.to_hat_tokens(X)))
        Y.retain_grad()
        Y.tanh().square().sum().backward()
        found = {"X": X.detach(), "W": layer.weight.detach(), "dX": X.grad, "dY": Y.grad, "Y": Y.detach()}
        # The layer keeps Ŵ. Autograd of the same loss by W itself, through the algebra:
        W = found["W"].clone().requires_grad_()
        algebra.cprod(found["X"], W, transform=transform).tanh().square().sum().backward()
        return {**found, "dW": W.grad, "dW_hat": layer.weight_hat.grad}

    return gradients


def gap(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("transform", ORTHOGONAL)
def test_gradients_are_c_products(gradients, transform):
    g = gradients(transform)
    product = lambda A, B: algebra.cprod(A, B, transform=transform)  # noqa: E731
    transpose = lambda A: algebra.transpose(A, transform=transform)  # noqa: E731
    assert gap(product(g["X"], g["W"]), g["Y"]) < 1e-13
    assert gap(product(transpose(g["X"]), g["dY"]), g["dW"]) < 1e-13  # Eq. grad_w
    assert gap(product(g["dY"], transpose(g["W"])), g["dX"]) < 1e-13  # Eq. grad_x


@pytest.mark.parametrize("transform", ORTHOGONAL)
def test_gradient_norms_are_equal_in_both_domains(gradients, transform):
    g = gradients(transform)
    assert float(g["dW_hat"].norm() / g["dW"].norm()) == pytest.approx(1, abs=1e-13)
    for name in ("dX", "dY"):
        hat = algebra.to_hat(g[name], transform=transform)
        assert float(hat.norm() / g[name].norm()) == pytest.approx(1, abs=1e-13)


def test_the_gradient_of_the_hat_weight_is_the_hat_of_the_gradient(gradients):
    g = gradients("dct")
    assert gap(g["dW_hat"].movedim(0, -1), algebra.to_hat(g["dW"])) < 1e-13


def test_a_transform_that_is_not_orthogonal_breaks_all_of_it(gradients):
    g, transform = gradients("cosine_kka"), "cosine_kka"
    assert gap(algebra.cprod(g["X"], g["W"], transform=transform), g["Y"]) < 1e-13
    grad_w = algebra.cprod(algebra.transpose(g["X"], transform=transform), g["dY"], transform=transform)
    grad_x = algebra.cprod(g["dY"], algebra.transpose(g["W"], transform=transform), transform=transform)
    assert gap(grad_w, g["dW"]) > 0.05
    assert gap(grad_x, g["dX"]) > 0.05
    assert abs(float(g["dW_hat"].norm() / g["dW"].norm()) - 1) > 0.05
