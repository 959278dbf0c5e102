from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from published import write_stl10

from tcpvit.data import load_dataset, stl10


def test_reads_columns_first(tmp_path):
    images, labels = write_stl10(tmp_path, "train", 20)
    held_out, _ = write_stl10(tmp_path, "test", 30, seed=1)
    splits = load_dataset("stl10", tmp_path, split="official", image_size=96)
    assert np.array_equal(splits.train.images.numpy(), images)
    assert np.array_equal(splits.test.images.numpy(), held_out)
    assert splits.train.labels.tolist() == labels.tolist()


def test_is_resized_to_32_as_pillow_would(tmp_path):
    images, _ = write_stl10(tmp_path, "train", 3)
    write_stl10(tmp_path, "test", 3)
    small = load_dataset("stl10", tmp_path, split="official").train.images
    assert small.shape == (3, 3, 32, 32)
    for ours, original in zip(small, images, strict=True):
        pillow = Image.fromarray(original.transpose(1, 2, 0)).resize((32, 32), Image.Resampling.BILINEAR)
        difference = ours.int() - torch.from_numpy(np.asarray(pillow).copy()).permute(2, 0, 1).int()
        assert difference.abs().max() <= 1  # Pillow rounds after each direction


def test_paper_pools_train_and_test(tmp_path, monkeypatch):
    write_stl10(tmp_path, "train", 50)
    write_stl10(tmp_path, "test", 80)
    monkeypatch.setattr(stl10, "PAPER_TRAIN", 100)
    monkeypatch.setattr(stl10, "PAPER_TEST", 20)
    splits = load_dataset("stl10", tmp_path)  # the paper's split is the default
    assert (len(splits.train), len(splits.test)) == (100, 20)
    assert splits.train.source == splits.test.source == "stl10/train+test"
    assert not set(splits.train.indices.tolist()) & set(splits.test.indices.tolist())
    assert torch.bincount(splits.test.labels).tolist() == [2] * 10


def test_too_few_for_the_paper(tmp_path):
    write_stl10(tmp_path, "train", 50)
    write_stl10(tmp_path, "test", 80)
    with pytest.raises(ValueError, match=r"cannot draw 10,000 \+ 2,000 different images out of 130"):
        load_dataset("stl10", tmp_path)


def test_a_cut_file_is_named(tmp_path):
    write_stl10(tmp_path, "train", 5)
    write_stl10(tmp_path, "test", 5)
    path = tmp_path / "stl10_binary" / "test_X.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"test_X\.bin has .* expected 27,648 for each of the 5 labels"):
        load_dataset("stl10", tmp_path)


def test_resizing_agrees_with_one_call(tmp_path):
    """Chunks do not show."""
    from tcpvit.data.image_set import resize_images

    images = torch.randint(0, 256, (7, 3, 20, 20), dtype=torch.uint8)
    whole = F.interpolate(images.float(), size=(9, 9), mode="bilinear", antialias=True, align_corners=False)
    assert torch.equal(resize_images(images, 9, chunk=3), whole.round().clamp(0, 255).to(torch.uint8))
