from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from published import write_classes, write_masks

from tcpvit.data import Augment, Batches, ImageSet, load_dataset
from tcpvit.data.augment import normalise

EVERYTHING = Augment(shift=2, flip=0.5, zoom=0.5, colour=0.3, erase=0.3, mixup=0.4, cutmix=1.0)


def make(number: int = 50, size: int = 12, *, masks: bool = False) -> ImageSet:
    images = torch.randint(0, 256, (number, 3, size, size), dtype=torch.uint8)
    targets = (images[:, 0] > 127).to(torch.uint8) if masks else torch.arange(number) % 4
    return ImageSet(images, targets, classes=("a", "b") if masks else tuple("abcd"), source="made")


def same(a, b) -> bool:
    a, b = list(a), list(b)
    return len(a) == len(b) and all(
        torch.equal(x, u) and torch.equal(y, v) for (x, y), (u, v) in zip(a, b, strict=True)
    )


def test_plain_batches_are_the_set_in_order():
    data = make()
    batches = Batches(data, 16)
    assert len(batches) == 4
    images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    assert torch.equal(labels, data.targets)
    torch.testing.assert_close(images, normalise(data.images.float(), data.mean, data.std))
    assert images.dtype == torch.float32
    assert labels.dtype == torch.int64


def test_each_epoch_is_another_permutation():
    batches = Batches(make(), 16, shuffle=True, seed=3)
    orders = []
    for epoch in range(3):
        batches.set_epoch(epoch)
        orders.append(batches.order().tolist())
        assert sorted(orders[-1]) == list(range(50))
    assert orders[0] != orders[1] != orders[2]
    batches.set_epoch(1)
    assert batches.order().tolist() == orders[1]


def test_drop_last():
    assert [len(x) for x, _ in Batches(make(), 16, drop_last=True)] == [16, 16, 16]
    assert [len(x) for x, _ in Batches(make(), 16)] == [16, 16, 16, 2]


@pytest.mark.parametrize("masks", [False, True])
def test_batches_are_a_function_of_seed_epoch_and_number(masks):
    augment = Augment(shift=2, flip=0.5, zoom=0.5, colour=0.3) if masks else EVERYTHING
    data = make(masks=masks)
    one, two = (Batches(data, 8, augment=augment, shuffle=True, seed=7) for _ in range(2))
    other = Batches(data, 8, augment=augment, shuffle=True, seed=8)
    one.set_epoch(4)
    list(two)  # an epoch that the other did not see
    torch.rand(10)
    two.set_epoch(4)
    first, second = list(one), list(two)
    assert same(first, second)
    other.set_epoch(4)
    assert not same(first, list(other))
    two.set_epoch(4, start=3)
    assert same(first[3:], list(two))


def test_the_global_generator_is_left_alone():
    data = make()
    before = torch.get_rng_state()
    list(Batches(data, 8, augment=EVERYTHING, shuffle=True))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("world_size", [2, 3, 4])
@pytest.mark.parametrize("batch_size", [16, 18, 25])
def test_ranks_share_the_batches_of_one_process(world_size, batch_size):
    data = make(50)
    options = {"augment": EVERYTHING, "shuffle": True, "seed": 1, "drop_last": True}
    whole = list(Batches(data, batch_size, **options))
    ranks = [list(Batches(data, batch_size, rank=rank, world_size=world_size, **options)) for rank in range(world_size)]
    joined = [tuple(torch.cat(parts) for parts in zip(*batch, strict=True)) for batch in zip(*ranks, strict=True)]
    assert same(whole, joined)


@pytest.mark.parametrize("number", [49, 50, 63])
def test_ranks_cover_an_uneven_set_once_and_in_step(number):
    data = make(number)
    ranks = [list(Batches(data, 16, rank=rank, world_size=4)) for rank in range(4)]
    assert {len(batches) for batches in ranks} == {4}
    seen = torch.cat([labels for batches in ranks for _, labels in batches])
    assert sorted(seen.tolist()) == sorted(data.targets.tolist())


def test_mixed_labels_are_probabilities():
    for _, targets in Batches(make(), 16, augment=Augment(mixup=0.8, cutmix=1.0), shuffle=True):
        assert targets.shape[1] == 4
        torch.testing.assert_close(targets.sum(1), torch.ones(len(targets)))


def test_zoomed_masks_follow_their_images():
    """Masks are the bright half of the images, and remain so."""
    size = 32
    ramp = torch.linspace(0, 255, size).to(torch.uint8).expand(20, 3, size, size).contiguous()
    data = ImageSet(ramp, (ramp[:, 0] > 127).to(torch.uint8), classes=("dark", "bright"), source="made", mean=(0,) * 3,
                    std=(1,) * 3)  # fmt: skip
    for images, masks in Batches(data, 10, augment=Augment(zoom=0.3, flip=0.5)):
        wrong = (images[:, 0] > 127.5 / 255) != (masks == 1)
        assert wrong.float().mean() < 0.5 / size  # the pixel at the edge may fall to either side


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"batch_size": 0}, "batch_size ≥ 1"),
        ({"batch_size": 8, "rank": 2, "world_size": 2}, "0 ≤ rank < world_size"),
        ({"batch_size": 3, "rank": 0, "world_size": 4}, "4 ranks cannot share a batch of 3; make it at least 4"),
        ({"batch_size": 6, "world_size": 4, "augment": Augment(mixup=1)}, "4 ranks .* of 6; make it at least 8"),
        ({"batch_size": 64, "drop_last": True}, "has 50 images, fewer than one batch of 64"),
        ({"batch_size": 8, "seed": -1}, "seed ≥ 0"),
    ],
)
def test_wrong_options_are_named(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        Batches(make(), **options)


def test_an_empty_set_is_named():
    with pytest.raises(ValueError, match="made holds no images"):
        Batches(make().subset(torch.tensor([], dtype=torch.int64)), 8)


@pytest.mark.parametrize("workers", [0, 2])
def test_streams_with_workers(tmp_path, workers):
    """However many processes decode, batches are the same; the second epoch uses the same workers."""
    write_classes(tmp_path, {"a": 15, "b": 15}, size=(24, 20))
    files = load_dataset(f"folder:{tmp_path}", stream=True, image_size=16).train
    augment = Augment(shift=2, flip=0.5, zoom=0.4)
    state = torch.get_rng_state()
    batches = Batches(files, 8, augment=augment, shuffle=True, workers=workers)
    reference = Batches(files, 8, augment=augment, shuffle=True, workers=0)
    for epoch in (0, 1):
        batches.set_epoch(epoch)
        reference.set_epoch(epoch)
        assert same(list(batches), list(reference))
    batches.set_epoch(1, start=2)
    assert len(list(batches)) == len(batches) - 2
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.filterwarnings("ignore:skipped")
def test_a_batch_of_corrupt_images_is_empty_and_an_epoch_of_them_an_error(tmp_path):
    for part in ("train", "val"):
        write_masks(tmp_path / part, {f"p{i}": np.eye(8) for i in range(3)})
    files = sorted((tmp_path / "train" / "images").iterdir())
    files[1].write_bytes(b"broken")
    options = {"stream": True, "image_size": 8, "on_bad": "skip", "classes": ["a", "b"]}
    batches = Batches(load_dataset(f"folder:{tmp_path}", **options).train, 1, workers=0)
    assert [tuple(masks.shape) for _, masks in batches] == [(1, 8, 8), (0, 8, 8), (1, 8, 8)]
    ranks = [Batches(batches.data, 3, workers=0, rank=rank, world_size=3) for rank in range(3)]
    assert [len(masks) for rank in ranks for _, masks in rank] == [1, 0, 1]  # each as many batches as the others
    for file in files:
        file.write_bytes(b"broken")
    with pytest.raises(ValueError, match=r"^3 of 3 files cannot be used: .*/train is left: repair them"):
        list(batches)


def test_streaming_names_and_skips_corrupt_images(tmp_path):
    write_classes(tmp_path, {"a": 10, "b": 10})
    bad = tmp_path / "b" / "4.png"
    bad.write_bytes(b"broken")
    options = {"stream": True, "image_size": 8, "val_fraction": 0.1}
    with pytest.raises(ValueError, match=r"1 of 20 files cannot be used: .*4\.png"):
        load_dataset(f"folder:{tmp_path}", **options)
    whole = (tmp_path / "b" / "5.png").read_bytes()
    bad.write_bytes(whole[: len(whole) // 2])  # its head is good
    stopping = load_dataset(f"folder:{tmp_path}", **options)
    with pytest.raises(ValueError, match=r"1 of \d+ files cannot be used: .*4\.png"):
        [list(Batches(part, 6, workers=0)) for part in (stopping.train, stopping.val)]

    skipping = load_dataset(f"folder:{tmp_path}", on_bad="skip", **options)
    seen, skipped = 0, []
    for part in (skipping.train, skipping.val):
        batches = Batches(part, 6, augment=Augment(shift=1), workers=0)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):  # met twice, told once
                seen += sum(len(labels) for _, labels in batches)
        skipped += batches.skipped
        assert len(caught) == len(batches.skipped)
    assert seen == 2 * 19
    assert len(skipped) == 1
    assert str(bad) in skipped[0]
