"""Converted models come back from a folder, without their original weights."""

from __future__ import annotations

import json
import warnings

import pytest
import torch
from torch import nn

import tcpvit
from tcpvit.algebra import LearnedTransform
from tcpvit.compat import repair_torchvision
from tcpvit.tensorize import build, materialize_, tensorize_

repair_torchvision()
IMAGES = torch.randn(2, 3, 32, 32)
SMALL = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48}


def saved_and_loaded(model, folder, **more):
    """The model that comes back; a warning on the way is a failure."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        tcpvit.save_pretrained(model.eval(), folder)
    back = tcpvit.from_pretrained(folder, **more)
    assert not back.training
    assert type(back) is type(model)
    assert list(back.state_dict()) == list(model.state_dict())
    return back


def check(model, inputs, folder, **more):
    back = saved_and_loaded(model, folder, **more)
    with torch.no_grad():
        ours, theirs = (m(**inputs) if isinstance(inputs, dict) else m(inputs) for m in (back, model))
    values = [(ours, theirs)] if isinstance(ours, torch.Tensor) else zip(ours.values(), theirs.values(), strict=True)
    for y, z in values:
        torch.testing.assert_close(y, z, atol=0, rtol=0)


def timm_vit(**options):
    import timm

    return timm.create_model("vit_tiny_patch16_224", num_classes=5, img_size=32, **options)


def test_a_model_of_timm_is_recognised(tmp_path):
    model = timm_vit()
    tensorize_(model, tube=3, example=False, arrange="none", exclude=["blocks.3.*"])
    check(model, IMAGES, tmp_path)
    origin = json.loads((tmp_path / "config.json").read_text())["options"]["origin"]
    assert origin == {
        "library": "timm",
        "name": "vit_tiny_patch16_224",
        "options": {"num_classes": 5, "img_size": [32, 32]},
    }


def test_what_build_was_told_is_remembered(tmp_path):
    model = build("timm/vit_tiny_patch16_224", img_size=32, depth=1, act_layer="relu", num_classes=5)
    model.reset_classifier(7)
    tensorize_(model, tube=3, example=False, convs="all")
    check(model, IMAGES, tmp_path)
    again = tcpvit.from_pretrained(tmp_path)
    check(again, IMAGES, tmp_path / "again")


def test_a_model_that_was_built_in_another_way_is_not_mistaken(tmp_path):
    model = timm_vit(depth=2)
    tensorize_(model, tube=3, example=False)
    with pytest.warns(UserWarning, match="how this VisionTransformer was built is not known"):
        tcpvit.save_pretrained(model, tmp_path)
    with pytest.raises(ValueError, match=r"does not say how to build one; .*from_pretrained\(folder, model=that\)"):
        tcpvit.from_pretrained(tmp_path)
    back = tcpvit.from_pretrained(tmp_path, model=timm_vit(depth=2))
    torch.testing.assert_close(back(IMAGES), model.eval()(IMAGES))


def test_the_same_shapes_with_another_activation_are_told_apart():
    from tcpvit.tensorize.origin import origin_of

    assert origin_of(timm_vit()) is not None
    assert origin_of(timm_vit(act_layer="relu")) is None


def test_torchvision(tmp_path):
    model = build("torchvision/squeezenet1_1", num_classes=6)
    tensorize_(model, tube=4, example=False, convs="pointwise")
    check(model, IMAGES, tmp_path)


def test_models_of_torchvision_are_recognised():
    import torchvision

    from tcpvit.tensorize.origin import origin_of

    with torch.device("meta"):
        swin, vit = torchvision.models.swin_t(num_classes=5), torchvision.models.vit_b_32(image_size=64)
    for model in (swin, vit):
        assert tensorize_(model, tube=3, example=False, init="fresh").converted
    assert origin_of(swin) == {"library": "torchvision", "name": "swin_t", "options": {"num_classes": 5}}
    options = {"num_classes": 1000, "image_size": 64}
    assert origin_of(vit) == {"library": "torchvision", "name": "vit_b_32", "options": options}


@pytest.mark.parametrize("name", ["ViTForImageClassification", "GPT2LMHeadModel"])
def test_transformers(name, tmp_path):
    import transformers

    cls = getattr(transformers, name)
    if name == "GPT2LMHeadModel":  # its head is tied to its embedding
        options = {"vocab_size": 60, "n_embd": 24, "n_layer": 1, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0}
        inputs = {"input_ids": torch.randint(0, 60, (2, 8)), "use_cache": False}
    else:
        options, inputs = SMALL | {"image_size": 32, "num_labels": 5}, {"pixel_values": IMAGES}
    model = cls(cls.config_class(**options))
    tensorize_(model, tube=3, example=False)
    check(model, inputs, tmp_path)


def test_models_of_ours(tmp_path):
    model = tcpvit.create_model("std_vit_cifar", depth=1)
    tensorize_(model, tube=3)
    check(model, IMAGES, tmp_path)
    model.save_pretrained(tmp_path / "method")
    back = tcpvit.from_pretrained(tmp_path / "method")
    torch.testing.assert_close(back(IMAGES), model(IMAGES))
    with pytest.raises(ValueError, match="holds a tensorized, not a VisionTransformer"):
        type(model).from_pretrained(tmp_path)


def net():
    torch.manual_seed(3)
    layers = [nn.Linear(12, 24), nn.MultiheadAttention(24, 2), nn.Linear(24, 24), nn.Linear(24, 24), nn.Linear(24, 960)]
    model = nn.ModuleList([*layers, nn.Linear(960, 960)])
    model[3].weight = model[2].weight
    return model


@pytest.mark.filterwarnings("ignore:how this ModuleList was built")
def test_any_model_with_ties_transforms_and_dense_layers(tmp_path):
    model = net()
    tensorize_(model, tube=3, include=["0", "1", "2", "3"], transform=torch.linalg.qr(torch.randn(3, 3)).Q)
    tensorize_(model, tube=4, transform="haar", init="fresh")
    materialize_(model[4:])
    model.to(torch.bfloat16)
    tcpvit.save_pretrained(model, tmp_path)
    back = tcpvit.from_pretrained(tmp_path, model=net())
    assert repr(back) == repr(model)
    assert back[2].weight_hat is back[3].weight_hat
    for name, tensor in back.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name])
        assert tensor.dtype == torch.bfloat16


@pytest.mark.filterwarnings("ignore:how this Sequential was built")
def test_layers_with_a_rank_keep_the_transform_that_each_was_given(tmp_path):
    def build_net():
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 24), nn.GELU(), nn.Linear(24, 12))

    model = build_net()
    tensorize_(model, tube=4, rank=2, transform="dct", include=["0"])
    tensorize_(model, tube=4, rank=2, transform="hadamard", include=["2"])
    tensorize_(model, tube=1, rank=2, include=["4"])
    tcpvit.save_pretrained(model, tmp_path)
    back, x = tcpvit.from_pretrained(tmp_path, model=build_net()), torch.randn(2, 12)
    assert [back[i].transform.name for i in (0, 2)] == ["dct", "hadamard"]
    assert torch.equal(back(x), model(x))


@pytest.mark.parametrize("parted", [False, True])
@pytest.mark.filterwarnings("ignore:how this ModuleList was built")
def test_tied_layers_with_a_rank_are_loaded_as_they_were_saved(parted, tmp_path):
    model = net()
    tensorize_(model, tube=3, rank=2, include=["2", "3"], example=False)
    if parted:  # as versions up to 0.3.0 did, without saying so
        for name in ("weight_hat", "v", "u"):
            setattr(model[3], name, nn.Parameter(torch.randn_like(getattr(model[3], name))))
    tcpvit.save_pretrained(model, tmp_path)
    back, x = tcpvit.from_pretrained(tmp_path, model=net()), torch.randn(2, 24)
    assert (back[2].u is back[3].u) is not parted
    assert all(torch.equal(back[i](x), model[i](x)) for i in (2, 3))


def test_a_learned_transform_that_layers_share_is_shared_again(tmp_path):
    model = build("timm/vit_tiny_patch16_224", img_size=32, depth=1, num_classes=5).eval()
    tensorize_(model, transform=LearnedTransform(3), example=False)
    with torch.no_grad():
        model.blocks[0].attn.qkv.transform.learned.basis.parametrizations.weight.original.add_(0.1 * torch.randn(3, 3))
    tcpvit.save_pretrained(model, tmp_path)
    back = tcpvit.from_pretrained(tmp_path)
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(back(images), model(images))
    assert back.blocks[0].attn.qkv.transform.learned is back.blocks[0].mlp.fc1.transform.learned


def test_encoders(tmp_path):
    model = build("timm/vit_tiny_patch16_224", img_size=32, depth=2, num_classes=5)
    tensorize_(model, tube=3, mode="encoder", example=False)
    assert tensorize_(model, tube=3, convs="patch", example=False).converted == ["patch_embed.proj"]
    check(model, IMAGES, tmp_path)


def test_a_model_that_is_neither_ours_nor_converted_is_refused(tmp_path):
    with pytest.raises(ValueError, match="or one that tensorize_ converted, got a Linear"):
        tcpvit.save_pretrained(nn.Linear(3, 3), tmp_path)


@pytest.mark.parametrize("name", ["resnet/18", "timm/vit_tinny", "torchvision/vitt"])
def test_names_that_nobody_knows(name):
    with pytest.raises(ValueError, match=r"is no model|cannot build|Unknown model"):
        build(name)
