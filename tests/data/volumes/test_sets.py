"""Sets of volumes and clips: made on the spot, MedMNIST3D files, and augmentation along three axes."""

import numpy as np
import pytest
import torch
from published import write_classes

from tcpvit.data import Augment, Batches, load_dataset
from tcpvit.data.augment import normalise, shift_and_flip, shift_and_flip_depth
from tcpvit.data.image_set import same_images
from tcpvit.data.volumes import Volumes
from tcpvit.data.volumes.medmnist3d import SETS
from tcpvit.data.volumes.sets import RankedVolumes
from tcpvit.training.folder import RunFolder


def digits(**options):
    return load_dataset("moving-digits", sizes=(40, 20, 20), **options)


def test_digits_move_the_way_their_label_says():
    """The centre of what differs from the background, frame by frame."""
    part = digits(seed=3).train
    ink = (part.images[:, 0].float() - 128).abs()  # (N, T, H, W)
    weight = ink / ink.sum((2, 3), keepdim=True)
    place = torch.arange(32.0)
    x, y = (weight.sum(2) * place).sum(-1), (weight.sum(3) * place).sum(-1)  # (N, T)
    moved = torch.stack([x[:, -1] - x[:, 0], y[:, -1] - y[:, 0]], 1)
    expected = torch.tensor([[-1, 0], [1, 0], [0, -1], [0, 1]])[part.labels]
    assert (moved * expected).sum(1).min() > 3
    assert (moved * (1 - expected.abs())).abs().max() < 1
    assert part.labels.bincount().tolist() == [10] * 4


def test_polarity_is_an_exact_change_of_sign_and_comes_both_ways():
    part = digits().train
    values = normalise(part.images.float(), part.mean, part.std)
    strongest = values.flatten(1).gather(1, values.flatten(1).abs().argmax(1, keepdim=True))[:, 0]
    assert {-1.0, 1.0} == set(strongest.round().tolist())
    bright = digits(polarity="bright").train
    assert bright.images.min() == 128
    assert torch.equal((part.images.float() - 128).abs(), bright.images.float() - 128)


def test_made_sets_are_functions_of_their_seed():
    for name in ("moving-digits", "solid-digits"):
        first, again, other = (load_dataset(name, sizes=(8, 4, 4), seed=seed) for seed in (0, 0, 1))
        assert torch.equal(first.train.images, again.train.images)
        assert not torch.equal(first.train.images, other.train.images)


def test_solid_digits_have_masks_of_the_body():
    splits = load_dataset("solid-digits", sizes=(6, 4, 4), task="segmentation", noise=0.0)
    part = splits.train
    assert part.images.shape == (6, 1, 32, 32, 32)
    assert part.unit == "volumes"
    inside = part.images[:, 0][part.targets == 1].float()
    outside = part.images[:, 0][part.targets == 0].float()
    assert inside.min() > 120 > outside.max() - 10
    assert 0.01 < part.targets.float().mean() < 0.3


def write_medmnist(folder, name="nodulemnist3d", side=28, classes=2, **changes):
    rng = np.random.default_rng(0)
    arrays = {}
    for part, number in (("train", 12), ("val", 4), ("test", 6)):
        arrays[f"{part}_images"] = rng.integers(0, 255, (number, side, side, side), dtype=np.uint8)
        arrays[f"{part}_labels"] = (np.arange(number) % classes).astype(np.uint8)[:, None]
    folder.mkdir(exist_ok=True)
    np.savez_compressed(folder / f"{name}{'_64' if side == 64 else ''}.npz", **arrays | changes)


@pytest.mark.parametrize("name", SETS)
def test_the_six_sets_are_found_by_name(name, tmp_path):
    write_medmnist(tmp_path / "medmnist3d", name)
    splits = load_dataset(name, tmp_path)
    assert splits.train.images.shape == (12, 1, 28, 28, 28)
    assert isinstance(splits.test, RankedVolumes)
    assert splits.train.classes == SETS[name][0]
    half = load_dataset(name, tmp_path, image_size=14).train.images
    expected = (
        splits.train.images.float().unflatten(2, (14, 2)).unflatten(4, (14, 2)).unflatten(6, (14, 2)).mean((3, 5, 7))
    )
    assert (half.float() - expected).abs().max() <= 0.5


def test_another_size_of_a_medmnist_set_is_not_the_same_volumes(tmp_path):
    write_medmnist(tmp_path)
    before = load_dataset("nodulemnist3d", tmp_path, image_size=8).indices()
    write_medmnist(tmp_path, side=64)  # fetched later
    after = load_dataset("nodulemnist3d", tmp_path, image_size=8).indices()
    again = load_dataset("nodulemnist3d", tmp_path, image_size=8, size=28).indices()
    assert [found["train"]["names"] for found in (before, after)] == ["nodulemnist3d.npz", "nodulemnist3d_64.npz"]
    assert not same_images(before, after)
    assert same_images(before, again)
    unnamed = {part: {"source": about["source"], "indices": about["indices"]} for part, about in before.items()}
    assert same_images(unnamed, before)  # as earlier versions saved them, which did not say the size
    assert same_images(unnamed, after)
    (tmp_path / "run").mkdir()
    run = RunFolder(tmp_path / "run")
    run.check_data(unnamed)
    run.check_data(after)
    with pytest.raises(ValueError, match="the images are not those that"):
        run.check_data(before)


@pytest.mark.parametrize(("kind", "folders"), [("volumes", "ab"), ("volumes", ("images", "masks")), ("clips", "ab")])
def test_a_volume_or_clip_that_is_renamed_makes_another_set(kind, folders, tmp_path):
    for name in folders:
        for i in range(5):
            if kind == "volumes":
                (tmp_path / name).mkdir(exist_ok=True)
                np.save(tmp_path / name / f"{i}.npy", np.full((8, 8, 8), i % 2, np.uint8))
            else:
                write_classes(tmp_path / name, {f"{i}.npy": 8})  # frames

    def indices():
        return load_dataset(f"{kind}:{tmp_path}", image_size=8).indices()

    before = indices()
    for name in folders:
        (tmp_path / name / "0.npy").rename(tmp_path / name / "00.npy")
    after = indices()
    assert not same_images(before, after)
    assert [part["indices"] for part in before.values()] == [part["indices"] for part in after.values()]


def test_a_medmnist_file_is_checked_before_it_is_read(tmp_path):
    write_medmnist(tmp_path, val_images=np.zeros((4, 28, 28), np.uint8))
    with pytest.raises(ValueError, match="val_images"):
        load_dataset("nodulemnist3d", tmp_path)
    write_medmnist(tmp_path, train_labels=np.zeros((3, 1), np.uint8))
    with pytest.raises(ValueError, match="12 volumes and 3 labels"):
        load_dataset("nodulemnist3d", tmp_path)
    write_medmnist(tmp_path, train_images=np.array([object()]))
    with pytest.raises(ValueError, match="train_images"):
        load_dataset("nodulemnist3d", tmp_path)
    with pytest.raises(FileNotFoundError, match="take size=28"):
        load_dataset("nodulemnist3d", tmp_path, size=64)


def test_augmentation_of_a_volume_is_that_of_each_slice():
    volumes = torch.randint(0, 255, (5, 2, 4, 6, 6), dtype=torch.uint8)
    offsets, flip = torch.randint(0, 5, (5, 2)), torch.tensor([True, False, True, False, True])
    moved = shift_and_flip(volumes, 2, offsets, flip, fill=7)
    for t in range(4):
        assert torch.equal(moved[:, :, t], shift_and_flip(volumes[:, :, t], 2, offsets, flip, fill=7))
    turned = shift_and_flip_depth(volumes, torch.tensor([-1, 0, 1, 2, 3]), flip, fill=9)
    for i, (offset, mirrored) in enumerate(zip((-1, 0, 1, 2, 3), flip.tolist(), strict=True)):
        for t in range(4):
            source = (3 - t if mirrored else t) + offset
            expected = volumes[i, :, source] if 0 <= source < 4 else torch.full((2, 6, 6), 9, dtype=torch.uint8)
            assert torch.equal(turned[i, :, t], expected)


def test_batches_of_volumes_move_masks_along():
    masks = torch.randint(0, 2, (6, 4, 8, 8), dtype=torch.uint8)
    data = Volumes(masks[:, None] * 100, masks, classes=("a", "b"), source="made", mean=(0.0,), std=(100 / 255,))
    augment = Augment(shift=2, shift_depth=1, flip=0.5, flip_depth=0.5, symmetry=True)
    for images, targets in Batches(data, 3, augment=augment, shuffle=True):
        known = targets != 255
        assert images.shape == (3, 1, 4, 8, 8)
        torch.testing.assert_close(images[:, 0][known].round().long(), targets[known])


def test_air_and_not_water_comes_into_scans_for_any_number_of_ranks():
    scans = torch.randn(6, 1, 8, 8, 8) * 30 - 950  # Hounsfield units, where 0 is water
    labels = torch.arange(6) % 2
    data = Volumes(scans, labels, classes=("a", "b"), source="made", mean=(-950.0,), std=(30.0,))
    options = {"augment": Augment(shift=2, shift_depth=2), "shuffle": True, "seed": 3}
    (whole, _), *_ = Batches(data, 6, **options)
    assert whole.min() == (scans.min() + 950) / 30
    assert whole.max() <= (scans.max() + 950) / 30
    parts = [next(iter(Batches(data, 6, rank=rank, world_size=3, **options)))[0] for rank in range(3)]
    assert torch.equal(torch.cat(parts), whole)


def test_mixtures_and_boxes_go_through_all_slices():
    data = digits().train
    augment = Augment(cutmix=1.0, erase=1.0, colour=0.2, zoom=0.6, noise=0.01)
    images, targets = next(iter(Batches(data, 8, augment=augment)))
    assert images.shape == (8, 1, 8, 32, 32)
    assert targets.shape == (8, 4)
    torch.testing.assert_close(targets.sum(1), torch.ones(8))


@pytest.mark.parametrize(("name", "options"), [("randaugment", {"randaugment": 1}), ("images", {"shift_depth": 1})])
def test_augmentation_that_does_not_fit_is_refused(name, options):
    data = digits().train if name == "randaugment" else load_dataset("digits-on-photos", sizes=(8, 4, 4)).train
    with pytest.raises(ValueError, match=name):
        Batches(data, 4, augment=Augment(**options))
