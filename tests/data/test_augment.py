from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tcpvit.compat import repair_torchvision
from tcpvit.data import Augment
from tcpvit.data.augment import add_noise, erase, jitter_colour, normalise, shift_and_flip, turn


def random_images(number: int = 5, channels: int = 3, size: int = 8) -> torch.Tensor:
    return torch.randint(0, 256, (number, channels, size, size), dtype=torch.uint8)


def test_shift_and_flip_against_a_loop():
    images = random_images(40)
    offsets, flip = torch.randint(0, 7, (40, 2)), torch.rand(40) < 0.5
    ours = shift_and_flip(images, 3, offsets, flip, fill=9)
    for image, (y, x), mirrored, result in zip(images, offsets.tolist(), flip, ours, strict=True):
        cut = F.pad(image, (3, 3, 3, 3), value=9)[:, y : y + 8, x : x + 8]
        assert torch.equal(cut.flip(2) if mirrored else cut, result)


def test_masks_move_with_their_images():
    ids = torch.randint(0, 3, (30, 8, 8), dtype=torch.uint8)
    images = ids[:, None].expand(-1, 3, -1, -1).contiguous()  # each image shows its mask
    augment = Augment(shift=2, flip=0.5)
    moved, masks = augment.move(images, ids, augment.draw(np.random.default_rng(0), 30))
    outside = masks == 255
    assert outside.any()
    assert torch.equal(moved[:, 0][~outside], masks[~outside])
    assert (moved[:, 0][outside] == 0).all()  # black comes in, and is ignored


@pytest.mark.parametrize("shape", [(30, 2, 6, 7), (30, 2, 5, 6, 7)])
def test_the_least_value_of_a_float_image_comes_in(shape):
    images = torch.randn(shape) * 30 + torch.linspace(-1000, 1000, 30).view(-1, *[1] * (len(shape) - 1))
    masks = torch.randint(0, 3, (shape[0], *shape[2:]), dtype=torch.uint8)
    augment = Augment(shift=2, flip=0.5) if len(shape) == 4 else Augment(shift=2, shift_depth=1, flip_depth=0.5)
    draws = augment.draw(np.random.default_rng(0), 30)
    moved, targets = augment.move(images, masks, draws)
    _, seen = augment.move(images, torch.ones_like(masks), draws)
    for image, result, known in zip(images, moved, seen == 1, strict=True):
        assert result[:, known].min() >= image.min()
        assert (result[:, ~known] == image.min()).all()
    assert (targets[seen == 255] == 255).all()
    assert (seen == 255).any()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16])
def test_black_comes_into_images_of_whole_numbers(dtype):
    augment = Augment(shift=2, shift_depth=1)
    images, labels = torch.full((20, 1, 4, 6, 6), 200).to(dtype), torch.zeros(20).long()
    moved, _ = augment.move(images, labels, augment.draw(np.random.default_rng(0), 20))
    assert moved.unique().tolist() == [0, 200]


def test_every_offset_and_both_sides_occur():
    augment = Augment(shift=1, flip=0.5)
    image = torch.zeros(1, 1, 3, 3, dtype=torch.uint8)
    image[0, 0, 1, 1] = 1
    draws = augment.draw(np.random.default_rng(0), 500)
    moved, _ = augment.move(image.expand(500, -1, -1, -1), torch.zeros(500).long(), draws)
    places = moved.flatten(1).argmax(1)
    assert torch.bincount(places, minlength=9).min() > 500 / 9 / 2


def test_flip_probability():
    ramp = torch.arange(4, dtype=torch.uint8).expand(2000, 1, 4, 4)
    augment = Augment(flip=0.25)
    moved, _ = augment.move(ramp, torch.zeros(2000).long(), augment.draw(np.random.default_rng(1), 2000))
    flipped = (moved[:, 0, 0, 0] == 3).float().mean().item()
    assert flipped == pytest.approx(0.25, abs=0.03)


def test_colour_factors_against_their_definition():
    images = torch.rand(3, 3, 4, 4) * 100
    factors = torch.tensor([[1.2, 1.0, 1.0], [1.0, 0.5, 1.0], [1.0, 1.0, 0.0]])
    bright, flat, grey = jitter_colour(images, factors)
    torch.testing.assert_close(bright, images[0] * 1.2)
    torch.testing.assert_close(flat, images[1].mean() + 0.5 * (images[1] - images[1].mean()))
    torch.testing.assert_close(grey, images[2].mean(0).expand(3, -1, -1))


def test_erasing_blanks_one_rectangle_of_the_right_area():
    numbers = torch.rand(300, 5)
    erased = erase(torch.ones(300, 3, 32, 32), numbers, 0.5)
    blank = erased[:, 0] == 0
    happened = blank.flatten(1).any(1)
    assert torch.equal(happened, numbers[:, 0] < 0.5)
    shares = blank[happened].float().mean((1, 2))
    assert shares.min() > 0.01
    assert shares.max() < 0.37  # 2 % to 33 %, rounded to whole pixels
    for mask in blank[happened]:
        rows, columns = mask.any(1), mask.any(0)
        assert torch.equal(mask, rows[:, None] & columns)  # a rectangle


def test_normalise_against_torchvision():
    repair_torchvision()
    transforms = pytest.importorskip("torchvision.transforms")
    images, mean, std = random_images(), (0.4, 0.5, 0.6), (0.2, 0.3, 0.1)
    theirs = transforms.Normalize(mean, std)(images.float() / 255)
    torch.testing.assert_close(normalise(images.float(), mean, std), theirs)


def test_one_option_does_not_change_another():
    images, labels = random_images(20, size=16), torch.zeros(20).long()
    plain, more = Augment(shift=2, flip=0.5), Augment(shift=2, flip=0.5, mixup=0.8, randaugment=2)
    a, _ = plain.move(images, labels, plain.draw(np.random.default_rng(5), 20))
    b, _ = more.move(images, labels, more.draw(np.random.default_rng(5), 20))
    assert torch.equal(a, b)


@pytest.mark.parametrize("options", [{"flip": 1.5}, {"shift": -1}, {"zoom": 0}, {"zoom": 1.2}, {"magnitude": 31}])
def test_wrong_strengths_are_named(options):
    with pytest.raises(
        ValueError, match=f"^{next(iter(options))} should be a .*number .*, got {next(iter(options.values()))}$"
    ):
        Augment(**options)


@pytest.mark.parametrize("name", ["randaugment", "erase", "mixup", "cutmix"])
def test_masks_take_no_mixtures(name):
    with pytest.raises(ValueError, match=f"{name} is for classification"):
        Augment(**{name: 1}).check_task("segmentation", (8, 8))


def test_the_eight_symmetries_are_the_turns_and_mirrors_of_the_square():
    image = torch.randn(1, 3, 5, 5)
    expected = [torch.rot90(view, k, (2, 3)) for view in (image, image.flip(-1)) for k in range(4)]
    found = turn(image.expand(8, -1, -1, -1), torch.arange(8)).split(1)
    for view in found:
        assert sum(torch.equal(view, other) for other in expected) == 1
        assert sum(torch.equal(view, other) for other in found) == 1
    assert torch.equal(found[0], image)


def test_masks_turn_with_their_images_and_oblong_ones_are_refused():
    masks = torch.randint(0, 3, (16, 6, 6))
    draws = Augment().draw(np.random.default_rng(0), 16)
    images, turned = Augment(symmetry=True).move(masks[:, None].float(), masks, draws)
    assert torch.equal(images[:, 0].long(), turned)
    assert not torch.equal(turned, masks)
    with pytest.raises(ValueError, match="turns square images, got 4×6"):
        Augment(symmetry=True).check_task("classification", (4, 6))


def test_noise_has_its_deviation_and_is_drawn_for_each_image_by_itself():
    seeds = Augment().draw(np.random.default_rng(0), 4)["noise"]
    noise = add_noise(torch.zeros(4, 8, 50, 50), seeds, 0.3)
    assert abs(noise.std().item() - 0.3) < 4 * 0.3 / (2 * noise.numel()) ** 0.5
    assert torch.equal(noise[2:], add_noise(torch.zeros(2, 8, 50, 50), seeds[2:], 0.3))


def test_flattened_images_keep_their_centre_and_lose_a_share_of_the_rest():
    images, targets = torch.randn(6, 3, 5, 5), torch.zeros(6, dtype=torch.long)
    augment = Augment(flatten=0.5)
    draws = augment.draw(np.random.default_rng(0), 6)
    found, _ = augment.mix_and_erase(images.clone(), targets, draws, classes=2)
    assert torch.equal(found[:, :, 2, 2], images[:, :, 2, 2])
    after, before = ((each - each[:, :, 2:3, 2:3]).flatten(1).norm(dim=1) for each in (found, images))
    assert torch.allclose(after / before, 1 - 0.5 * draws["flatten"], atol=1e-5)
    with pytest.raises(ValueError, match="flatten is for classification"):
        augment.check_task("segmentation", (5, 5))
