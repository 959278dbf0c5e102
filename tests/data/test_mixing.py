from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tcpvit.data import Augment
from tcpvit.data.augment import box_mask, mix


def mixed(augment: Augment, number: int = 64):
    """Image i is filled with i and has a label of its own, so that labels say what images must hold."""
    images = torch.arange(number).float().view(-1, 1, 1, 1).expand(-1, 3, 16, 16).contiguous()
    targets = F.one_hot(torch.arange(number)).float()
    return mix(images, targets, augment.draw(np.random.default_rng(0), number), augment.cutmix_share)


@pytest.mark.parametrize("augment", [Augment(mixup=1.0), Augment(cutmix=1.0), Augment(mixup=0.4, cutmix=1.0)])
def test_labels_say_what_the_image_holds(augment):
    images, targets = mixed(augment)
    torch.testing.assert_close(targets.sum(1), torch.ones(64))
    torch.testing.assert_close(images.mean((1, 2, 3)), targets @ torch.arange(64).float(), rtol=1e-5, atol=1e-4)
    partners = torch.arange(64) ^ 1
    assert (targets[torch.arange(64), torch.arange(64)] + targets[torch.arange(64), partners] > 1 - 1e-6).all()
    assert (targets[torch.arange(64), partners] > 0).float().mean() > 0.5


def test_mixup_blends_and_cutmix_cuts():
    blended, _ = mixed(Augment(mixup=1.0))
    assert all(image.unique().numel() == 1 for image in blended)
    cut, _ = mixed(Augment(cutmix=1.0))
    assert {image.unique().numel() for image in cut} == {1, 2}
    both, _ = mixed(Augment(mixup=1.0, cutmix=1.0))
    whole = sum(image.unique().numel() == 1 for image in both)
    assert 16 < whole < 60


def test_a_last_image_without_partner_stays():
    images, targets = mixed(Augment(mixup=1.0), 5)
    assert (images[4] == 4).all()
    assert targets[4].tolist() == [0, 0, 0, 0, 1]


def test_box_is_placed_inside():
    x, y, wide, high = torch.rand(4, 100)
    boxes = box_mask(x, y, wide, high, 20, 10)[:, 0]
    for box, w, h in zip(boxes, wide, high, strict=True):
        assert int(box.any(0).sum()) == round(float(w) * 10) or not box.any()
        assert int(box.any(1).sum()) == round(float(h) * 20) or not box.any()
