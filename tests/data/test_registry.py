from __future__ import annotations

import hashlib
import io
import tarfile
from dataclasses import replace

import pytest
import torch
from published import write_cifar, write_svhn

from tcpvit.data import Splits, download_dataset, files, list_datasets, load_dataset, registry
from tcpvit.data.files import Resource
from tcpvit.data.scenes import list_scenes


def test_every_listed_set_can_be_asked_for(tmp_path):
    names = {*registry.MADE, *registry.SOURCES, *list_scenes()}
    names |= {f"{kind}:PATH" for kind in ("folder", "scene", "volumes", "clips")}
    assert names == set(list_datasets())
    for name in registry.SOURCES:
        with pytest.raises(
            FileNotFoundError, match=rf"{name} is not in .*: fetch it( \([\d,]+ MB\))? with `tcpvit data"
        ):
            load_dataset(name, tmp_path)
    for name in list_scenes()[1:]:
        with pytest.raises(FileNotFoundError, match=r"is not under .*: (download|it must be requested)"):
            load_dataset(name, tmp_path)


@pytest.mark.parametrize(
    ("name", "nearest"), [("cifar", "cifar10"), ("oxford_pet", "oxford-pet"), ("digits-on-photo", "digits-on-photos")]
)
def test_an_unknown_set_is_answered_with_the_nearest(name, nearest):
    with pytest.raises(ValueError, match=f"there is no set '{name}'; did you mean '{nearest}'"):
        load_dataset(name)


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("digits-on-photos", {"levle": "easy"}, "no option 'levle'; did you mean 'level'"),
        ("digits-on-photos", {"split": "paper"}, "`split` does not apply"),
        ("cifar10", {"extra": True}, "cifar10 has no option 'extra'. Known: none"),
        ("cifar10", {"split": "mine"}, 'split as "official" or "paper", got \'mine\''),
        ("cifar10", {"folder": "x"}, "no option 'folder'"),
        ("cifar10", {"train_size": 1000}, "cannot draw 1,000 different images out of 100"),
    ],
)
def test_wrong_options_are_named(tmp_path, name, options, complaint):
    write_cifar(tmp_path, binary=True)
    with pytest.raises(ValueError, match=complaint):
        load_dataset(name, tmp_path, **options)


def test_the_environment_variable(tmp_path, monkeypatch):
    write_cifar(tmp_path / "sets", binary=True)
    monkeypatch.setenv("TCPVIT_DATA", str(tmp_path / "sets"))
    assert len(load_dataset("cifar10").train) == 100


def test_sizes_and_held_out_fractions(tmp_path):
    write_cifar(tmp_path, binary=True)
    splits = load_dataset("cifar10", tmp_path, val_fraction=0.2, train_size=40, val_size=10)
    assert [len(part) for part in splits.parts().values()] == [40, 10, 10]
    assert splits.val.source == splits.train.source == "cifar10/train"
    assert splits.test.source == "cifar10/test"
    assert not set(splits.train.indices.tolist()) & set(splits.val.indices.tolist())
    assert torch.bincount(splits.train.labels).tolist() == [4] * 10
    both = load_dataset("cifar10", tmp_path, train_size=5, val_size=10)
    assert both.val is both.test
    assert (len(both.train), len(both.val)) == (5, 10)


def test_any_set_can_be_resized(tmp_path):
    write_cifar(tmp_path, binary=True)
    assert load_dataset("cifar10", tmp_path, image_size=48).train.image_shape == (3, 48, 48)
    assert load_dataset("cifar10", tmp_path, image_size=[24, 48]).train.image_shape == (3, 24, 48)


@pytest.mark.parametrize("name", ["folder:mine", "solid-digits", "moving-digits", "materials"])
def test_a_set_that_makes_square_images_takes_one_size(tmp_path, name):
    with pytest.raises(ValueError, match=r"image_size should be a whole number of at least 1.*, got \[32, 48\]"):
        load_dataset(name, tmp_path, image_size=[32, 48])


def packed_cifar(tmp_path) -> bytes:
    write_cifar(tmp_path / "original", binary=True)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        tar.add(tmp_path / "original" / "cifar-10-batches-bin", "cifar-10-batches-bin")
    return buffer.getvalue()


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """A download that copies from memory, and says how often it was asked."""
    contents: dict[str, bytes] = {}
    asked = []

    def fetch(resource, folder, progress=None):
        asked.append(resource.filename)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / resource.filename).write_bytes(contents[resource.filename])
        return folder / resource.filename

    monkeypatch.setattr(files, "download", fetch)
    return contents, asked


def test_download_unpacks_and_removes_the_archive(tmp_path, offline):
    contents, asked = offline
    contents["cifar-10-binary.tar.gz"] = packed_cifar(tmp_path)
    root = tmp_path / "root"
    splits = load_dataset("cifar10", root, download=True)
    assert isinstance(splits, Splits)
    assert len(splits.train) == 100
    assert [item.name for item in root.iterdir()] == ["cifar-10-batches-bin"]
    download_dataset("cifar10", root)
    assert asked == ["cifar-10-binary.tar.gz"]  # once


def test_download_of_the_optional_part(tmp_path, offline):
    contents, asked = offline
    for part in ("train", "test", "extra"):
        write_svhn(tmp_path / "original", part, 10)
        contents[f"{part}_32x32.mat"] = (tmp_path / "original" / f"{part}_32x32.mat").read_bytes()
    download_dataset("svhn", tmp_path / "root")
    assert asked == ["train_32x32.mat", "test_32x32.mat"]
    (tmp_path / "root" / "svhn" / "test_32x32.mat").unlink()
    download_dataset("svhn", tmp_path / "root", optional=True)  # the real download leaves good files alone
    assert asked[2:] == ["train_32x32.mat", "test_32x32.mat", "extra_32x32.mat"]
    assert len(load_dataset("svhn", tmp_path / "root", extra=True).train) == 20


def test_an_archive_of_something_else(tmp_path, offline, monkeypatch):
    contents, _ = offline
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz"):
        pass
    contents["other.tar.gz"] = buffer.getvalue()
    wrong = Resource("https://example.org/other.tar.gz", hashlib.md5(buffer.getvalue()).hexdigest(), 1)
    monkeypatch.setitem(registry.SOURCES, "cifar10", replace(registry.SOURCES["cifar10"], resources=(wrong,)))
    with pytest.raises(ValueError, match="do not hold what was expected"):
        download_dataset("cifar10", tmp_path)


def test_unpacking_keeps_what_is_needed():
    stl10, pets = registry.SOURCES["stl10"], registry.SOURCES["oxford-pet"]
    assert stl10.is_needed("stl10_binary/train_X.bin")
    assert not stl10.is_needed("stl10_binary/unlabeled_X.bin")
    assert pets.is_needed("annotations/trimaps/pug_1.png")
    assert not pets.is_needed("annotations/trimaps/._pug_1.png")
    assert not pets.is_needed("annotations/xmls/pug_1.xml")


def test_an_interrupted_unpacking_keeps_the_archives(tmp_path, offline, monkeypatch):
    contents, _ = offline
    contents["cifar-10-binary.tar.gz"] = packed_cifar(tmp_path)

    def full_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "_write_member", full_disk)
    with pytest.raises(OSError, match="No space left"):
        download_dataset("cifar10", tmp_path / "root")
    assert [item.name for item in (tmp_path / "root").iterdir()] == ["cifar-10-binary.tar.gz"]
