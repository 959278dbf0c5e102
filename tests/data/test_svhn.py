from __future__ import annotations

import numpy as np
import pytest
import torch
from published import write_svhn
from scipy.io import savemat

from tcpvit.data import load_dataset, svhn


def test_reads_images_and_labels(tmp_path):
    images, labels = write_svhn(tmp_path / "svhn", "train", 40)
    held_out, _ = write_svhn(tmp_path / "svhn", "test", 20, seed=1)
    splits = load_dataset("svhn", tmp_path)
    assert np.array_equal(splits.train.images.numpy(), images)
    assert splits.train.labels.tolist() == labels.tolist()  # the stored 10 is the digit 0
    assert np.array_equal(splits.test.images.numpy(), held_out)


def test_extra_is_added_to_train(tmp_path):
    write_svhn(tmp_path, "train", 40)
    write_svhn(tmp_path, "test", 20)
    extra, _ = write_svhn(tmp_path, "extra", 30, seed=2)
    splits = load_dataset("svhn", tmp_path, extra=True)
    assert len(splits.train) == 70
    assert splits.train.source == "svhn/train+extra"
    assert np.array_equal(splits.train.images[40:].numpy(), extra)
    assert len(svhn.check(tmp_path)) == 3


def test_wrong_files_are_named(tmp_path):
    write_svhn(tmp_path, "train", 10)
    write_svhn(tmp_path, "test", 10)
    savemat(tmp_path / "test_32x32.mat", {"X": np.zeros((32, 32, 1, 10), np.uint8), "y": np.ones((10, 1))})
    with pytest.raises(ValueError, match=r"test_32x32\.mat: X should be uint8 \(32, 32, 3, N\)"):
        load_dataset("svhn", tmp_path)
    (tmp_path / "test_32x32.mat").write_bytes(b"<html>404</html>")
    with pytest.raises(ValueError, match=r"test_32x32\.mat is not one of SVHN's"):
        load_dataset("svhn", tmp_path)


def test_labels_count(tmp_path):
    write_svhn(tmp_path, "train", 50)
    write_svhn(tmp_path, "test", 20)
    assert torch.bincount(load_dataset("svhn", tmp_path).train.labels).tolist() == [5] * 10
