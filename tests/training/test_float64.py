"""Training and evaluation on a device without float64, as Apple's GPUs are, give what they give on the CPU."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from pretended import There, pretended
from small_runs import make_set
from torch import nn

from tcpvit.data import ImageSet
from tcpvit.progress import Progress, Row
from tcpvit.training import float64
from tcpvit.training.build import build_batches, build_model
from tcpvit.training.folder import RunFolder
from tcpvit.training.metrics import (
    ClassificationMetrics,
    RankingMetrics,
    SceneMetrics,
    SegmentationMetrics,
    image_mious,
)
from tcpvit.training.tasks import task_for
from tcpvit.training.trainer import Trainer


@pytest.fixture
def device(monkeypatch):
    monkeypatch.setattr(float64, "WITHOUT", (*float64.WITHOUT, "meta"))
    monkeypatch.setattr(torch, "inference_mode", torch.no_grad)  # of tensors that are wrapped it takes no views
    with pretended() as found:
        yield found


def test_mps_has_no_float64_and_others_have():
    assert [float64.float64_device(name).type for name in ("mps", "cuda:1", "cpu")] == ["cpu", "cuda", "cpu"]


def test_the_pretended_device_refuses_float64_as_mps_does(device):
    there = torch.ones(2, device=device)
    assert isinstance(there, There)
    for make in (there.double, lambda: torch.zeros(2, device=device, dtype=torch.float64)):
        with pytest.raises(TypeError, match="no float64"):
            make()


@pytest.mark.parametrize("kind", [ClassificationMetrics, RankingMetrics, SceneMetrics, SegmentationMetrics])
def test_metrics_are_those_of_the_cpu(device, kind):
    masks = kind is SegmentationMetrics
    logits = torch.randn(5, 7, 8, 8) if masks else torch.randn(5, 7)
    targets = torch.randint(0, 7, (5, 8, 8) if masks else (5,))
    loss = nn.functional.cross_entropy(logits, targets, reduction="sum")
    here, there = kind(7), kind(7, device)
    here.update(logits, targets, loss)
    there.update(logits.to(device), targets.to(device), loss.to(device))
    assert all(torch.equal(a, b) for a, b in zip(here.counts(), there.counts(), strict=True))
    assert repr(there.summary()) == repr(here.summary())  # NaN is equal to itself
    assert repr(there.by_class()) == repr(here.by_class())


def test_the_miou_of_each_image_is_that_of_the_cpu(device):
    predicted, truth = torch.randint(0, 3, (2, 4, 6, 6))
    found = image_mious(predicted.to(device), truth.to(device), 3)
    assert torch.equal(found, image_mious(predicted, truth, 3))


def history(recipe, model: nn.Module, data: ImageSet, folder: Path, device: torch.device) -> list[Row]:
    """What is measured in training there, without the times."""
    run = RunFolder(folder)
    run.begin(recipe, overwrite=False)
    batches = (build_batches(recipe, data, device, training=training) for training in (True, False))
    trainer = Trainer(recipe, model, task_for(data), *batches, run, device=device, progress=Progress())
    trainer.fit()
    return [
        {key: row[key] for key in row if "second" not in key} for row in trainer.state.history + trainer.state.gradients
    ]


@pytest.mark.parametrize("masks", [False, True])
def test_training_there_measures_what_it_does_on_the_cpu(device, recipe, tmp_path, masks):
    """Up to the rounding of float32: AdamW and the operators are fused on the CPU alone."""
    data = make_set(20, 0, masks=masks)
    recipe = recipe.override(["model.options.drop_rate=0", "model.options.depth=1", "evaluation.gradients=1"])
    if masks:
        recipe = recipe.override(["augment.erase=0", "augment.mixup=0"])
    model = nn.Conv2d(3, 3, 1) if masks else build_model(recipe, data)
    here = history(recipe, copy.deepcopy(model), data, tmp_path / "here", torch.device("cpu"))
    there = history(recipe, model, data, tmp_path / "there", device)
    assert len(here) > 2
    for found, expected in zip(there, here, strict=True):
        assert found == pytest.approx(expected, rel=1e-4)
