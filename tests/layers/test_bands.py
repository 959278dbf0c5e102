"""The truncated transform of spectra and the stem behind it, against explicit matrices."""

import math

import pytest
import torch
from scipy.fft import dct, idct
from torch.nn import functional as F

from tcpvit.algebra import random_orthogonal
from tcpvit.layers import BandDCT, BandStem

F64 = torch.float64


def spectra(*shape):
    return torch.randn(*shape, dtype=F64)


@pytest.mark.parametrize(("bands", "kept"), [(200, 32), (7, 7), (13, 1)])
def test_the_first_coefficients_of_scipys_dct(bands, kept):
    x = spectra(2, bands, 3, 4)
    expected = dct(x.numpy(), norm="ortho", axis=1)[:, :kept] * math.sqrt(kept / bands)
    torch.testing.assert_close(BandDCT(bands, kept).double()(x), torch.from_numpy(expected))


def test_truncating_is_resampling_a_smooth_spectrum():
    """The kept coefficients of a spectrum of low frequencies are those of the same curve at K places."""
    bands, kept = 60, 12
    places = [(torch.arange(n, dtype=F64) + 0.5) / n for n in (bands, kept)]
    curve, short = (1 + 2 * torch.cos(math.pi * p) - torch.cos(3 * math.pi * p) for p in places)
    found = BandDCT(bands, kept).double()(curve.view(1, bands, 1, 1)).flatten()
    torch.testing.assert_close(torch.from_numpy(idct(found.numpy(), norm="ortho")), short)


@pytest.mark.parametrize(
    ("basis", "rows"),
    [
        ("identity", torch.eye(9, dtype=F64)[:4]),
        ("random_orthogonal", random_orthogonal(9).matrix[:4]),
        (torch.arange(45.0).view(5, 9), torch.arange(36.0, dtype=F64).view(4, 9)),
    ],
)
def test_other_bases(basis, rows):
    x = spectra(3, 9, 2, 2)
    expected = torch.einsum("kb,nbhw->nkhw", rows, x) * math.sqrt(4 / 9)
    torch.testing.assert_close(BandDCT(9, 4, basis)(x.float()), expected.float())


def test_a_learned_basis_starts_at_the_dct_and_is_trained():
    learned, fixed = BandDCT(9, 4, "learned"), BandDCT(9, 4)
    x = torch.randn(2, 9, 3, 3)
    torch.testing.assert_close(learned(x), fixed(x))
    assert [p.shape for p in learned.parameters()] == [(4, 9)]
    assert not list(fixed.parameters())


def test_standardised_coefficients_have_unit_deviation():
    x = spectra(50, 20).cumsum(1)
    layer = BandDCT(20, 6).double().standardise_(x)
    coefficients = layer(x[:, :, None, None]).squeeze()
    torch.testing.assert_close(coefficients.std(0, correction=0), torch.ones(6, dtype=F64))
    direction = F.normalize(BandDCT(20, 6).double()(x[:, :, None, None]).squeeze(), dim=0)
    torch.testing.assert_close(F.normalize(coefficients, dim=0), direction)


def test_a_coefficient_that_never_varies_stays_finite():
    flat = torch.randn(10, 1).expand(10, 20)  # constant spectra: nothing but frequency 0
    gain = BandDCT(20, 3).standardise_(flat).gain
    assert gain.isfinite().all()
    assert gain[1:].eq(1).all()


def test_what_is_saved():
    """A name gives the matrix back; a given matrix and the measured deviations are saved."""
    assert set(BandDCT(9, 4).state_dict()) == {"gain"}
    given = BandDCT(9, 4, torch.randn(4, 9)).standardise_(torch.randn(20, 9))
    empty = BandDCT(9, 4, "pca")
    x = torch.randn(2, 9, 3, 3)
    assert empty(x).isnan().all()
    empty.load_state_dict(given.state_dict())
    assert torch.equal(empty(x), given(x))


def test_precision_is_not_lost_on_the_way():
    x = spectra(1, 9, 1, 1)
    assert torch.equal(BandDCT(9, 4).half().double()(x), BandDCT(9, 4).double()(x))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((5, 6), "kept=6 coefficients are more than the 5 bands have; take between 1 and 5"),
        ((5, 0), "take between 1 and 5"),
        ((5, 2, "learnt"), "band_basis='learnt' is unknown; did you mean 'learned'"),
        ((5, 2, torch.ones(1, 5)), "at least 2×5, got"),
        ((5, 2, torch.full((2, 5), torch.nan)), "finite matrix"),
    ],
)
def test_misuse_is_one_sentence(arguments, said):
    with pytest.raises(ValueError, match=said):
        BandDCT(*arguments)


def test_spectra_that_cannot_be_measured():
    for wrong in (torch.ones(3, 8), torch.ones(1, 9), torch.full((3, 9), torch.inf)):
        with pytest.raises(ValueError, match="give two or more finite spectra"):
            BandDCT(9, 4).standardise_(wrong)


def test_the_stem_mixes_slices_and_filters_each_alike():
    stem, x = BandStem(5, 3).double(), spectra(2, 5, 6, 4)
    for parameter in stem.parameters():
        torch.nn.init.normal_(parameter)
    mixed = torch.einsum("kl,blhw->bkhw", stem.couple.mix, x)
    y = stem(x).unflatten(1, (3, 5))  # channel j·C + k
    for j in range(3):
        for k in range(5):
            filtered = F.conv2d(
                mixed[:, k : k + 1], stem.conv.weight[j, None, :, 0], stem.conv.bias[j, None], padding=1
            )
            torch.testing.assert_close(y[:, j, k], F.gelu(filtered)[:, 0])
