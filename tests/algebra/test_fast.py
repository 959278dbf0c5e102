"""The fast algorithms against the matrices they stand for."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from slice_cases import close
from torch.autograd import gradcheck, gradgradcheck

from tcpvit.algebra import bases, fast
from tcpvit.algebra.fast import FAST
from tcpvit.algebra.transforms import FAST_FROM, FastTransform

FLOAT = torch.float64


@pytest.mark.parametrize("name", sorted(FAST))
@pytest.mark.parametrize("C", [64, 128, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fast_algorithm_and_matrix_agree(name, C, dtype):
    transform = FastTransform(name, C)
    x = torch.randn(6, C, dtype=dtype)
    hat, slack = transform.matrix.to(dtype) @ x.mT, 1e-5 if dtype == torch.float32 else 1e-12
    close(transform.fast(x), hat, slack)
    close(transform.fast_inverse(hat), x, slack)
    close(transform.fast(x.mT.contiguous().mT), hat, slack)  # the same numbers, the other order in memory
    close(transform.fast_inverse(hat.mT.contiguous().mT), x, slack)


@settings(max_examples=60)
@given(C=st.integers(1, 70), n=st.integers(1, 3))
def test_fast_cosine_and_sine_take_every_length(C, n):
    x = torch.randn(n, C, dtype=FLOAT)
    for name in ("dct", "dst"):
        forward, inverse = FAST[name]
        close(forward(x), bases.MATRICES[name](C) @ x.mT)
        close(inverse(forward(x)), x)


@pytest.mark.parametrize("name", ["dct", "dst"])
@pytest.mark.parametrize("C", [128, 131])
def test_inverse_hands_the_fft_a_hermitian_spectrum(name, C, monkeypatch):
    """CUDA does not ignore an imaginary mean or Nyquist term at every length (pytorch/pytorch#154496)."""
    seen, irfft = [], torch.fft.irfft

    def spy(z, n):
        seen.append(z[:, [0, -1] if C % 2 == 0 else [0]].imag)
        return irfft(z, n=n)

    monkeypatch.setattr(torch.fft, "irfft", spy)
    FAST[name][1](torch.randn(C, 3, dtype=FLOAT))
    close(seen[0], torch.zeros_like(seen[0]), 1e-13)


@pytest.mark.parametrize("name", ["dct", "dst", "haar", "hadamard"])
def test_long_tubes_never_see_the_matrix(name, monkeypatch):
    monkeypatch.setattr(bases, "named_matrix", None)
    transform = FastTransform(name, 2**14)  # its matrix would fill two gigabytes
    x = torch.randn(2, 3, 2**14)
    close(transform.from_hat(transform.to_hat(x)), x, 1e-5)
    assert transform.is_orthogonal


@pytest.mark.parametrize("name", ["dct", "dst", "haar", "hadamard"])
def test_crossover_is_where_the_matrix_stops(name, monkeypatch):
    monkeypatch.setattr(bases, "named_matrix", None)
    FastTransform(name, FAST_FROM[name]).to_hat(torch.randn(2, FAST_FROM[name]))
    with pytest.raises(TypeError):
        FastTransform(name, FAST_FROM[name] // 2).to_hat(torch.randn(2, FAST_FROM[name] // 2))


@pytest.mark.parametrize("name", sorted(FAST))
@pytest.mark.parametrize("C", [4, 8])
def test_gradients_of_the_fast_algorithms(name, C):
    for function in FAST[name]:
        x = torch.randn(C, C, dtype=FLOAT, requires_grad=True)
        assert gradcheck(function, x)
        assert gradgradcheck(function, x)


@pytest.mark.parametrize("C", [5, 9])
def test_gradients_of_the_fast_algorithms_of_odd_length(C):
    for name in ("dct", "dst"):
        for function in FAST[name]:
            assert gradcheck(function, torch.randn(C, C, dtype=FLOAT, requires_grad=True))


@pytest.mark.parametrize("name", ["dct", "dst"])
@pytest.mark.parametrize(("n", "C"), [(50, 130), (7, 129), (1, 300)])
def test_pieces_make_the_whole(name, n, C, monkeypatch):
    forward, inverse = FAST[name]
    x = torch.randn(n, C, dtype=FLOAT, requires_grad=True)
    hat = forward(x)
    (whole,) = torch.autograd.grad(hat.pow(3).sum(), x)
    monkeypatch.setattr(fast, "PIECE", 3 * C if n < 50 else C // 2)  # several tubes at a time, or the least: one
    close(forward(x).detach(), hat.detach())
    close(inverse(hat).detach(), x.detach())
    (pieced,) = torch.autograd.grad(forward(x).pow(3).sum(), x)
    close(pieced, whole)
