"""Other people's models: converted, run forward and backward, counted, and brought back."""

from __future__ import annotations

import pytest
import torch
from architectures import HUGGING_FACE, SMALL, TIMM
from torch import nn

from tcpvit.compat import repair_torchvision
from tcpvit.layers import TubalLinear
from tcpvit.tensorize import tensorize_, to_dense_

repair_torchvision()


def shake(model):
    """Give every parameter a value of its own: layer scales near zero and empty heads would hide mistakes."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))


def outputs(model, inputs):
    y = model(**inputs) if isinstance(inputs, dict) else model(inputs)
    values = [y] if isinstance(y, torch.Tensor) else y.values() if hasattr(y, "values") else y
    return [value for value in values if isinstance(value, torch.Tensor) and value.is_floating_point()]


def check(model, inputs, tube, *, least=1, **options):
    """All that a converted model should do."""
    shake(model)
    names = list(model.state_dict())
    report = tensorize_(model, tube=tube, example=False, **options)
    assert len(report.converted) >= least, report
    check_counts(model, report, tube)
    torch.manual_seed(1)
    sum(y.square().mean() for y in outputs(model.train(), inputs)).backward()
    reached = [m.weight_hat.grad is not None and bool(m.weight_hat.grad.abs().sum() > 0) for m in drop_ins(model)]
    assert sum(reached) >= 0.9 * len(reached)  # stochastic depth may leave a block out
    model.eval()
    with torch.no_grad():
        torch.manual_seed(2)
        converted = outputs(model, inputs)
        to_dense_(model)
        torch.manual_seed(2)
        dense = outputs(model, inputs)
    assert list(model.state_dict()) == names
    for ours, theirs in zip(converted, dense, strict=True):
        assert ours.isfinite().all()
        scale = theirs.abs().max().item()
        torch.testing.assert_close(ours, theirs, atol=2e-4 * scale, rtol=0)
    return report


def drop_ins(model):
    return [module for module in model.modules() if isinstance(module, TubalLinear)]


def check_counts(model, report, tube):
    """Weights are 1/C, biases stay, nothing else changes."""
    for row in report.rows:
        weights = row.in_features * row.out_features if row.done else 0
        assert row.before - row.after == weights - weights // tube, row
    saved = sum(row.before - row.after for row in report.rows)
    assert report.parameters_before - report.parameters_after == saved
    assert report.parameters_after == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("case", [pytest.param(c, marks=[pytest.mark.slow] if c.slow else [], id=c.name) for c in TIMM])
def test_timm(case):
    import timm

    model = timm.create_model(case.name, num_classes=10, **case.options)
    check(model, torch.randn(2, 3, case.size, case.size), case.tube, convs=case.convs, least=3)


def test_there_are_enough():
    assert len({case.name for case in TIMM}) >= 40


@pytest.mark.parametrize("name", ["vit_b_16", "swin_t", "swin_v2_t"])
def test_torchvision(name):
    from torchvision.models import swin_transformer as swin
    from torchvision.models import vision_transformer as vit

    if name == "vit_b_16":
        model = vit.VisionTransformer(32, 16, 2, 2, 24, 48, num_classes=10)
    else:
        options = {}
        if name == "swin_v2_t":
            options = {"block": swin.SwinTransformerBlockV2, "downsample_layer": swin.PatchMergingV2}
        model = swin.SwinTransformer([4, 4], 24, [1, 1], [2, 2], [2, 2], num_classes=10, **options)
    report = check(model, torch.randn(2, 3, 32, 32), 3, least=8)
    assert [reason.split()[0] for name, reason in report.skipped.items() if name.startswith("head")] == ["head"]


@pytest.mark.parametrize("name", HUGGING_FACE)
def test_hugging_face(name):
    import transformers

    cls = getattr(transformers, name)
    options = HUGGING_FACE[name] if {"n_embd", "depths"} & set(HUGGING_FACE[name]) else SMALL | HUGGING_FACE[name]
    model = cls(cls.config_class(num_labels=7, **options))
    if model.main_input_name == "pixel_values":
        inputs = {"pixel_values": torch.randn(2, 3, 32, 32)}
    else:
        inputs = {"input_ids": torch.randint(0, 60, (2, 8))}
    if name == "ViTMAEForPreTraining":
        inputs["noise"] = torch.rand(2, 4)
    report = check(model, inputs, 3, least=8)
    heads = {"BertForMaskedLM": "cls.predictions.decoder", "GPT2LMHeadModel": "lm_head"}
    if name in heads:
        assert report.skipped[heads[name]] == "head (the model's classifier)"


def test_grouped_and_strided_convolutions_are_not_taken_for_linear_maps():
    net = nn.Sequential(nn.Conv2d(6, 6, 1, groups=2), nn.Conv2d(6, 6, 2, 2, padding=1), nn.Conv2d(6, 6, 3, 2))
    assert tensorize_(net, tube=3, convs="all").rows == []
