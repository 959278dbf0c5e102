"""What `load_model` makes of saved folders: float32 models, whose record fits them."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import tcpvit
from tcpvit.inference import LoadedModel, load_model, predict_files
from tcpvit.inference.explain import explain_files
from tcpvit.inference.masks import segment_image
from tcpvit.inference.serve import create_app
from tcpvit.inference.volumes import segment_volume
from tcpvit.models.zoo import pretrained_folder
from tcpvit.training.preprocessing import read_preprocessing

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
