"""What timm and torchvision say of their models: names, sizes, and how images are normalised."""

from __future__ import annotations

import pytest

from tcpvit.compat import repair_torchvision
from tcpvit.tensorize import build
from tcpvit.tensorize.origin import preparation

repair_torchvision()
IMAGENET = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])


@pytest.mark.parametrize(
    ("name", "options", "statistics"),
    [
        ("timm/vit_tiny_patch16_224", {"img_size": 32, "num_classes": 4}, ([0.5] * 3, [0.5] * 3)),
        ("timm/deit_tiny_patch16_224", {"img_size": 32, "num_classes": 4}, IMAGENET),
        ("torchvision/vit_b_16", {"image_size": 32, "num_classes": 4}, IMAGENET),
    ],
)
def test_images_are_prepared_as_the_library_does(name, options, statistics):
    about = preparation(name, build(name, **options).eval())
    assert (about["mean"], about["std"]) == statistics
    assert about["image_shape"] == [3, 32, 32]
    assert about["classes"] == ["0", "1", "2", "3"]
    assert about["source"] == name


def test_a_preset_of_ours_says_nothing():
    assert preparation("tcp_vit_cifar", build("tcp_vit_cifar")) is None


def test_only_a_name_that_is_unknown_has_a_nearest():
    with pytest.raises(ValueError, match=r"Unknown model .*; did you mean timm/vit_tiny_patch16_224\?$"):
        build("timm/vit_tny_patch16_224")
    with pytest.raises(ValueError, match="no_option") as raised:
        build("timm/vit_tiny_patch16_224", no_option=1)
    assert "did you mean" not in str(raised.value)
