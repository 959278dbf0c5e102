"""Scenes through the recipes of images: trained, resumed bit for bit, measured; what the model takes from the data."""

from __future__ import annotations

import math

import pytest
import torch

from tcpvit.data import load_dataset
from tcpvit.inference.evaluate import measure
from tcpvit.inference.loading import load_model
from tcpvit.progress import Progress
from tcpvit.training import load_recipe, resume, train
from tcpvit.training.build import build_model, training_spectra
from tcpvit.training.metrics import SceneMetrics, wilson

SMALL = ["schedule.epochs=2", "depth=1", "kept=4", "data.image_size=3", "train_size=100", "device=cpu"]


USED = {"seed": 1, "validation_by": "pixels"}  # by the recipe


def recipe(*words: str):
    return load_recipe("scene", [*SMALL, *words])


class Stopping(Progress):
    def step(self, state):
        if state.step == 1:
            raise KeyboardInterrupt


def test_a_scene_is_trained_resumed_and_measured(tmp_path):
    whole = train(recipe(), tmp_path / "whole", progress=Progress())
    with pytest.raises(KeyboardInterrupt):
        train(recipe("checkpoints.every_steps=1"), tmp_path / "stopped", progress=Stopping())
    resumed = resume(tmp_path / "stopped", progress=Progress())
    for mine, other in zip(whole.model.state_dict().values(), resumed.model.state_dict().values(), strict=True):
        assert torch.equal(mine, other)
    assert whole.metric == "oa"
    assert whole.notes[0].startswith("disjoint split of seed 1: 0.0 %")
    measured = measure(tmp_path / "whole")
    assert measured.notes == whole.notes
    assert measured.to_dict()["oa"] == whole.test["oa"]
    low, high = whole.test["intervals"]["oa"]
    assert low < whole.test["oa"] < high
    assert "95 % interval over pixels" in measured.tables()[0].columns


def test_the_model_takes_wavelengths_and_the_scale_of_its_coefficients_from_the_training_pixels(tmp_path):
    splits = load_dataset("materials", image_size=3)
    model = build_model(recipe(), splits.train)
    assert model.config.wavelengths == tuple(splits.train.scene.wavelengths.tolist())
    assert model.config.in_chans == 60
    assert (model.config.kept, model.config.embed_dim) == (4, 32)  # slices of 8, as in the preset
    spectra = training_spectra(splits.train)
    assert spectra.shape == (len(splits.train), 60)
    torch.testing.assert_close(spectra.mean(0), torch.zeros(60), atol=1e-4, rtol=0)
    coefficients = model.bands(spectra[:, :, None, None])[:, :, 0, 0]
    torch.testing.assert_close(coefficients.std(0, correction=0), torch.ones(4), atol=1e-4, rtol=0)


def test_a_scene_of_few_bands_keeps_them_all(tmp_path):
    splits = load_dataset("materials", image_size=3)
    few = splits.train.scene.__class__(splits.train.scene.data[:, :, :6], labels=splits.train.scene.labels)
    train_part = splits.train.__class__(
        **{**vars(splits.train), "scene": few, "mean": splits.train.mean[:6], "std": splits.train.std[:6]}
    )
    config = build_model(load_recipe("scene", ["depth=1"]), train_part).config
    assert (config.in_chans, config.kept, config.embed_dim) == (6, 6, 48)


def test_principal_axes_as_basis_whiten_the_training_spectra_and_are_saved(tmp_path):
    result = train(recipe("band_basis=pca", "schedule.epochs=1"), tmp_path / "run", progress=Progress())
    spectra = training_spectra(load_dataset("materials", image_size=3, train_size=100, **USED).train)
    coefficients = result.model.bands(spectra[:, :, None, None])[:, :, 0, 0]
    torch.testing.assert_close(coefficients.mT.cov(correction=0), torch.eye(4), atol=1e-3, rtol=0)
    loaded = load_model(tmp_path / "run").model
    assert torch.equal(loaded.bands.matrix, result.model.bands.matrix)


def test_kappa_and_its_interval_against_scikit_learn_and_the_bootstrap():
    metrics_module = pytest.importorskip("sklearn.metrics")
    random = torch.Generator().manual_seed(0)
    truth = torch.randint(0, 4, (2000,), generator=random)
    predicted = torch.where(
        torch.rand(2000, generator=random) < 0.7, truth, torch.randint(0, 4, (2000,), generator=random)
    )
    metrics = SceneMetrics(5)  # of which one is absent
    metrics.update(torch.nn.functional.one_hot(predicted, 5).float(), truth, torch.tensor(0.0))
    found = metrics.summary()
    assert found["kappa"] == pytest.approx(metrics_module.cohen_kappa_score(truth, predicted))
    assert found["aa"] == pytest.approx(metrics_module.balanced_accuracy_score(truth, predicted))
    draws = []
    for _ in range(400):
        rows = torch.randint(0, 2000, (2000,), generator=random)
        again = SceneMetrics(5)
        again.update(torch.nn.functional.one_hot(predicted[rows], 5).float(), truth[rows], torch.tensor(0.0))
        draws.append([again.summary()[name] for name in ("oa", "aa", "kappa")])
    deviations = torch.tensor(draws).std(0).tolist()
    for (low, high), deviation in zip(metrics.intervals().values(), deviations, strict=True):
        assert (high - low) / (2 * 1.96) == pytest.approx(deviation, rel=0.15)


def test_an_interval_of_nothing_is_nothing():
    assert all(math.isnan(end) for end in wilson(0.0, 0))
