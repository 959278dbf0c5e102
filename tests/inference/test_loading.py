"""What `load_model` makes of saved folders: float32 models, whose record fits them."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import tcpvit
from tcpvit.inference import load_model, predict_files
from tcpvit.inference.explain import explain_files
from tcpvit.models.zoo import pretrained_folder

NAME = "tcp_vit_cifar_plus"


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
