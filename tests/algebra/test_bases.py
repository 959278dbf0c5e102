"""The values of every named transform, by matrix and by fast algorithm, against SciPy and PyWavelets."""

from __future__ import annotations

import sys
import warnings

import numpy as np
import pytest
import pywt
import scipy.fft
import scipy.linalg
import torch
from slice_cases import close

from tcpvit.algebra import MatrixTransform, bases, get_transform, random_orthogonal

FLOAT = torch.float64
LENGTHS = [1, 2, 3, 4, 5, 8, 9, 16, 127, 128, 129, 200, 256]  # short ones, and both sides of every crossover
POWERS = [1, 2, 4, 8, 16, 64, 128, 256, 1024]


def tubes(C: int) -> torch.Tensor:
    return torch.randn(4, 5, C, dtype=FLOAT)


@pytest.mark.parametrize("C", LENGTHS)
def test_dct_is_scipys_orthonormal_one(C):
    x = tubes(C)
    close(get_transform("dct", C).to_hat(x), torch.from_numpy(scipy.fft.dct(x.numpy(), norm="ortho")))
    close(get_transform("dct", C).from_hat(x), torch.from_numpy(scipy.fft.idct(x.numpy(), norm="ortho")))


@pytest.mark.parametrize("C", LENGTHS)
def test_dst_is_scipys_orthonormal_one(C):
    x = tubes(C)
    close(get_transform("dst", C).to_hat(x), torch.from_numpy(scipy.fft.dst(x.numpy(), norm="ortho")))
    close(get_transform("dst", C).from_hat(x), torch.from_numpy(scipy.fft.idst(x.numpy(), norm="ortho")))


@pytest.mark.parametrize("C", LENGTHS)
def test_dft_is_scipys_unnormalised_one(C):
    x = tubes(C)
    close(get_transform("dft", C).to_hat(x), torch.from_numpy(scipy.fft.fft(x.numpy())))
    close(get_transform("dft", C).from_hat(torch.from_numpy(scipy.fft.fft(x.numpy()))), x)
    close(get_transform("dft", C).matrix, torch.from_numpy(scipy.linalg.dft(C)))


@pytest.mark.parametrize("C", POWERS)
def test_hadamard_is_scipys_matrix(C):
    x, H = tubes(C), torch.from_numpy(scipy.linalg.hadamard(C)).double() / C**0.5
    close(get_transform("hadamard", C).to_hat(x), x @ H.mT)
    close(get_transform("hadamard", C).from_hat(x), x @ H)


@pytest.mark.parametrize("C", POWERS)
def test_haar_of_a_power_of_two_is_that_of_pywavelets(C):
    x = tubes(C)
    expected = np.concatenate(pywt.wavedec(x.numpy(), "haar", axis=-1), axis=-1)
    close(get_transform("haar", C).to_hat(x), torch.from_numpy(expected))
    close(get_transform("haar", C).from_hat(torch.from_numpy(expected)), x)


def test_haar_of_three_has_the_rows_of_the_design():
    rows = torch.tensor([[1, 1, 1], [1, 1, -2], [1, -1, 0]], dtype=FLOAT)
    close(get_transform("haar", 3).matrix, rows / rows.norm(dim=1, keepdim=True))


@pytest.mark.parametrize("C", [5, 6, 7, 11, 100])
def test_haar_of_any_length_contrasts_neighbouring_parts(C):
    M = get_transform("haar", C).matrix
    close(M @ M.mT, torch.eye(C, dtype=FLOAT))
    close(M[0], torch.full((C,), C**-0.5, dtype=FLOAT))
    for row in M[1:]:  # one positive level on the left, one negative on the right, side by side
        levels = row[row != 0].round(decimals=10).unique_consecutive()
        assert len(levels) == 2
        assert levels[0] > 0 > levels[1]
        support = row.nonzero().flatten()
        assert len(support) == support[-1] - support[0] + 1


@pytest.mark.parametrize(("C", "wavelet"), [(16, "db2"), (64, "db2"), (32, "sym4"), (64, "coif1")])
def test_wavelets_are_the_periodised_ones_of_pywavelets(C, wavelet):
    M, x = get_transform(f"wavelet:{wavelet}", C).matrix, torch.randn(C, dtype=FLOAT)
    level = pywt.dwt_max_level(C, wavelet)
    bands = pywt.wavedec(x.numpy(), wavelet, mode="periodization", level=level)
    finest = sum(len(band) for band in bands[1:])  # the coarser rest is split further by us
    close((M @ x)[C - finest :], torch.from_numpy(np.concatenate(bands[1:])))
    close(M @ M.mT, torch.eye(C, dtype=FLOAT), atol=1e-9)  # the digits of PyWavelets' filters


def test_short_tubes_take_long_wavelets_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        M = bases.wavelet_matrix(4, "db4")
    close(M @ M.mT, torch.eye(4, dtype=FLOAT), atol=1e-9)


@pytest.mark.parametrize("C", [1, 2, 3, 7])
def test_cosine_kka_is_its_definition(C):
    phi = scipy.fft.dct(np.eye(C), axis=0, norm="ortho")
    M = np.diag(1 / phi[:, 0]) @ phi @ (np.eye(C) + np.eye(C, k=1))
    transform = get_transform("cosine_kka", C)
    close(transform.matrix, torch.from_numpy(M))
    assert transform.is_orthogonal == (C == 1)


def test_scales_say_what_m_times_its_transpose_is():
    for C in (1, 2, 4, 8, 200):
        eye = torch.eye(C, dtype=FLOAT)
        for transform in (get_transform(name, C) for name in ("dct", "dst", "haar", "identity", "dft")):
            gram = transform.matrix @ transform.matrix.mH
            close(gram, transform.scale * eye.to(gram))
            close(transform.matrix @ transform.inverse_matrix, eye.to(gram))
    assert MatrixTransform(2 * random_orthogonal(5).matrix).scale == pytest.approx(4)
    assert MatrixTransform(torch.diag(torch.tensor([1.0, 2.0]))).scale is None


@pytest.mark.parametrize("name", ["dct", "dst"])
def test_long_cosines_and_sines_keep_their_digits(name):
    expected = getattr(scipy.fft, name)(np.eye(1001), axis=0, norm="ortho")
    close(bases.MATRICES[name](1001), torch.from_numpy(expected), 1e-15)


def test_scale_is_measured_relative_to_the_matrix():
    assert bases.unitary_scale(1e-4 * bases.dct_matrix(3)) == pytest.approx(1e-8)
    assert bases.unitary_scale(1e-4 * torch.tensor([[1.0, 0.0], [0.0, 2.0]])) is None
    assert bases.unitary_scale(bases.dct_matrix(3) + 1e-4) is None
    assert bases.unitary_scale(bases.dct_matrix(3).float()) == 1.0


def test_missing_pywavelets_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pywt", None)
    with pytest.raises(ValueError, match="the transform 'wavelet:db3' needs PyWavelets: pip install PyWavelets"):
        bases.wavelet_matrix(4, "db3")
