"""The config: what it works out by itself, and what it refuses."""

import pytest

from tcpvit.models import ViTConfig, model_config


def test_the_papers_widths():
    config = model_config("tcp_vit_cifar")
    assert (config.width, config.tube_length, config.d, config.embedding) == (48, 3, 16, "none")
    config = model_config("std_vit_cifar")
    assert (config.width, config.tube_length, config.d, config.embedding) == (48, 1, 48, "linear")


@pytest.mark.parametrize(
    ("options", "embedding"),
    [({}, "none"), ({"embed_dim": 84}, "t_linear"), ({"tube": 6}, "linear"), ({"patch_embed": "shared"}, "shared")],
)
def test_the_patch_embedding_that_fits(options, embedding):
    assert model_config("tcp_vit_cifar", **options).embedding == embedding


def test_json_round_trip():
    config = model_config("tcp_vit_cifar", img_size=(32, 64), coupling="mix+shuffle")
    assert config.coupling == ("mix", "shuffle")
    assert ViTConfig.from_dict(config.to_dict()) == config


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("tcp_vit_cifar", {"dept": 2}, "did you mean 'depth'"),
        ("tcp_vit_cifar", {"img_size": 30}, "30×30 does not divide into patches of 4"),
        ("tcp_vit_cifar", {"tube": 5}, "tube 5 does not divide the width 48; take one of"),
        ("tcp_vit_cifar", {"num_heads": 3}, "num_heads=3 does not divide the slice width 16"),
        ("std_vit_cifar", {"num_heads": 5}, "num_heads=5 does not divide the width 48"),
        ("std_vit_cifar", {"attention": "joint"}, "attention is an option of TCP models"),
        ("std_vit_cifar", {"patch_embed": "none"}, "a standard ViT has patch_embed='linear'"),
        ("tcp_vit_cifar", {"mlp_ratio": -1}, "mlp_ratio should be a number greater than 0 and at most 1024, got -1"),
        ("tcp_vit_cifar", {"mlp_ratio": 0.01}, "mlp_ratio=0.01 leaves no hidden feature of d=16"),
        ("tcp_vit_cifar", {"coupling": 5}, "coupling should be a list of words, got 5"),
        ("tcp_vit_cifar", {"attention": "join"}, "did you mean 'joint'"),
        ("tcp_vit_cifar", {"global_pool": "max"}, "global_pool should be one of token, avg, got 'max'"),
        ("tcp_vit_cifar", {"coupling": ("mixx",)}, "no coupling is written 'mixx'"),
        ("tcp_vit_cifar", {"depth": 0}, "depth should be a whole number of at least 1, got 0"),
        ("tcp_vit_cifar", {"num_classes": -1}, "num_classes should be a whole number of at least 0, got -1"),
        ("tcp_vit_cifr", {}, "did you mean 'tcp_vit_cifar'"),
    ],
)
def test_errors(name, options, message):
    with pytest.raises(ValueError, match=message):
        model_config(name, **options)
