"""Whole scenes: the map against the model window by window, files with coordinates, other sensors, and bad pixels."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from tcpvit.data import Batches, load_dataset
from tcpvit.data.scenes import Georeference, Scene, cut_windows, find_scene, read_scene
from tcpvit.inference import LoadedModel, load_model
from tcpvit.inference.importance import band_importance
from tcpvit.inference.scene_map import classify_scene
from tcpvit.progress import Progress
from tcpvit.training import load_recipe, train

SMALL = ["schedule.epochs=1", "depth=1", "kept=4", "data.image_size=3", "train_size=100", "device=cpu"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "scene"
    train(load_recipe("scene", SMALL), folder, progress=Progress())
    return folder


def logits(scene: Scene, window: int, loaded) -> torch.Tensor:
    """Logits of all pixels, window by window."""
    pixels = np.indices(scene.shape[:2]).reshape(2, -1).T
    mean, std = (torch.tensor(loaded.preprocessing[name])[:, None, None] for name in ("mean", "std"))
    with torch.no_grad():
        return loaded.model((cut_windows(scene, pixels, window) - mean) / std)


def test_the_map_is_what_the_model_says_of_each_window(run, tmp_path):
    loaded, scene = load_model(run), find_scene("materials")
    found = classify_scene(loaded, scene, batch_size=100)
    chances = logits(scene, 3, loaded).softmax(1)
    np.testing.assert_allclose(found.confidence.ravel(), chances.max(1).values, atol=1e-4)
    sure = (chances.topk(2).values.diff().abs()[:, 0] > 1e-3).numpy()
    np.testing.assert_array_equal(found.classes.ravel()[sure], 1 + chances.argmax(1).numpy()[sure])
    assert found.scene.class_names == scene.class_names
    assert found.scene.colours == scene.colours
    assert sum(row.cells[1] for row in found.table().rows) == scene.shape[0] * scene.shape[1]
    for ending in ("png", "tif", "hdr", "npy"):
        for file in found.write(tmp_path / f"map.{ending}"):
            assert file.is_file()
    assert read_scene(tmp_path / "map.hdr").shape == (64, 64, 1)


def test_coordinates_stay(run, tmp_path):
    place = Georeference("envi", {"map info": "UTM, 1, 1, 500000, 4500000, 20, 20, 16, North"})
    found = classify_scene(load_model(run), replace(find_scene("materials"), georeference=place))
    found.write(tmp_path / "map.hdr")
    assert "UTM, 1, 1, 500000" in (tmp_path / "map.hdr").read_text()
    with pytest.raises(ValueError, match=r"cannot keep the scene's georeference, which came from ENVI: write \.hdr"):
        found.write(tmp_path / "map.tif")


def test_another_sensor_is_interpolated_and_what_cannot_be_is_refused(run):
    loaded, scene = load_model(run), find_scene("materials")
    fine = np.linspace(395, 2455, 207)
    interpolated = np.stack([np.interp(fine, scene.wavelengths, spectrum) for spectrum in scene.data.reshape(-1, 60)])
    other = Scene(interpolated.reshape(64, 64, -1).astype(np.float32), wavelengths=fine)
    agree = classify_scene(loaded, other).classes == classify_scene(loaded, scene).classes
    assert agree.mean() > 0.97
    with pytest.raises(ValueError, match="covers 400 to 1000 nm, but the model needs 400 to 2450 nm"):
        classify_scene(loaded, Scene(np.zeros((9, 9, 50)), wavelengths=np.linspace(400, 1000, 50)))
    with pytest.raises(ValueError, match="has 103 bands in use, scene was trained on 60; without the wavelengths"):
        classify_scene(loaded, Scene(np.zeros((9, 9, 103))))
    with pytest.raises(ValueError, match="windows of 3×3 pixels, scene has only 2×9"):
        classify_scene(loaded, Scene(np.zeros((2, 9, 60))))
    with pytest.raises(ValueError, match="was not trained on a scene"):
        classify_scene(load_model("tcp_vit_cifar_plus"), scene)


def test_pixels_without_numbers_have_no_class(run):
    scene = find_scene("materials")
    cube = scene.data.astype(np.float32)
    cube[10, 20, 5] = np.nan
    found = classify_scene(load_model(run), replace(scene, data=cube))
    missing = np.argwhere(found.classes == 0)
    assert missing.min(0).tolist() == [9, 19]
    assert len(missing) == 9
    assert (found.confidence[found.classes == 0] == 0).all()
    assert "9 pixels left out: their windows hold values that are no finite numbers" in found.table().notes
    gone = np.isnan(cube).any(-1)  # and where the file says so, that pixel alone
    found = classify_scene(load_model(run), replace(scene, data=cube, missing=gone))
    assert ((found.classes == 0) == gone).all()
    assert (found.confidence[gone] == 0).all()
    assert "1 pixels left out: they have no data" in found.table().notes
    cube[..., 5] = np.nan
    with pytest.raises(ValueError, match="has no pixel that can be classified: 4,096 pixels left out: their windows"):
        classify_scene(load_model(run), replace(scene, data=cube))


def test_only_the_bands_of_the_training_are_used(run, tmp_path):
    """A scene that marks no bad bands, classified by a model that was trained without two of them."""
    scene = find_scene("materials")
    data = np.concatenate([scene.data, np.full((64, 64, 2), 60000, np.uint16)], 2)
    np.save(tmp_path / "cube.npy", data)
    preprocessing = json.loads((run / "best" / "preprocessing.json").read_text())
    preprocessing["scene"] |= {"bands": 62}
    loaded = replace(load_model(run), preprocessing=preprocessing)
    found = classify_scene(loaded, read_scene(tmp_path / "cube.npy"))
    np.testing.assert_array_equal(found.classes, classify_scene(load_model(run), scene).classes)


def test_importance_is_the_gradient_carried_back_through_the_transform(run):
    loaded = load_model(run)
    data = loaded.prepare(load_dataset("materials", image_size=3).test.subset(torch.arange(20)))
    found = band_importance(loaded.model, data, batch_size=7)
    windows = torch.cat([images for images, _ in Batches(data, 20)]).requires_grad_()
    loaded.model(windows).amax(1).sum().backward()
    expected = (windows.grad * windows).abs().sum((0, 2, 3)).detach()
    np.testing.assert_allclose(found.by_band, expected / expected.sum(), rtol=1e-3)
    assert found.by_frequency.shape == (4,)
    assert found.by_frequency.sum() == pytest.approx(1)
    assert not loaded.model.bands._forward_hooks
    with pytest.raises(ValueError, match="a model with a transform along the spectrum"):
        band_importance(torch.nn.Linear(2, 2), data)


def test_bands_are_those_of_the_training_and_not_others_of_their_number():
    bad = np.arange(10) < 2
    about = {"scene": {"bands": 10, "used": [2, 3, 4, 5, 6, 7, 8, 9], "colours": []}}
    loaded = LoadedModel("run", torch.nn.Identity(), None, about)
    cube = np.arange(10.0) * np.ones((4, 4, 1))
    for marks in (None, bad, np.zeros(10, bool)):
        fitted = loaded.fit_scene(Scene(cube, bad_bands=marks))
        assert fitted.good_bands.tolist() == about["scene"]["used"]
    with pytest.raises(ValueError, match="marks band 9 as bad, in all 2 of the 8 bands that run looks at"):
        loaded.fit_scene(Scene(cube, bad_bands=bad[::-1]))
