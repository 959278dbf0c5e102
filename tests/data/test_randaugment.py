from __future__ import annotations

import pytest
import torch

from tcpvit.compat import repair_torchvision
from tcpvit.data import randaugment as module
from tcpvit.data.randaugment import randaugment

repair_torchvision()
v2 = pytest.importorskip("torchvision.transforms.v2")
NAMES = [
    "Identity",
    "ShearX",
    "ShearY",
    "TranslateX",
    "TranslateY",
    "Rotate",
    "Brightness",
    "Color",
    "Contrast",
    "Sharpness",
    "Posterize",
    "Solarize",
    "AutoContrast",
    "Equalize",
]


@pytest.mark.parametrize("magnitude", [0, 9, 30])
@pytest.mark.parametrize("name", NAMES)
def test_each_operation_is_torchvisions(name, magnitude, monkeypatch):
    image = torch.randint(0, 256, (1, 3, 32, 32), dtype=torch.uint8)
    number = (NAMES.index(name) + 0.5) / len(NAMES)
    theirs = v2.RandAugment(num_ops=1, magnitude=magnitude)
    monkeypatch.setattr(theirs, "_get_random_item", lambda space: (name, space[name]))
    for sign, coin in ((0.2, 0.0), (0.7, 1.0)):  # torchvision negates at a coin of at most 0.5
        monkeypatch.setattr(torch, "rand", lambda *_, coin=coin: torch.tensor(coin))
        expected = theirs(image)
        monkeypatch.undo()
        monkeypatch.setattr(theirs, "_get_random_item", lambda space: (name, space[name]))
        assert torch.equal(randaugment(image, torch.tensor([[[number, sign]]]), magnitude), expected)


def test_each_image_gets_its_own():
    """A batch is what its images are one by one, whoever their neighbours are."""
    images = torch.randint(0, 256, (40, 3, 16, 16), dtype=torch.uint8)
    numbers = torch.rand(40, 2, 2)
    together = randaugment(images, numbers, 9)
    alone = [randaugment(images[i : i + 1], numbers[i : i + 1], 9) for i in range(40)]
    assert torch.equal(together, torch.cat(alone))
    assert not torch.equal(together, images)


def test_other_channels_are_refused():
    with pytest.raises(ValueError, match="3 channels of 8 bits, got 5"):
        randaugment(torch.zeros(1, 5, 8, 8, dtype=torch.uint8), torch.rand(1, 1, 2), 9)


def test_without_torchvision(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torchvision.transforms.v2.functional", None)
    with pytest.raises(ImportError, match=r"pip install 'tcpvit\[vision\]'"):
        module._torchvision_functional()
