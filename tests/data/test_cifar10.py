from __future__ import annotations

import pickle
import shutil

import numpy as np
import pytest
import torch
from published import write_cifar

from tcpvit.data import cifar10, load_dataset


@pytest.mark.parametrize("binary", [True, False])
def test_reads_both_releases(tmp_path, binary):
    images, labels = write_cifar(tmp_path, binary=binary)
    splits = load_dataset("cifar10", tmp_path)
    assert np.array_equal(splits.train.images.numpy(), images[:100])
    assert np.array_equal(splits.test.images.numpy(), images[100:])
    assert splits.train.labels.tolist() == labels[:100].tolist()
    assert splits.val is splits.test
    assert splits.train.classes[0] == "airplane"
    assert len(splits.train.classes) == 10


def test_the_test_writes_what_torchvision_reads(tmp_path):
    """The pickles of these tests are pickles to an ordinary reader too."""
    images, labels = write_cifar(tmp_path, binary=False)
    with (tmp_path / "cifar-10-batches-py" / "data_batch_2").open("rb") as file:
        content = pickle.load(file, encoding="latin1")
    assert np.array_equal(content["data"].reshape(-1, 3, 32, 32), images[20:40])
    assert content["labels"] == labels[20:40].tolist()


@pytest.mark.parametrize("place", ["", "cifar10", "cifar-10-batches-bin"])
def test_is_found_where_people_keep_it(tmp_path, place):
    write_cifar(tmp_path / ("cifar10" if place == "cifar10" else ""), binary=True)
    root = tmp_path if place != "cifar-10-batches-bin" else tmp_path / place
    assert len(load_dataset("cifar10", root).train) == 100


def test_paper_subset_is_reproducible_and_saved(tmp_path):
    write_cifar(tmp_path, 2_600, binary=True)
    splits = load_dataset("cifar10", tmp_path, split="paper", seed=3)
    again = load_dataset("cifar10", tmp_path, split="paper", seed=3)
    other = load_dataset("cifar10", tmp_path, split="paper", seed=4)
    assert (len(splits.train), len(splits.test)) == (10_000, 2_000)
    assert splits.indices() == again.indices()
    assert splits.indices() != other.indices()
    assert torch.bincount(splits.train.labels).tolist() == [1000] * 10  # stratified
    saved = splits.indices()["train"]
    whole = load_dataset("cifar10", tmp_path)
    assert saved["source"] == "cifar10/train"
    assert torch.equal(whole.train.images[torch.tensor(saved["indices"])], splits.train.images)
    free = load_dataset("cifar10", tmp_path, split="paper", stratified=False)
    assert torch.bincount(free.train.labels).tolist() != [1000] * 10


def test_a_cut_file_is_named(tmp_path):
    write_cifar(tmp_path, binary=True)
    path = tmp_path / "cifar-10-batches-bin" / "data_batch_3.bin"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ValueError, match=r"data_batch_3\.bin has .* expected a multiple of 3,073"):
        load_dataset("cifar10", tmp_path)


def test_a_label_outside_the_classes_is_named(tmp_path):
    write_cifar(tmp_path, binary=True)
    path = tmp_path / "cifar-10-batches-bin" / "data_batch_1.bin"
    raw = bytearray(path.read_bytes())
    raw[3073 * 7] = 10
    path.write_bytes(raw)
    with pytest.raises(ValueError, match=r"label 7 holds 10, outside the 10 classes 0\.\.9"):
        load_dataset("cifar10", tmp_path)


def test_check_tells_good_from_bad(tmp_path):
    write_cifar(tmp_path, binary=True)
    folder = tmp_path / "cifar-10-batches-bin"
    (folder / "test_batch.bin").unlink()
    checks = {check.file: check for check in cifar10.check(folder)}
    assert not any(check.ok for check in checks.values())
    assert checks["test_batch.bin"].detail == "missing"
    assert "differs from the published md5" in checks["data_batch_1.bin"].detail


@pytest.mark.slow
def test_real_files(real_cifar10):
    folder = real_cifar10 / "cifar-10-batches-bin"
    assert all(check.ok for check in cifar10.check(folder))
    splits = load_dataset("cifar10", real_cifar10)
    assert splits.train.images.shape == (50_000, 3, 32, 32)
    assert torch.bincount(splits.train.labels).tolist() == [5_000] * 10
    assert torch.bincount(splits.test.labels).tolist() == [1_000] * 10
    pixels = splits.train.images.float() / 255
    assert [round(x, 4) for x in pixels.mean((0, 2, 3)).tolist()] == list(cifar10.MEAN)
    assert [round(x, 4) for x in pixels.std((0, 2, 3)).tolist()] == list(cifar10.STD)

    shutil.rmtree(folder)  # the python release is left
    pickled = load_dataset("cifar10", real_cifar10)
    assert torch.equal(pickled.train.images, splits.train.images)
    assert torch.equal(pickled.test.labels, splits.test.labels)
