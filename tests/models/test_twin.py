"""The dense twin: plain nn.Linears, equal outputs."""

import pytest
import torch
from torch import nn

import tcpvit
from tcpvit.layers import TLayerNorm, TLinear
from tcpvit.models import dense_twin

COUPLINGS = ["none", "mix:rotation", "shuffle", "low_rank:2", "partial:0.25", "mix+shuffle+low_rank:1+partial:0.5"]
COUPLINGS += ["two_factor", "mix+norm", "shared", "shared+mix:rotation+shuffle"]


NEAR = {"patch_embed": "conv", "class_token": False, "positions": False, "global_pool": "avg", "local": 3}
NEAR |= {"tube": 4, "embed_dim": 24, "num_heads": 2, "attention_pool": 2, "mlp_ratio": 1.5}


def test_filters_by_slices_before_a_spatial_gelu_have_no_twin():
    model = tcpvit.create_model("tcp_vit_cifar", **NEAR, activation_domain="spatial")
    with pytest.raises(ValueError, match="have no dense twin"):
        dense_twin(model)


@pytest.mark.parametrize("attention", ["slice", "joint"])
@pytest.mark.parametrize("domain", ["transform", "spatial"])
@pytest.mark.parametrize("coupling", COUPLINGS)
def test_equal_outputs(attention, domain, coupling):
    model = tcpvit.create_model(
        "tcp_vit_cifar", depth=2, img_size=16, attention=attention, activation_domain=domain, coupling=coupling
    ).double()
    check(model, torch.randn(2, 3, 16, 16, dtype=torch.float64))


@pytest.mark.parametrize(
    "options",
    [
        {"patch_embed": "shared", "transform": "cosine_kka"},
        {"patch_embed": "t_linear", "transform": "haar", "qkv_bias": False},
        {"tube": 6, "num_heads": 2, "global_pool": "avg", "transform": "learned"},
        {"in_chans": 5, "num_classes": 0},
        {"patch_embed": "t_linear", "embed_dim": 45, "num_heads": 3, "mlp_ratio": 2.8},
        {**NEAR, "coupling": "norm+shuffle"},
        {**NEAR, "gated": True, "coupling": "shared+mix", "activation_domain": "spatial"},
        {**NEAR, "gated": True, "attention": "joint", "patch_size": 2, "positions": True},
    ],
)
def test_equal_outputs_for_other_options(options):
    model = tcpvit.create_model("tcp_vit_cifar", depth=2, img_size=16, **options).double()
    check(model, torch.randn(2, model.config.in_chans, 16, 8, dtype=torch.float64))


def check(model, images):
    for name, parameter in model.named_parameters():
        if "transform" not in name:
            nn.init.normal_(parameter, std=0.3)
    twin = dense_twin(model)
    # a learned transform is orthogonal to the precision it was made in, float32
    tolerance = 1e-5 if model.config.transform == "learned" else 1e-10
    torch.testing.assert_close(twin(images), model(images), atol=tolerance, rtol=0)
    torch.testing.assert_close(twin.forward_features(images), model.forward_features(images), atol=tolerance, rtol=0)
    assert not any(isinstance(m, TLinear | TLayerNorm) for m in twin.modules())
    assert {p.data_ptr() for p in twin.parameters()}.isdisjoint(p.data_ptr() for p in model.parameters())


def test_heads_of_the_twin():
    slices, joint = (dense_twin(tcpvit.create_model("tcp_vit_cifar", attention=a)) for a in ("slice", "joint"))
    assert (slices.blocks[0].attn.num_heads, slices.blocks[0].attn.head_dim) == (12, 4)
    assert (joint.blocks[0].attn.num_heads, joint.blocks[0].attn.head_dim) == (4, 12)


def test_a_standard_vit_has_no_dense_twin():
    with pytest.raises(ValueError, match="dense already"):
        dense_twin(tcpvit.create_model("std_vit_cifar"))
    with pytest.raises(ValueError, match="got a Segmenter; of a segmenter pass its backbone"):
        dense_twin(tcpvit.create_model("tcp_vit_pet"))
