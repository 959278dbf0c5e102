"""The hyperspectral study on the built-in scene: guards, the first layer computed once, choices, and a run's record."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from experiments import __main__ as main
from experiments.hyperspectral import models, plan, runs, tables
from experiments.hyperspectral.cube import RADIUS, Cube, make_split, pixels_of, pixels_without_test
from experiments.hyperspectral.fit import Training, augmented, predict, self_supervised_start
from experiments.hyperspectral.peers import NETWORKS
from experiments.hyperspectral.runs import build
from experiments.hyperspectral.spectra import Spectra
from tcpvit.data.scenes import Scene, fit_statistics, materials_scene, random_split
from tcpvit.data.scenes.fields import within
from tcpvit.layers.bands import BandDCT


@pytest.fixture(scope="module")
def scene():
    return materials_scene()


@pytest.fixture(scope="module")
def split(scene):
    return make_split(scene, "random", 0)


def test_validation_fields_stand_as_far_from_training_as_test_fields_do(scene):
    whole, inner = (make_split(scene, "disjoint", 0, validate=validate) for validate in (False, True))
    assert inner.mask("validation").any()
    assert not (within(inner.mask("train"), 2 * RADIUS) & inner.mask("validation")).any()
    assert not (inner.mask("train") & ~whole.mask("train")).any()
    assert (inner.mask("test") == whole.mask("test")).all()


def test_the_start_sees_no_pixel_of_a_test_window(scene):
    split = make_split(scene, "disjoint", 0, validate=True)
    seen = torch.zeros(scene.shape[:2], dtype=torch.bool)
    seen[tuple(pixels_without_test(split).T)] = True
    measured = split.mask("test") | split.mask("validation")
    assert seen.any()
    assert not (within(seen.numpy(), RADIUS) & within(measured, RADIUS)).any()


def test_the_first_layer_computed_once_is_that_of_the_preset(scene, split):
    cube, pixels = Cube(scene, split), pixels_of(split, "train")
    settings = {"model": "tcp_scene", "options": {"kept": 16}}
    behind, axes = build(settings, cube, pixels, 6, 0)
    first = BandDCT(cube.channels, 16)
    first.standardise_(cube.windows(pixels)[:, :, RADIUS, RADIUS])
    assert torch.allclose(cube.project(axes).windows(pixels), first(cube.windows(pixels)), atol=1e-4)
    learned, no_axes = build({**settings, "options": {"kept": 16, "band_basis": "learned"}}, cube, pixels, 6, 0)
    assert no_axes is None
    learned.load_state_dict(behind.state_dict(), strict=False)
    expected = learned.eval()(cube.windows(pixels)).argmax(1)
    found = predict(behind, cube.project(axes), pixels, Training()).argmax(1)
    assert (found == expected).float().mean() > 0.99


def test_predictions_of_the_centre_pixel_are_those_of_a_flat_window(scene, split):
    cube, pixels = Cube(scene, split), pixels_of(split, "train")[:8]
    model, axes = build({"model": "std_scene_small"}, cube, pixels, 6, 0)
    cube = cube.project(axes)
    flat = cube.windows(pixels)[:, :, RADIUS, RADIUS, None, None].expand(-1, -1, 9, 9)
    both = predict(model, cube, pixels, Training(centre=True))
    expected = (predict(model, cube, pixels, Training()) + model(flat).softmax(1)) / 2
    assert torch.allclose(both, expected, atol=1e-6)


def test_networks_of_several_seeds_count_all_their_parameters(scene, monkeypatch):
    few = random_split(scene.labels, window=9, seed=0, counts=4)
    monkeypatch.setattr(runs, "make_split", lambda *arguments, **options: few)
    settings = {"model": "std_scene_small", "epochs": 1, "window": 3}
    one, three = (runs.run(scene, "random", 0, {**settings, "members": n}, validate=False) for n in (1, 3))
    assert three["parameters"] == 3 * one["parameters"]
    assert three["confusion"] != one["confusion"]


def test_noise_of_projected_windows_is_projected_noise(scene, split):
    cube, pixels = Cube(scene, split), pixels_of(split, "train")
    _, axes = build({"model": "tcp_scene"}, cube, pixels, 6, 0)
    projected, how = cube.project(axes), Training(turn=False, noise=0.5)
    targets, random = torch.zeros(len(pixels)), torch.Generator().manual_seed(0)
    noise = augmented(projected, pixels, targets, how, random) - projected.windows(pixels)
    white = 0.5 * torch.randn(20_000, cube.channels, generator=random) @ axes.mT
    assert torch.allclose(noise.std((0, 2, 3)), white.std(0), rtol=0.05)


def test_the_start_learns_to_restore_and_changes_the_encoder(scene, split):
    cube, pixels = Cube(scene, split), pixels_of(split, "train")
    model, axes = build({"model": "std_scene_small"}, cube, pixels, 6, 0)
    before = model.blocks[0].mlp.fc1.weight.clone()
    self_supervised_start(model, cube, axes, pixels, Training(start=1), 0)
    assert not torch.equal(before, model.blocks[0].mlp.fc1.weight)


@pytest.mark.parametrize(
    ("name", "parameters"), [("ssftt", 153_264), ("hybridsn", 403_000), ("spectralformer", 355_577)]
)
def test_peers_have_about_the_size_of_their_papers_layers(name, parameters):
    peer = NETWORKS[name]
    channels = peer.components or 200
    network = peer.network(channels, peer.window, 16).eval()
    assert network(torch.randn(2, channels, peer.window, peer.window)).shape == (2, 16)
    assert sum(p.numel() for p in network.parameters()) == pytest.approx(parameters, rel=0.05)


def test_every_model_has_as_many_trials_and_every_run_a_label():
    assert {len(models.trials(model, kind)) for model in models.MODELS for kind in plan.SEEDS} == {4}
    assert {*models.MODELS, *models.VARIANTS} == set(tables.LABELS)
    assert {"w", *models.ABLATIONS} == set(tables.ABLATION_LABELS)
    assert {f"{name}.{lever}" for lever in tables.LEVER_LABELS for name in ("tcp_scene", "std_scene")} == set(
        models.LEVERS
    )


@pytest.fixture
def small(scene, monkeypatch, tmp_path):
    """Two models of the plan on the built-in scene."""
    runs = [run for run in plan.planned() if {"svm-dct", "std_scene_small"} & {run.name.partition(".")[0]}]
    study = replace(plan.STUDY, planned=lambda: [run for run in runs if not run.seed or run.validates])
    monkeypatch.setattr(plan, "indian_pines", lambda root: scene)
    monkeypatch.setattr(main, "find_study", lambda name: study)
    places = {"runs": tmp_path / "runs", "results": tmp_path / "results", "pages": tmp_path / "pages"}
    return tmp_path, lambda **options: main.experiment("hyperspectral", quiet=True, **places, **options)


def test_a_model_waits_for_its_choice_and_takes_the_best(small, capsys):
    home, run = small
    with pytest.raises(FileNotFoundError):
        run(only=["random-svm-dct-0"])
    assert "choose-random-svm-dct.0" in capsys.readouterr().err
    run(only=["choose-random-svm-dct*", "random-svm-dct-0"])
    records = {file.stem: json.loads(file.read_text()) for file in (home / "results/hyperspectral").glob("*.json")}
    trials = {name: record for name, record in records.items() if name.startswith("choose")}
    best = max(trials.values(), key=lambda record: record["oa"])
    final = records["random-svm-dct-0"]
    assert len(trials) == 4
    assert final["changes"] == [word for word in best["changes"] if "model" not in word] + ["model=svm-dct"]
    assert final["measured_on"] == "test pixels"
    assert best["measured_on"] == "validation pixels"
    assert final["leakage"] > 0.9
    assert f"{100 * final['oa']:.1f} %" in (home / "pages/hyperspectral.md").read_text()


def test_a_network_runs_with_fewer_epochs(small):
    home, run = small
    run(only=["choose-disjoint-std_scene_small.0-0"], epochs=1)
    (file,) = (home / "results/hyperspectral-1-epochs").glob("*.json")
    record = json.loads(file.read_text())
    assert record["epochs"] == record["settings"]["epochs"] == 1
    assert sum(map(sum, record["confusion"])) == record["measured_pixels"]
    assert record["leakage"] == 0


@pytest.mark.parametrize("components", [None, 4])
def test_spectra_are_standardised_or_projected_as_scikit_learn_does(components):
    random = np.random.RandomState(0)
    cube = np.cumsum(random.normal(2, 1, (20, 15, 12)), axis=2).astype(np.float32)
    bad = np.isin(np.arange(12), [0, 5])
    scene = Scene(cube, labels=random.randint(0, 4, (20, 15)), bad_bands=bad)
    split = random_split(scene.require_labels(), window=3, seed=0, fraction=0.3)
    spectra = Spectra(fit_statistics(scene, split), components)
    train = cube[split.mask("train")][:, ~bad].astype(np.float64)
    expected = (train - train.mean(0)) / train.std(0)
    found = spectra.apply(cube[split.mask("train")])
    if components:
        expected, found = np.abs(PCA(components).fit_transform(expected)), np.abs(found)
    assert (found.dtype, found.shape[1]) == (np.float32, spectra.channels)
    np.testing.assert_allclose(found, expected, atol=1e-4)
