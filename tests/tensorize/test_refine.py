"""Refinement without labels, and how the original and the converted model are compared."""

from __future__ import annotations

import contextlib
import copy

import pytest
import torch
from torch import nn

from tcpvit.tensorize import TensorizeConfig, build, compare, refine, tensorize_


def converted(keep=0.3):
    torch.manual_seed(0)
    original = build("timm/vit_tiny_patch16_224", img_size=8, patch_size=4, embed_dim=24, depth=2, num_heads=3)
    original.eval()
    batches = [torch.randn(32, 3, 8, 8) for _ in range(4)]
    model = copy.deepcopy(original)
    tensorize_(model, TensorizeConfig(keep=keep, structure="low_rank"), calibrate=batches, example=False)
    return original, model, batches


def ticking(steps):
    """A clock on which a step takes a second."""
    times = iter(range(10 * steps))
    return lambda: float(next(times))


def test_refinement_brings_the_model_nearer():
    original, _, batches = converted()
    with torch.no_grad():
        for block in original.blocks:
            for parameter in block.parameters():
                parameter.mul_(4 if parameter.ndim == 2 else 1)  # blocks that matter
    model = copy.deepcopy(original)
    tensorize_(model, tube=3, example=False)
    before = {name: p.clone() for name, p in original.named_parameters()}
    kept = model.norm.weight.clone()
    curve = refine(original, model.train(), batches[:3], minutes=1, held_out=batches[3:], lr=0.2, clock=ticking(100))
    assert len(curve) == 11
    assert curve[-1].loss < 0.8 * curve[0].loss
    assert curve[-1].step > 20
    assert all(torch.equal(p, before[name]) for name, p in original.named_parameters())
    assert torch.equal(model.norm.weight, kept)
    assert model.training
    assert not model._forward_hooks
    assert not any(block._forward_hooks for block in [*model.blocks, *original.blocks])


class Stopped(Exception):
    """The user has seen enough."""


@pytest.mark.parametrize("stops", [False, True])
def test_what_does_not_learn_is_left_as_it_was(stops):
    def clock():
        time = next(times)
        if stops and time > 5:
            raise Stopped
        return time

    torch.manual_seed(0)
    original = nn.Sequential(nn.LayerNorm(48), nn.Linear(48, 96), nn.BatchNorm1d(96), nn.Linear(96, 48)).train()
    model, times = copy.deepcopy(original), iter(map(float, range(999)))
    tensorize_(model, tube=3, include=["1"], example=False)
    original[2].eval()
    model[0].weight.grad = before = torch.ones(48)
    statistics = copy.deepcopy(original[2].state_dict())
    with pytest.raises(Stopped) if stops else contextlib.nullcontext():
        refine(original, model, [torch.randn(16, 48) for _ in range(4)], minutes=1, clock=clock)
    assert model[0].weight.grad is before
    assert torch.equal(before, torch.ones(48))
    assert [name for name, p in model.named_parameters() if p.grad is not None] == ["0.weight"]
    assert all(p.requires_grad for p in model.parameters())
    assert [m.training for m in original] == [True, True, False, True]
    assert all(m.training for m in model)
    for m in (original, model):
        assert all(torch.equal(tensor, statistics[name]) for name, tensor in m[2].state_dict().items())
        assert not any(part._forward_hooks for part in m.modules())


def test_tied_layers_learn_together():
    torch.manual_seed(0)
    original = nn.Sequential(nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 24))
    original[2].weight = original[0].weight
    model = copy.deepcopy(original)
    tensorize_(model, tube=3, rank=2, example=False)
    curve = refine(original, model, [torch.randn(64, 24)], minutes=1, lr=0.1, clock=ticking(100))
    assert curve[-1].loss < curve[0].loss
    assert model[0].u is model[2].u


def test_nothing_to_refine():
    with pytest.raises(ValueError, match="nothing to refine"):
        refine(nn.Linear(3, 3), nn.Linear(3, 3), [torch.randn(2, 3)], minutes=1)
    with pytest.raises(ValueError, match="minutes is positive"):
        refine(nn.Linear(3, 3), nn.Linear(3, 3), [torch.randn(2, 3)], minutes=0)


def test_comparison(monkeypatch):
    monkeypatch.setattr("tcpvit.tensorize.quality.SECONDS", 0.01)
    original, model, batches = converted()
    labels = [original(x).argmax(-1) for x in batches]
    same = compare(original, copy.deepcopy(original), batches, labels)
    assert (same.agreement, same.top1, same.samples) == (1.0, (1.0, 1.0), 128)
    found = compare(original, model, batches, labels)
    assert found.parameters[1] < found.parameters[0]
    assert found.bytes[1] < found.bytes[0]
    agreed = sum((model(x).argmax(-1) == y).sum().item() for x, y in zip(batches, labels, strict=True))
    assert found.agreement == pytest.approx(agreed / 128)
    assert found.top1 == pytest.approx((1.0, agreed / 128))
    assert "held out from calibration" in found.table().notes[0]


def test_comparison_is_that_of_models_that_predict_and_leaves_them_in_their_modes(monkeypatch):
    monkeypatch.setattr("tcpvit.tensorize.quality.SECONDS", 0.01)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Dropout(0.5), nn.Linear(32, 10)).train()
    model[1].eval()  # frozen statistics in a model that is trained
    model[1].running_mean.normal_()
    other = copy.deepcopy(model).train()
    state = copy.deepcopy(other.state_dict())
    assert compare(model, other, [torch.randn(64, 16) + 3 for _ in range(3)]).agreement == 1
    assert all(torch.equal(tensor, state[name]) for m in (model, other) for name, tensor in m.state_dict().items())
    assert [m.training for m in model] == [True, False, True, True]
    assert other[1].training
