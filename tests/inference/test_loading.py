"""What `load_model` makes of saved folders: float32 models, whose record fits them."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import tcpvit
from tcpvit.data import load_dataset
from tcpvit.data.scenes import Scene
from tcpvit.inference import LoadedModel, load_model, predict_files
from tcpvit.inference.evaluate import recipe_for
from tcpvit.inference.explain import explain_files
from tcpvit.inference.export import describe, export_model
from tcpvit.inference.inputs import as_volume_files
from tcpvit.inference.masks import segment_image
from tcpvit.inference.serve import create_app
from tcpvit.inference.volumes import segment_volume
from tcpvit.models.zoo import pretrained_folder
from tcpvit.training import Recipe
from tcpvit.training.preprocessing import describe_preprocessing, read_preprocessing

NAME = "tcp_vit_cifar_plus"


class Foreign(torch.nn.Module):
    """A model without a config of ours."""

    def __init__(self, model):
        super().__init__()
        self.inner = model

    def forward(self, images):
        return self.inner(images)


def save(model, folder: Path) -> Path:
    """The model with the record of its preset."""
    tcpvit.save_pretrained(model, folder)
    shutil.copy(pretrained_folder(NAME) / "preprocessing.json", folder)
    return folder


@pytest.fixture
def model():
    return tcpvit.from_pretrained(pretrained_folder(NAME))


@pytest.fixture
def image(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "image.png")
    return tmp_path / "image.png"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_weights_of_any_precision_take_float32_images(model, image, tmp_path, dtype):
    folder = save(model.to(dtype), tmp_path / "saved")
    assert next(tcpvit.from_pretrained(folder).parameters()).dtype == dtype
    loaded = load_model(folder)
    (explained,) = explain_files(loaded, [image])
    assert explained.explanation.logits.dtype == torch.float32
    found, wanted = (predict_files(each, [image], top=10).found[0] for each in (loaded, load_model(NAME)))
    chances = [dict(zip(each.labels, each.probabilities, strict=True)) for each in (found, wanted)]
    assert chances[0] == pytest.approx(chances[1], abs=0.02)  # bfloat16 has 8 bits


@pytest.mark.parametrize("classes", [4, 20])
def test_a_record_with_more_or_fewer_classes_than_the_model_is_refused(model, image, tmp_path, classes):
    model.reset_classifier(classes)
    said = f"gives {classes} numbers for an image, but its record names 10 classes; name as many"
    with pytest.raises(ValueError, match=said):
        load_model(save(model, tmp_path / "saved"))
    loaded = LoadedModel("ours", model, None, read_preprocessing(pretrained_folder(NAME)))  # known by its answers alone
    foreign = replace(loaded, model=Foreign(model))
    for use in (
        lambda: list(explain_files(loaded, [image])),
        lambda: predict_files(foreign, [image]),
        lambda: create_app(foreign),
    ):
        with pytest.raises(ValueError, match=said):
            use()


def test_a_backbone_without_a_head_is_loaded(tmp_path):
    model = tcpvit.create_model(NAME, num_classes=0)
    assert load_model(save(model, tmp_path / "saved")).config.num_classes == 0


@pytest.mark.parametrize("shape", [(3, 8, 8), (1, 4, 8, 8)])
def test_masks_of_other_classes_than_the_record_names_are_refused(shape):
    about = {"task": "segmentation", "classes": ["a", "b"], "image_shape": shape}
    about |= {"mean": [0.5] * shape[0], "std": [0.5] * shape[0]}
    conv = (torch.nn.Conv2d if len(shape) == 3 else torch.nn.Conv3d)(shape[0], 3, 1)
    loaded = LoadedModel("own", conv, None, about)
    cpu = torch.device("cpu")
    with torch.no_grad(), pytest.raises(ValueError, match="own gives 3 numbers for an image"):
        _ = (
            segment_image(loaded, np.zeros((9, 9, 3), np.uint8), "squash", cpu)
            if len(shape) == 3
            else segment_volume(loaded, np.zeros((1, 5, 9, 9), np.uint8), cpu)
        )


def test_the_stride_of_clips_goes_with_the_record(tmp_path):
    about = {"task": "classification", "classes": ["a", "b"], "image_shape": [1, 4, 8, 8], "mean": [0.5], "std": [0.5]}
    about |= {"unit": "clips", "dtype": "uint8"}
    recipe = Recipe().override(["data.name=clips:x", "data.options.stride=2"])
    np.save(tmp_path / "clip.npy", np.arange(64, dtype=np.uint8)[:, None, None] * np.ones((1, 8, 8), np.uint8))
    of_run = LoadedModel("run", torch.nn.Identity(), recipe, about)  # of an earlier version
    of_file = replace(of_run, recipe=None, preprocessing=describe(of_run, False, None)["preprocessing"])
    newer = replace(of_file, preprocessing={**about, "stride": 3})
    assert newer.full_record() == newer.preprocessing
    for loaded, stride in ((of_run, 2), (of_file, 2), (newer, 3)):
        clip = as_volume_files(loaded, [tmp_path / "clip.npy"]).read(str(tmp_path / "clip.npy"))
        assert np.diff(clip[0, :, 0, 0].astype(int)).tolist() == [stride] * 3
        assert recipe_for(loaded, "clips:y").data.options["stride"] == stride


def test_an_exported_scene_model_knows_the_wavelengths_of_its_bands():
    known, others = np.linspace(400, 2400, 20), np.linspace(900, 1700, 20)
    model = tcpvit.create_model(
        "tcp_scene", in_chans=20, kept=4, embed_dim=32, num_classes=3, wavelengths=tuple(known.tolist())
    )
    about = {"task": "classification", "classes": ["a", "b", "c"], "image_shape": [20, 9, 9], "mean": [0.0] * 20}
    about |= {"std": [1.0] * 20, "scene": {"bands": 20, "used": list(range(20)), "colours": [[0, 0, 0]] * 3}}
    of_run = LoadedModel("run", model.eval(), None, about)  # of an earlier version
    record = describe(of_run, False, None)["preprocessing"]
    assert record["wavelengths"] == known.tolist()
    of_file = LoadedModel("file", torch.nn.Identity(), None, record)
    other = Scene(np.zeros((12, 12, 20), np.float32), wavelengths=others)  # of another sensor, with as many bands
    for loaded in (of_run, of_file):
        with pytest.raises(ValueError, match="covers 900 to 1700 nm, but the model needs 400 to 2400 nm"):
            loaded.fit_scene(other)
    same = Scene(np.zeros((12, 12, 20), np.float32), wavelengths=known)
    assert of_file.fit_scene(same) is same


@pytest.mark.parametrize("wavelengths", [[400.0], [400.0, 500.0, -1.0]])
def test_damaged_wavelengths_are_named(tmp_path, wavelengths):
    about = json.loads((pretrained_folder(NAME) / "preprocessing.json").read_text())
    (tmp_path / "preprocessing.json").write_text(json.dumps({**about, "wavelengths": wavelengths}))
    with pytest.raises(ValueError, match="a positive wavelength for each of 3 bands"):
        read_preprocessing(tmp_path)


def test_what_a_run_records_of_its_clips_and_scenes():
    scene = load_dataset("materials", image_size=3).train
    about = describe_preprocessing(scene, Recipe().data)
    assert about["wavelengths"] == list(scene.wavelengths)
    assert "stride" not in about
    clips = SimpleNamespace(**{key: about[key] for key in ("source", "task", "classes", "image_shape", "mean", "std")})
    clips.unit, clips.dtype = "clips", torch.uint8
    assert describe_preprocessing(clips, Recipe().override(["data.options.stride=2"]).data)["stride"] == 2
    assert "stride" not in describe_preprocessing(clips, Recipe().data)


def test_a_model_that_predicted_can_still_be_explained_and_trained(image):
    loaded = load_model(NAME)
    predict_files(loaded, [image], device="cpu")
    (explained,) = explain_files(loaded, [image])
    assert explained.explanation.logits.shape == (10,)
    loaded.model(torch.zeros(1, 3, 32, 32)).sum().backward()


def test_images_go_where_the_model_is(model, image):
    """As after a prediction on a GPU; "meta" stands for one."""
    loaded = LoadedModel("moved", model.to("meta"), None, read_preprocessing(pretrained_folder(NAME)))
    assert loaded.device.type == "meta"

    def stop(_module, inputs):
        raise InterruptedError(str(inputs[0].device))

    model.register_forward_pre_hook(stop)
    with pytest.raises(InterruptedError, match="meta"):
        list(explain_files(loaded, [image]))
    with pytest.raises(InterruptedError, match="meta"):
        create_app(replace(loaded, model=Foreign(model)))


def test_an_export_leaves_the_model_where_it_is(model, tmp_path, monkeypatch):
    loaded = LoadedModel("ours", model, None, read_preprocessing(pretrained_folder(NAME)))
    moved = []
    to_cpu = torch.nn.Module.cpu
    monkeypatch.setattr(torch.nn.Module, "cpu", lambda module: moved.append(module) or to_cpu(module))
    monkeypatch.setattr(LoadedModel, "device", torch.device("cuda"))
    export_model(loaded, tmp_path / "model.pt2", format="torch-export")
    assert moved
    assert all(each is not model for each in moved)
    model(torch.zeros(1, 3, 32, 32)).sum().backward()
