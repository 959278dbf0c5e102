"""Statistics of training pixels against NumPy, SciPy and scikit-learn, and what they must not look at."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.fft import dct

from tcpvit.data.scenes import Scene, fit_statistics, random_split
from tcpvit.data.scenes import statistics as module

RANDOM = np.random.RandomState(0)
LABELS = RANDOM.randint(0, 4, (20, 15)).astype(np.int32)
CUBE = np.cumsum(RANDOM.normal(2, 1, (20, 15, 12)), axis=2).astype(np.float32)
SCENE = Scene(CUBE, labels=LABELS)
SPLIT = random_split(LABELS, window=3, seed=0, fraction=0.3)
TRAIN = CUBE[SPLIT.mask("train")].astype(np.float64)


def test_mean_and_standard_deviation_are_those_of_the_training_pixels():
    statistics = fit_statistics(SCENE, SPLIT)
    np.testing.assert_allclose(statistics.mean, TRAIN.mean(0), rtol=1e-12)
    np.testing.assert_allclose(statistics.std, TRAIN.std(0), rtol=1e-12)
    np.testing.assert_allclose(statistics.covariance, np.cov(TRAIN.T, bias=True), rtol=1e-9)
    assert statistics.pixels == len(TRAIN)
    assert statistics.origin == f"{len(TRAIN)} training pixels"


def test_pixels_outside_the_training_part_change_nothing():
    changed = np.where(SPLIT.mask("train")[:, :, None], CUBE, np.nan)
    ours, theirs = fit_statistics(SCENE, SPLIT), fit_statistics(Scene(changed, labels=LABELS), SPLIT)
    np.testing.assert_array_equal(ours.mean, theirs.mean)
    np.testing.assert_array_equal(ours.energy, theirs.energy)


def test_bad_bands_are_not_measured():
    bad = np.isin(np.arange(12), [0, 5])
    statistics = fit_statistics(Scene(CUBE, labels=LABELS, bad_bands=bad), SPLIT)
    np.testing.assert_allclose(statistics.mean, TRAIN.mean(0)[~bad], rtol=1e-12)


def test_transductive_uses_all_pixels_and_says_so(monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 3 * 15 * 12)  # three rows at a time
    statistics = fit_statistics(SCENE, transductive=True)
    np.testing.assert_allclose(statistics.mean, CUBE.reshape(-1, 12).mean(0, np.float64), rtol=1e-12)
    np.testing.assert_allclose(statistics.std, CUBE.reshape(-1, 12).std(0, np.float64), rtol=1e-9)
    assert statistics.transductive
    assert "test pixels included (transductive)" in statistics.origin
    assert "whole scene" in statistics.reason


def test_the_energy_of_frequencies_is_that_of_scipys_dct():
    statistics = fit_statistics(SCENE, SPLIT, energy=0.9)
    power = (dct(TRAIN - TRAIN.mean(0), axis=1, norm="ortho") ** 2).sum(0)
    np.testing.assert_allclose(statistics.energy, power / power.sum(), rtol=1e-9)
    kept = statistics.kept_frequencies
    assert statistics.energy[:kept].sum() >= 0.9 > statistics.energy[: kept - 1].sum()
    assert statistics.reason.startswith(f"the first {kept} of 12 frequencies hold")


def test_large_offsets_and_whole_numbers_keep_their_precision():
    large = (60_000 + RANDOM.randint(0, 9, CUBE.shape)).astype(np.uint16)
    statistics = fit_statistics(Scene(large, labels=LABELS), SPLIT)
    np.testing.assert_allclose(statistics.std, large[SPLIT.mask("train")].std(0, np.float64), rtol=1e-12)


def test_a_band_without_variation_does_no_harm():
    flat = CUBE.copy()
    flat[:, :, 3] = 7
    statistics = fit_statistics(Scene(flat, labels=LABELS), SPLIT)
    assert (statistics.mean[3], statistics.std[3]) == (7, 1)
    constant = fit_statistics(Scene(np.ones_like(CUBE), labels=LABELS), SPLIT)
    assert constant.kept_frequencies == 1


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"split": None}, "give a split, or transductive=True"),
        ({"energy": 1.0}, "above 0 and below 1"),
    ],
)
def test_options_that_make_no_sense(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        fit_statistics(SCENE, **({"split": SPLIT} | options))


def test_values_that_are_not_numbers_are_named():
    with pytest.raises(ValueError, match="some training pixels are not finite"):
        fit_statistics(Scene(np.full_like(CUBE, np.nan), labels=LABELS), SPLIT)
    with pytest.raises(ValueError, match="the split has the shape"):
        fit_statistics(Scene(CUBE[1:]), SPLIT)
