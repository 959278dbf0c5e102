"""DeiT: timm's counts and outputs, two tokens, two heads."""

from __future__ import annotations

import pytest
import torch

import tcpvit
from tcpvit.analysis import count_flops, count_parameters, predict_flops, predict_parameters
from tcpvit.compat import repair_torchvision
from tcpvit.layers import reference
from tcpvit.models import dense_twin

repair_torchvision()
timm = pytest.importorskip("timm")
SMALL = {"depth": 2, "img_size": 32, "num_classes": 7}


def from_timm(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """timm's weights under our names; its patch convolution is a matrix on pixels with the channel fastest."""
    ours = dict(weights)
    for name in ("cls_token", "dist_token", "pos_embed"):
        ours[f"embed.{name}"] = ours.pop(name)
    ours["patch_embed.proj.weight"] = weights["patch_embed.proj.weight"].permute(0, 2, 3, 1).flatten(1)
    return ours


@pytest.mark.parametrize("size", ["tiny", "small", "base"])
def test_the_standard_twins_have_timms_counts(size):
    with torch.device("meta"):
        theirs = timm.create_model(f"deit_{size}_distilled_patch16_224")
        std, tcp = (tcpvit.create_model(f"{kind}_deit_{size}") for kind in ("std", "tcp"))
    total = sum(p.numel() for p in theirs.parameters())
    assert count_parameters(std) == predict_parameters(std.config) == total
    assert count_parameters(tcp) == predict_parameters(tcp.config)
    assert std.config.num_heads == 3 * tcp.config.num_heads
    assert count_parameters(tcp.blocks) / count_parameters(std.blocks) == pytest.approx(1 / 3, abs=0.01)


def test_with_timms_weights_the_outputs_are_timms():
    theirs = timm.create_model("deit_tiny_distilled_patch16_224", **SMALL)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    ours = tcpvit.create_model("std_deit_tiny", **SMALL)
    ours.load_state_dict(from_timm(theirs.state_dict()))
    images = torch.randn(2, 3, 32, 32)
    for model in (ours, theirs):
        model.set_distilled_training()
    torch.testing.assert_close(ours.train()(images), theirs.train()(images), atol=1e-4, rtol=1e-4)  # pairs
    torch.testing.assert_close(ours.eval()(images), theirs.eval()(images), atol=1e-4, rtol=1e-4)
    tokens = ours.forward_features(images)
    torch.testing.assert_close(tokens, theirs.forward_features(images), atol=1e-4, rtol=1e-4)
    pooled = [model.forward_head(tokens, pre_logits=True) for model in (ours, theirs)]
    torch.testing.assert_close(*pooled)


@pytest.mark.parametrize("attention", ["slice", "joint"])
def test_features_equal_the_reference_and_the_dense_twin(attention):
    model = tcpvit.create_model("tcp_deit_tiny", **SMALL, attention=attention).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    images = torch.randn(2, 3, 32, 48, dtype=torch.float64)
    tokens = model.forward_features(images[..., :32])
    assert tokens.shape == (2, 2 + 4, 192)
    torch.testing.assert_close(tokens, reference.features(model, images[..., :32]), atol=1e-10, rtol=1e-9)
    torch.testing.assert_close(dense_twin(model)(images), model(images), atol=1e-10, rtol=1e-9)  # positions resampled


def test_two_heads_in_training_their_mean_otherwise():
    model = tcpvit.create_model("tcp_deit_tiny", **SMALL)
    images = torch.randn(2, 3, 32, 32)
    mean = model(images)
    model.set_distilled_training()
    logits, dist_logits = model(images)
    torch.testing.assert_close((logits + dist_logits) / 2, mean)
    assert not torch.equal(logits, dist_logits)
    (logits.square().mean() + dist_logits.square().mean()).backward()
    assert all(p.grad is not None for p in model.parameters())
    torch.testing.assert_close(model.eval()(images), mean)
    with pytest.raises(ValueError, match="distilled=True"):
        tcpvit.create_model("tcp_vit_cifar").set_distilled_training()


def test_a_new_classifier_is_two_new_heads(tmp_path):
    model = tcpvit.create_model("tcp_deit_tiny", **SMALL).eval()
    model.reset_classifier(5)
    images = torch.randn(2, 3, 32, 32)
    assert [head.out_features for head in model.get_classifier()] == [5, 5]
    assert model(images).shape == (2, 5)
    tcpvit.save_pretrained(model, tmp_path)
    torch.testing.assert_close(tcpvit.from_pretrained(tmp_path)(images), model(images))
    ((tokens, prefix),) = model.forward_intermediates(
        images, [-1], norm=True, return_prefix_tokens=True, output_fmt="NLC", intermediates_only=True
    )
    assert (tokens.shape, prefix.shape) == ((2, 4, 192), (2, 2, 192))
    model.reset_classifier(0)
    torch.testing.assert_close(model(images), prefix.mean(1))
    with pytest.raises(ValueError, match="global_pool='token'"):
        tcpvit.create_model("tcp_deit_tiny", global_pool="avg")


@pytest.mark.parametrize("kind", ["std", "tcp"])
def test_predicted_work_is_the_measured(kind):
    model = tcpvit.create_model(f"{kind}_deit_tiny", **SMALL)
    predicted = {name: work.matrix for name, work in predict_flops(model.config).items() if work.matrix}
    assert count_flops(model).components == predicted
