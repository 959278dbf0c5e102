from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from tcpvit.data import ImageSet, Splits
from tcpvit.data.image_set import concatenate, crop_boxes, resample


def make(number: int = 6, size: int = 8, channels: int = 3, **options) -> ImageSet:
    images = torch.randint(0, 256, (number, channels, size, size), dtype=torch.uint8)
    targets = options.pop("targets", torch.arange(number) % 2)
    return ImageSet(images, targets, classes=("a", "b"), source="made/train", **options)


def test_a_subset_remembers_its_source():
    whole = make(10)
    part = whole.subset(torch.tensor([8, 2, 5])).subset(torch.tensor([2, 0]))
    assert part.indices.tolist() == [5, 8]
    assert torch.equal(part.images, whole.images[[5, 8]])


def test_indices_name_the_part_that_they_count_in():
    train, val = make(4), make(3)
    splits = Splits("made", train.subset(torch.tensor([3, 1])), val, val)
    assert splits.indices() == {
        "train": {"source": "made/train", "indices": [3, 1]},
        "val": {"source": "made/train", "indices": [0, 1, 2]},
    }


def test_any_number_of_channels():
    cube = make(channels=7, mean=(0.5,) * 7, std=(0.2,) * 7)
    assert cube.image_shape == (7, 8, 8)
    with pytest.raises(ValueError, match="7 channels, so mean and std should have as many numbers; got 3 and 3"):
        make(channels=7)


@pytest.mark.parametrize(
    ("targets", "complaint"),
    [
        (torch.tensor([0, 1, 0, 2, 0, 1]), r"label 3 holds 2, outside the 2 classes 0\.\.1"),
        (torch.tensor([0, 1, 0, -1, 0, 1]), "label 3 holds -1"),
        (torch.zeros(5, dtype=torch.int64), "6 images .* need as many labels"),
        (torch.full((6, 8, 8), 7, dtype=torch.uint8), "mask 0 holds 7"),
        (torch.zeros(6, 4, 4, dtype=torch.uint8), "masks of the same height and width"),
    ],
)
def test_wrong_targets_are_named(targets, complaint):
    with pytest.raises(ValueError, match=complaint):
        make(targets=targets)


def test_ignored_pixels_are_no_class():
    masks = torch.zeros(6, 8, 8, dtype=torch.uint8)
    masks[:, 0] = 255
    assert make(targets=masks).task == "segmentation"


def test_images_of_other_types_are_refused():
    with pytest.raises(
        ValueError, match=r"uint8, uint16 or float32 of shape \(N, C, H, W\), or volumes .*, got torch.float64"
    ):
        ImageSet(torch.rand(2, 3, 4, 4).double(), torch.zeros(2).long(), classes=("a", "b"), source="made")


def test_resizing_keeps_masks_whole():
    masks = torch.zeros(6, 8, 8, dtype=torch.uint8)
    masks[:, :, 4:], masks[:, 0] = 1, 255
    small = make(targets=masks).resized(4)
    assert small.images.shape == (6, 3, 4, 4)
    assert set(small.targets.unique().tolist()) <= {0, 1, 255}
    assert small.targets[0, 2].tolist() == [0, 0, 1, 1]


def test_concatenation_counts_through():
    a, b = make(4), make(3)
    both = concatenate([a, b], "made/all")
    assert both.indices.tolist() == list(range(7))
    assert torch.equal(both.subset(torch.tensor([5])).images[0], b.images[1])


def test_the_whole_box_is_the_image():
    images = make().images
    whole = torch.tensor([[0.0, 0.0, 1.0, 1.0]]).expand(6, 4)
    assert torch.equal(resample(images, whole, "bilinear"), images)
    assert torch.equal(resample(images, whole, "nearest"), images)


def test_a_box_is_enlarged_as_pillow_would():
    image = make(1, size=16).images
    box = torch.tensor([[0.25, 0.125, 0.75, 0.625]])
    ours = resample(image, box, "bilinear")[0]
    pillow = Image.fromarray(image[0].permute(1, 2, 0).numpy())
    theirs = np.asarray(pillow.resize((16, 16), Image.Resampling.BILINEAR, box=(4, 2, 12, 10))).transpose(2, 0, 1)
    inner = ours[:, 1:-1, 1:-1].int().numpy() - theirs[:, 1:-1, 1:-1].astype(int)
    assert np.abs(inner).max() <= 1  # at the rim ours sees the neighbours outside the box


def test_crop_boxes_lie_inside_and_have_their_area():
    crops = torch.rand(200, 4)
    crops[:, 0] = 0.1 + 0.4 * crops[:, 0]
    crops[:, 1] = 0.8 + 0.4 * crops[:, 1]
    left, top, right, bottom = crop_boxes(crops, 60, 40).unbind(1)
    assert (left >= 0).all()
    assert (top >= 0).all()
    assert (right <= 1 + 1e-6).all()
    assert (bottom <= 1 + 1e-6).all()
    torch.testing.assert_close((right - left) * (bottom - top), crops[:, 0])
    torch.testing.assert_close((right - left) * 60 / ((bottom - top) * 40), crops[:, 1])
