"""A fused model computes what it computed before, in every option; where folding is not exact nothing is folded."""

import pytest
import torch
from torch import nn

import tcpvit
from tcpvit.layers import TLayerNorm

OPTIONS = [
    {},
    {"attention": "joint"},
    {"activation_domain": "spatial"},
    {"transform": "learned", "activation_domain": "spatial", "attention": "joint"},
    {"qkv_bias": False},
    {"embed_dim": 240, "patch_embed": "t_linear", "num_heads": 2},  # wide slices: no kernel
    {"coupling": "shuffle"},
    {"coupling": "mix:rotation"},
    {"coupling": "low_rank:2"},
    {"coupling": "partial:0.3+shuffle", "attention": "joint"},
    {"coupling": "two_factor"},
    {"coupling": "norm"},
    {"coupling": "shared"},
    {"coupling": "shared+mix:rotation", "attention": "joint"},
]
CASES = [("tcp_vit_cifar", options) for options in OPTIONS]
CASES += [("std_vit_cifar_44k", {}), ("tcp_vit_cifar_44k", {"gated": True})]
CASES += [("std_vit_cifar", {}), ("std_vit_cifar", {"qkv_bias": False}), ("tcp_vit_pet_backbone", {})]


def trained(name, options):
    """A model whose parameters are all as training may leave them."""
    model = tcpvit.create_model(name, depth=2, **options).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def norms(model):
    return [m for block in model.blocks for m in block.children() if isinstance(m, (TLayerNorm, nn.LayerNorm))]


def is_plain(norm):
    scale, shift = norm.parameters()
    return bool((scale == 1).all() and (shift == 0).all())


@torch.no_grad()
@pytest.mark.parametrize(("name", "options"), CASES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_fused_equals_unfused(name, options, dtype, tolerance):
    model = trained(name, options).to(dtype)
    images = torch.randn(2, 3, *model.config.image_shape, dtype=dtype)
    before = model.forward_features(images)
    assert model.fuse_() is model
    assert (model.forward_features(images) - before).abs().max() < tolerance * before.abs().max()
    assert (model.fuse_().forward_features(images) - before).abs().max() < tolerance * before.abs().max()


@pytest.mark.parametrize(
    ("name", "options", "folded"),
    [
        ("std_vit_cifar", {}, [True] * 4),
        ("tcp_vit_cifar", {}, [True] * 4),
        ("tcp_vit_cifar", {"qkv_bias": False}, [False, True] * 2),
        ("tcp_vit_cifar", {"coupling": "low_rank:2+partial:0.3"}, [True] * 4),
        ("tcp_vit_cifar", {"coupling": "mix"}, [False] * 4),
        ("tcp_vit_cifar", {"coupling": "two_factor"}, [False] * 4),
    ],
)
def test_what_is_folded(name, options, folded):
    assert [is_plain(norm) for norm in norms(trained(name, options).fuse_())] == folded


def test_a_fused_model_does_not_train():
    model = trained("tcp_vit_cifar", {}).fuse_()
    assert not model.training
    assert not model.eval().training
    with pytest.raises(ValueError, match="fused model is for inference"):
        model.train()


@torch.no_grad()
def test_a_saved_fused_model_comes_back_as_an_ordinary_one(tmp_path):
    model, images = trained("tcp_vit_cifar", {}), torch.randn(2, 3, 32, 32)
    before = model(images)
    tcpvit.save_pretrained(model.fuse_(), tmp_path)
    again = tcpvit.from_pretrained(tmp_path)
    torch.testing.assert_close(again(images), before, atol=1e-4, rtol=1e-4)
    assert again.train().training
