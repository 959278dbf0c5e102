from __future__ import annotations

import sys
import time

import pytest
import torch

from tcpvit.data import digits_on_photos as module
from tcpvit.data import load_dataset

SIZES = (300, 100, 100)


@pytest.mark.parametrize("level", ["easy", "hard"])
def test_images_and_masks_belong_together(level):
    labelled = load_dataset("digits-on-photos", level=level, sizes=SIZES)
    masked = load_dataset("digits-on-photos", level=level, task="segmentation", sizes=SIZES)
    assert labelled.train.images.shape == (300, 3, 32, 32)
    assert torch.equal(labelled.train.images, masked.train.images)
    assert torch.bincount(labelled.train.labels).tolist() == [30] * 10
    covered = masked.train.targets.float().mean((1, 2))
    assert masked.train.classes == ("background", "digit")
    assert covered.min() > 0.02
    assert covered.max() < 0.6


def test_the_seed_decides():
    first, again, other = (load_dataset("digits-on-photos", seed=seed, sizes=SIZES) for seed in (0, 0, 1))
    assert torch.equal(first.train.images, again.train.images)
    assert not torch.equal(first.train.images, other.train.images)
    assert not torch.equal(first.val.images, first.test.images)


def test_parts_share_no_digit():
    raw = module._sklearn().load_digits()
    used = [module.digit_images(part) for part in module.PARTS]
    assert sum(len(labels) for _, labels in used) == len(raw.target)
    written = [{glyph.numpy().tobytes() for glyph in glyphs} for glyphs, _ in used]
    assert not written[0] & written[1] | written[0] & written[2] | written[1] & written[2]
    for _, labels in used:
        assert torch.bincount(labels).min() >= 28  # every digit in every hand


def test_parts_share_no_region():
    photos = module._sklearn().load_sample_images().images
    for k, photo in enumerate(photos):
        widths = [module._regions(part)[k * len(module.SCALES)].shape[2] for part in module.PARTS]
        stripes = [module._regions(part)[k * len(module.SCALES)] for part in module.PARTS]
        assert sum(widths) == photo.shape[1]
        whole = (torch.cat(stripes, 2) * 255).round().to(torch.uint8)
        assert torch.equal(whole, torch.from_numpy(photo.copy()).permute(2, 0, 1))  # side by side, each pixel once


def test_easy_digits_stand_out():
    def contrast(level):
        masked = load_dataset("digits-on-photos", level=level, task="segmentation", sizes=SIZES).train
        grey = torch.einsum("nchw,c->nhw", masked.images.float() / 255, module._GREY)
        inside = masked.targets.bool()
        return torch.stack([image[m].mean() - image[~m].mean() for image, m in zip(grey, inside, strict=True)])

    easy, hard = contrast("easy"), contrast("hard")
    assert easy.min() > 0.3  # every one, and brighter than what is around it
    assert hard.abs().mean() < easy.min()
    assert (hard < 0).any()  # some darker, some brighter


def test_the_default_size_is_made_in_seconds():
    begin = time.process_time()
    load_dataset("digits-on-photos")
    assert time.process_time() - begin < 10


def test_an_unknown_level_is_named():
    with pytest.raises(ValueError, match="level should be one of easy, hard, got 'medium'"):
        load_dataset("digits-on-photos", level="medium")


def test_without_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r"pip install 'tcpvit\[demo\]'"):
        module._sklearn()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"task": "detection"}, "task should be one of classification, segmentation"),
        ({"sizes": (10, 10)}, "sizes should be a list of 3"),
    ],
)
def test_wrong_options_are_named(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        load_dataset("digits-on-photos", **options)
