from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from published import write_pets

from tcpvit.data import load_dataset, oxford_pet

EMPTY = [
    "Egyptian_Mau_162",
    "Egyptian_Mau_165",
    "Egyptian_Mau_196",
    "Egyptian_Mau_20",
    "Persian_259",
    "japanese_chin_199",
    "keeshond_7",
    "leonberger_18",
    "miniature_pinscher_14",
    "saint_bernard_108",
    "saint_bernard_15",
    "saint_bernard_60",
    "saint_bernard_78",
    "wheaten_terrier_195",
]


def test_trimaps_become_background_pet_and_ignored(tmp_path):
    write_pets(tmp_path)
    pets = load_dataset("oxford-pet", tmp_path, image_size=40).train
    assert pets.classes == ("background", "pet")
    assert pets.task == "segmentation"
    mask = pets.targets[0]
    assert mask[:, :16].unique().tolist() == [1]
    assert mask[:, 16:20].unique().tolist() == [255]
    assert mask[:, 20:].unique().tolist() == [0]


def test_paper_splits_all_80_to_20_by_seed(tmp_path):
    write_pets(tmp_path)
    splits = load_dataset("oxford-pet", tmp_path, image_size=8)
    train, test = splits.train.indices.tolist(), splits.test.indices.tolist()
    assert (len(train), len(test)) == (16, 4)
    assert sorted(train + test) == list(range(20))
    assert load_dataset("oxford-pet", tmp_path, image_size=8, seed=1).train.indices.tolist() != train


def test_official_lists(tmp_path):
    write_pets(tmp_path)
    splits = load_dataset("oxford-pet", tmp_path, split="official", image_size=8)
    assert splits.train.indices.tolist() == list(range(10))
    assert splits.test.indices.tolist() == list(range(10, 20))


@pytest.mark.parametrize("drop", [False, True])
def test_trimaps_without_pet_are_reported_and_can_be_left_out(tmp_path, drop):
    write_pets(tmp_path, without_pet=(3, 14))
    splits = load_dataset("oxford-pet", tmp_path, split="official", image_size=8, drop_empty=drop)
    assert len(splits.train) == len(splits.test) == (9 if drop else 10)
    assert (3 in splits.train.indices.tolist()) is not drop
    verb = "left out" if drop else "kept"
    assert any("Birman_3" in note and verb in note for note in splits.train.notes)
    assert any("pug_14" in note for note in splits.notes)


def test_a_broken_pair_stops_or_is_skipped(tmp_path):
    folder = write_pets(tmp_path)
    (folder / "images" / "pug_2.jpg").write_bytes(b"not an image")
    Image.fromarray(np.full((5, 5), 1, np.uint8)).save(folder / "annotations" / "trimaps" / "pug_4.png")
    with pytest.raises(ValueError, match=r"2 of 20 files cannot be used: .*pug_2\.jpg .*pug_4\.png \(5×5 pixels"):
        load_dataset("oxford-pet", tmp_path, split="official", image_size=8)
    skipping = load_dataset("oxford-pet", tmp_path, split="official", image_size=8, on_bad="skip")
    assert skipping.train.indices.tolist() == [0, 1, 3, 5, 6, 7, 8, 9]
    assert any("skipped" in note for note in skipping.notes)


def test_check_counts(tmp_path):
    folder = write_pets(tmp_path, without_pet=(5,))
    checks = {check.file: check for check in oxford_pet.check(folder)}
    assert not checks["annotations/list.txt"].ok  # 20 of 7,349
    assert checks["images, trimaps"].ok
    assert checks["images, trimaps"].detail == "20 pairs read, 1 trimaps show no pet"
    (folder / "images" / "pug_0.jpg").unlink()
    assert not oxford_pet.check(folder)[-1].ok


def test_a_name_outside_the_list_is_named(tmp_path):
    folder = write_pets(tmp_path)
    (folder / "annotations" / "test.txt").write_text("sphynx_1 1 1 1\n")
    with pytest.raises(ValueError, match=r"sphynx_1 of test\.txt is not in list\.txt"):
        load_dataset("oxford-pet", tmp_path, split="official", image_size=8)


@pytest.mark.slow
def test_real_pets(real_pets):
    assert [len(rows) for rows in oxford_pet._rows(real_pets, "paper", 0)] == [5_879, 1_470]
    assert [len(rows) for rows in oxford_pet._rows(real_pets, "official", 0)] == [3_680, 3_669]
    splits = load_dataset("oxford-pet", real_pets, drop_empty=True)
    assert len(splits.train) + len(splits.test) == 7_349 - 14
    assert splits.train.images.shape[1:] == (3, 128, 128)
    noted = " ".join(splits.notes)
    assert all(name in noted for name in EMPTY)
    masks = torch.cat([splits.train.targets, splits.test.targets])
    shares = [(masks == value).float().mean().item() for value in (0, 1, 255)]
    assert [round(share, 2) for share in shares] == [0.58, 0.30, 0.12]  # background, pet, border
