"""Distillation: the losses are what they should be, and a projected model wins back what it lost."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from small_runs import make_set
from torch import nn

import tcpvit
from tcpvit.data import Splits
from tcpvit.tensorize import distill, tensorize_
from tcpvit.tensorize.distill import DistilledClassification, Lesson, blocks_of
from tcpvit.training import Recipe, train

RECIPE = Recipe.from_dict(
    {"data": {"batch_size": 16}, "optimizer": {"lr": 0.003, "ema": 0.5}, "schedule": {"epochs": 3}}
)


def vit():
    return tcpvit.create_model("std_vit_cifar", depth=2, patch_size=8, embed_dim=24, num_heads=2, num_classes=3)


@pytest.fixture
def splits():
    return Splits("made", make_set(64, 0), make_set(20, 1), make_set(20, 2))


def mlp():
    return nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 4))


def test_the_loss_is_that_of_labels_predictions_and_hidden_states():
    teacher, student, x, y = mlp(), mlp(), torch.randn(5, 6), torch.tensor([0, 1, 2, 3, 0])
    lesson = Lesson(temperature=3.0, hard=0.25, features=0.5)
    task = DistilledClassification(4, lesson=lesson)
    with lesson.given_by(teacher, student, ["0", "2"]):
        found = task.loss(student(x), y, smoothing=0.1)
        evaluated = task.loss(student.eval()(x), y)
    student.train()
    ours, theirs = (F.softmax(m(x) / 3, -1) for m in (student, teacher))
    by_labels = F.cross_entropy(student(x), y, reduction="sum", label_smoothing=0.1)
    divergence = (theirs * (theirs.log() - ours.log())).sum()
    distances = [
        ((a - b).square().sum() / b.square().sum())
        for a, b in ((student[:1](x), teacher[:1](x)), (student[:3](x), teacher[:3](x)))
    ]
    expected = 0.25 * by_labels + 0.75 * 9 * divergence + 0.5 * 5 * sum(distances) / 2
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(evaluated, F.cross_entropy(student(x), y, reduction="sum"))
    assert teacher.training


def test_the_student_is_left_without_hooks(splits, tmp_path):
    teacher, student = vit(), vit()
    weights = copy.deepcopy(teacher.state_dict())
    result = distill(teacher, student, splits, tmp_path / "run", recipe=RECIPE.override(["schedule.epochs=1"]))
    for model in (teacher, student, result.model):
        for module in model.modules():
            assert not module._forward_hooks
            assert not module._forward_pre_hooks
    assert all(torch.equal(tensor, weights[name]) for name, tensor in teacher.state_dict().items())
    assert all(p.grad is None for p in teacher.parameters())


def test_a_projected_model_comes_near_its_teacher_again(splits, tmp_path):
    teacher = train(RECIPE.override(["schedule.epochs=6"]), tmp_path / "teacher", splits=splits, model=vit()).model
    student = copy.deepcopy(teacher)
    tensorize_(student, tube=4)
    images = splits.test.images.float() / 255

    def distance(model):
        with torch.no_grad():
            ours, theirs = (m.eval()(images).log_softmax(-1) for m in (model, teacher))
        return F.kl_div(ours, theirs, log_target=True, reduction="batchmean").item()

    before = distance(student)
    result = distill(teacher, student, splits, tmp_path / "run", recipe=RECIPE)
    assert distance(result.model) < before / 2
    back = tcpvit.from_pretrained(tmp_path / "run" / "best")
    torch.testing.assert_close(back(images), result.model(images))
    again = distill(teacher, student, splits, tmp_path / "run", recipe=RECIPE)  # it is complete
    assert again.history == result.history


def test_blocks_are_found_by_name():
    assert blocks_of(vit(), vit()) == ["blocks.0", "blocks.1"]
    assert blocks_of(mlp(), nn.Linear(6, 4)) == []


def test_errors(splits, tmp_path):
    with pytest.raises(ValueError, match=r"hard lies in \[0, 1\]"):
        distill(vit(), vit(), splits, tmp_path, hard=2)
    wide, narrow = nn.Sequential(nn.Linear(6, 8)), nn.Sequential(nn.Linear(6, 4))
    with Lesson(1.0, 0.5, 1.0).given_by(wide, narrow, ["0"]), pytest.raises(ValueError, match="0 gives shapes"):
        narrow(torch.randn(2, 6))
    masks = make_set(8, 0, masks=True)
    with pytest.raises(ValueError, match="made has segmentation targets"):
        distill(vit(), vit(), Splits("made", masks, masks, masks), tmp_path)
