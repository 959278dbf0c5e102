"""Scenes as sets of images: every kind of split, windows against the cube, and what cannot be a set."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tcpvit.data import Augment, Batches, load_dataset
from tcpvit.data.scenes import SceneSplit, find_scene, fit_statistics, make_split, random_split

RANDOM = np.random.RandomState(0)
CUBE = RANDOM.rand(24, 26, 7).astype(np.float32)
LABELS = np.kron(RANDOM.randint(0, 4, (6, 13)), np.ones((4, 2), int)).astype(np.int32)


@pytest.fixture
def scene(tmp_path):
    np.save(tmp_path / "cube.npy", CUBE)
    np.save(tmp_path / "labels.npy", LABELS)
    return {"name": f"scene:{tmp_path / 'cube.npy'}", "labels": str(tmp_path / "labels.npy")}


def test_the_parts_hold_the_labelled_pixels_standardised_by_the_training_pixels(scene):
    splits = load_dataset(**scene, split="random", fraction=0.4, image_size=5, seed=3, classes=["a", "b", "c"])
    made = random_split(LABELS, window=5, seed=3, fraction=0.4, validation=0.2)
    pixels = CUBE[made.mask("train")]
    for name, code in (("train", "train"), ("val", "validation"), ("test", "test")):
        part = splits.parts()[name]
        batches = list(Batches(part, 50))
        windows, targets = torch.cat([windows for windows, _ in batches]), torch.cat([labels for _, labels in batches])
        assert part.image_shape == (7, 5, 5)
        assert part.classes == ("a", "b", "c")
        np.testing.assert_array_equal(targets.numpy() + 1, LABELS[made.mask(code)])
        expected = (CUBE[made.mask(code)] - pixels.mean(0)) / pixels.std(0)
        np.testing.assert_allclose(windows[:, :, 2, 2], expected, atol=1e-5)
        np.testing.assert_array_equal(part.pixels, made.pixels(code))


def test_a_batch_is_the_same_for_any_number_of_processes_and_any_start(scene):
    train = load_dataset(**scene, split="random").train
    options = {"augment": Augment(symmetry=True, noise=0.3), "shuffle": True, "seed": 1}
    whole = Batches(train, 8, **options)
    whole.set_epoch(2)
    halves = [Batches(train, 8, rank=rank, world_size=2, **options) for rank in (0, 1)]
    for half in halves:
        half.set_epoch(2, start=1)
    expected = list(whole)[1:]
    for (windows, targets), *parts in zip(expected, *halves, strict=True):
        assert torch.equal(windows, torch.cat([part[0] for part in parts]))
        assert torch.equal(targets, torch.cat([part[1] for part in parts]))


@pytest.mark.parametrize(
    "options",
    [
        {"image_size": 3},
        {"split": "disjoint", "share": 0.5, "cap": "none", "validation_by": "pixels", "image_size": 3},
        {"split": "random", "counts": 5},
        {"split": "random", "counts": {1: 5, 2: 6, 3: 7}, "val_fraction": 0.5},
    ],
)
def test_splits_by_option_carry_their_leakage(scene, options):
    splits = load_dataset(**scene, **options)
    (note, *_) = splits.notes
    kind = options.get("split", "disjoint")
    assert note.startswith(f"{kind} split of seed 0: {'0.0 %' if kind == 'disjoint' else ''}")
    assert ("so that accuracies are too high" in note) == (kind == "random")
    assert splits.val is not splits.test
    assert set(splits.train.indices.tolist()).isdisjoint(splits.val.indices.tolist())


def test_a_saved_split_and_masks(scene, tmp_path):
    made = random_split(LABELS, window=5, seed=1, fraction=0.5)
    made.save(tmp_path / "split.npz")
    splits = load_dataset(**scene, split=str(tmp_path / "split.npz"))
    assert splits.train.indices.tolist() == made.mask("train").ravel().nonzero()[0].tolist()
    assert splits.train.window == 5
    assert splits.val is splits.test  # it has no validation pixels
    assert load_dataset(**scene, split=str(tmp_path / "split.npz"), image_size=3).train.window == 3
    for part in ("train", "test"):
        np.save(tmp_path / f"{part}.npy", made.mask(part).astype(np.uint8))
    masks = {"train_mask": str(tmp_path / "train.npy"), "test_mask": str(tmp_path / "test.npy")}
    by_masks = load_dataset(**scene, split="masks", **masks)
    assert by_masks.test.indices.tolist() == splits.test.indices.tolist()
    assert len(by_masks.train) + len(by_masks.val) == len(splits.train)
    assert by_masks.notes[0].startswith("masks split")


def test_classes_that_miss_a_part_are_named():
    scene = find_scene("materials")
    split = make_split(scene)
    absent = [
        name for name, count in zip(scene.class_names, split.counts(scene.labels)["test"], strict=True) if not count
    ]
    assert absent
    assert f"no test pixels of {', '.join(absent)}: left out of the average accuracy" in load_dataset("materials").notes


def test_transductive_statistics_are_said(scene):
    splits = load_dataset(**scene, transductive=True, image_size=3)
    np.testing.assert_allclose(splits.train.mean, CUBE.reshape(-1, 7).mean(0), rtol=1e-5)
    assert "test pixels included (transductive)" in splits.notes[-1]
    assert "transductive" not in " ".join(load_dataset(**scene, image_size=3).notes)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"split": "rnadom"}, "did you mean 'random'"),
        ({"split": "disjoint", "fraction": 0.1}, "fraction is an option of split=random, but the split is disjoint"),
        ({"split": "random", "fraction": 0.1, "counts": 5}, "either fraction= or counts="),
        ({"split": "random", "counts": {1: 5}}, "no number for class 2"),
        ({"split": "masks"}, "needs the options train_mask and test_mask"),
        ({}, "has no test pixels; take a smaller window or share, or a random split"),
        ({"image_size": 4}, "odd width"),
        ({"image_size": 25}, "25×25 pixels is wider than cube, which has 24×26"),
        ({"labels": None}, "has no labels"),
        ({"lables": "x"}, "did you mean 'labels'"),
        ({"classes": ["a", "b"]}, "label 3 has no name"),
        ({"share": 1.5}, "share should be"),
        ({"labels": "/nowhere/labels.npy"}, "No such file"),
        ({"split": "/nowhere/split.npz"}, "No such file"),
    ],
)
def test_options_that_make_no_sense(scene, options, sentence):
    with pytest.raises((ValueError, OSError), match=sentence):
        load_dataset(**{**scene, **options})


def test_a_split_of_another_scene_and_one_that_is_too_narrow(scene, tmp_path):
    other = random_split(LABELS[::-1], window=5, seed=0, fraction=0.5)
    other.save(tmp_path / "other.npz")
    with pytest.raises(ValueError, match="made for another label map"):
        load_dataset(**scene, split=str(tmp_path / "other.npz"))
    own = make_split(find_scene("materials"), image_size=3)
    own.save(tmp_path / "narrow.npz")
    with pytest.raises(ValueError, match="keeps windows of 3 pixels apart, 5 is wider; make it for 5"):
        load_dataset("materials", split=str(tmp_path / "narrow.npz"), image_size=5)
    with pytest.raises(ValueError, match="says which pixels validate"):
        load_dataset("materials", split=str(tmp_path / "narrow.npz"), val_fraction=0.1)


def test_windows_with_values_that_are_no_numbers_are_named(scene, tmp_path):
    cube = CUBE.copy()
    test = load_dataset(**scene, image_size=1).test
    row, column = test.pixels[0]
    cube[row, column, 3] = np.nan
    np.save(tmp_path / "cube.npy", cube)
    with pytest.raises(ValueError, match=f"around row {row}, column {column} of cube holds values that are no finite"):
        list(Batches(load_dataset(**scene, image_size=1).test, 10))


def test_a_mapped_scene_is_not_read_as_a_whole(scene):
    assert isinstance(load_dataset(**scene, image_size=3).train.scene.data, np.memmap)


def test_a_saved_split_is_the_one_that_was_made(tmp_path):
    scene = find_scene("materials")
    made = make_split(scene, "random", seed=2)
    again = SceneSplit.load(made.save(tmp_path / "split.npz"))
    np.testing.assert_array_equal(fit_statistics(scene, again).mean, fit_statistics(scene, made).mean)
