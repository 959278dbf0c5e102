"""The forms of a model for other runtimes compute what the model does, and are made of few plain operations."""

from __future__ import annotations

import pytest
import torch

from tcpvit.models import create_model
from tcpvit.models.deploy import FORMS, RowsViT, deployed

OPTIONS = [
    ("std_vit_cifar", {"qkv_bias": False}),
    ("tcp_vit_cifar", {"qkv_bias": False}),
    ("tcp_vit_cifar", {"global_pool": "avg"}),
    ("tcp_vit_cifar", {"activation_domain": "spatial"}),
    ("tcp_vit_cifar", {"coupling": "shuffle"}),
    ("tcp_vit_cifar", {"coupling": "mix:rotation+norm"}),
    ("tcp_vit_cifar", {"coupling": "shared+mix"}),
    ("tcp_vit_cifar", {"coupling": "two_factor"}),
    ("tcp_vit_cifar_plus", {"coupling": "low_rank:2+partial:0.5"}),
    ("tcp_vit_cifar_plus", {"distilled": True}),
    ("tcp_vit_cifar", {"num_classes": 0}),
    ("tcp_vit_cifar", {"tube": 4, "embed_dim": 64, "patch_embed": "sub_patch"}),
    ("tcp_vit_cifar", {"img_size": [4, 8, 8], "patch_size": [2, 4, 4], "tube": "depth"}),
    ("tcp_scene_stem", {}),
    ("tcp_scene_shuffle", {}),
    ("tcp_vit_cifar", {"gated": True}),
    ("std_vit_cifar_44k", {}),
    ("tcp_vit_cifar_44k", {}),
]


@torch.no_grad()
def a_model(name: str, **options):
    """A model none of whose parameters is 0 or 1."""
    model = create_model(name, **({"depth": 2} | options)).eval()
    for parameter in model.parameters():
        parameter.add_(0.05 * torch.randn_like(parameter))
    config = model.config
    return model, torch.randn(3, config.in_chans, *config.image_shape)


@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=str)
@torch.no_grad()
def test_every_form_computes_the_same(name, options):
    model, images = a_model(name, **options)
    before = model(images)
    for form in FORMS:
        torch.testing.assert_close(deployed(model, form)(images), before, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(model(images), before, atol=0, rtol=0)  # the model itself is left as it was


def test_products_softmax_norm_and_gelu_are_what_is_left():
    """No transform, no scaling, no γ and β; per block 4 maps, two products of the attention, two norms, one GELU."""
    model, images = a_model("tcp_vit_cifar_plus", depth=3)
    program = torch.export.export(deployed(model, "dense"), (images,))
    calls = [str(node.target).split(".")[1] for node in program.graph.nodes if str(node.target).startswith("aten.")]
    moves = {"view", "reshape", "permute", "transpose", "unbind", "flatten", "slice", "pad", "movedim", "clone"}
    count = {name: calls.count(name) for name in sorted(set(calls) - moves)}
    assert count == {
        "add": 1 + 2 * 3,  # the table of positions, two residuals a block
        "gelu": 3,
        "layer_norm": 1 + 2 * 3,
        "linear": 1 + 4 * 3,
        "matmul": 1 + 2 * 3,
        "softmax": 3,
    }


def test_the_form_follows_the_slices():
    def of(name: str, **options):
        return deployed(create_model(name, **options))

    assert isinstance(of("tcp_vit_cifar"), RowsViT)
    assert not isinstance(of("tcp_scene"), RowsViT)  # 32 slices
    assert not isinstance(of("tcp_vit_pet"), RowsViT)  # a segmenter


def test_an_unknown_form():
    with pytest.raises(ValueError, match="did you mean 'dense'"):
        deployed(create_model("tcp_vit_cifar"), "dens")
