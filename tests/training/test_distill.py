"""Distillation: the losses are what they should be, and a projected model wins back what it lost."""

from __future__ import annotations

import copy
import signal
import warnings

import pytest
import torch
import torch.nn.functional as F
from small_runs import make_set
from torch import nn

import tcpvit
from tcpvit.compat import repair_torchvision
from tcpvit.data import Splits
from tcpvit.progress import Progress
from tcpvit.tensorize import build, distill, tensorize_
from tcpvit.training import Recipe, evaluate, train
from tcpvit.training.distill import DistillationLoss, DistilledClassification, common_blocks, encoder_pairs
from tcpvit.training.sharding import forward_any

repair_torchvision()
RECIPE = Recipe.from_dict(
    {"data": {"batch_size": 16}, "optimizer": {"lr": 0.003, "ema": 0.5}, "schedule": {"epochs": 3}}
)


def vit():
    return tcpvit.create_model("std_vit_cifar", depth=2, patch_size=8, embed_dim=24, num_heads=2, num_classes=3)


@pytest.fixture
def splits():
    return Splits("made", make_set(64, 0), make_set(20, 1), make_set(20, 2))


def timm_vit():
    return build("timm/vit_tiny_patch16_224", img_size=32, depth=2, embed_dim=24, num_heads=3, num_classes=3)


def transformers_vit():
    import transformers

    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 48}
    return transformers.ViTForImageClassification(transformers.ViTConfig(image_size=32, num_labels=3, **sizes))


def converted(teacher, **options):
    student = copy.deepcopy(teacher)
    tensorize_(student, tube=3, example=False, **options)
    return student


def mlp():
    return nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 4))


def test_the_loss_is_that_of_labels_predictions_and_hidden_states():
    teacher, student, x, y = mlp(), mlp(), torch.randn(5, 6), torch.tensor([0, 1, 2, 3, 0])
    loss = DistillationLoss(temperature=3.0, hard=0.25, features=0.5)
    task = DistilledClassification(4, distillation=loss)
    with loss.attached(teacher, student, {"0": "0", "2": "2"}):
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


def test_an_empty_share_of_a_batch_has_no_loss():
    """As of a process of several for which the last batch is too small."""
    teacher, student = mlp(), mlp()
    loss = DistillationLoss(temperature=2.0, hard=0.3, features=1.0)
    task = DistilledClassification(4, distillation=loss)
    with loss.attached(teacher, student, {"0": "0"}):
        found = task.loss(forward_any(student, torch.zeros(0, 6)), torch.zeros(0, dtype=torch.int64))
    found.backward()
    assert found == 0
    assert all(p.grad is not None and not p.grad.any() for p in student.parameters())  # each takes part in the mean


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
    assert common_blocks(vit(), vit()) == ["blocks.0", "blocks.1"]
    assert common_blocks(mlp(), nn.Linear(6, 4)) == []


@pytest.mark.parametrize(
    ("make", "ours", "theirs"),
    [(timm_vit, "blocks", "blocks.1"), (transformers_vit, "vit.layers.0", "vit.layers.1")],
)
def test_an_encoder_is_compared_at_its_end(make, ours, theirs):
    teacher = make()
    student = converted(teacher, mode="encoder")
    assert encoder_pairs(teacher, student) == {ours: theirs}
    assert encoder_pairs(student, converted(teacher, mode="encoder")) == {ours: ours}
    loss, outputs = DistillationLoss(1.0, 0.5, 1.0), {}
    teacher.get_submodule(theirs).register_forward_hook(lambda m, args, y: outputs.update(theirs=y))
    student.get_submodule(ours).register_forward_hook(lambda m, args, y: outputs.update(ours=y))
    with loss.attached(teacher, student.train(), {ours: theirs}):
        assert student(torch.randn(2, 3, 32, 32)).shape == (2, 3)  # logits, whatever the library gives
    difference = (outputs["ours"] - outputs["theirs"]).square().sum() / outputs["theirs"].square().sum()
    torch.testing.assert_close(loss.distances, [difference])


def test_without_common_layers_there_is_a_warning(splits, tmp_path):
    class Flat(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(3 * 32 * 32, 3)

        def forward(self, images):
            return self.head(images.flatten(1))

    recipe = RECIPE.override(["schedule.epochs=1"])
    with pytest.warns(UserWarning, match="no blocks of the same names"):
        distill(vit(), Flat(), splits, tmp_path / "a", recipe=recipe)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        distill(vit(), Flat(), splits, tmp_path / "b", recipe=recipe, features=0)


def test_models_of_transformers(splits, tmp_path):
    teacher = transformers_vit()
    student = converted(teacher)
    result = distill(teacher, student, splits, tmp_path / "run", recipe=RECIPE.override(["schedule.epochs=1"]))
    back = tcpvit.from_pretrained(tmp_path / "run" / "best")
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(back(images).logits, result.model(images).logits)
    batches, task = [(images, torch.tensor([0, 1]))], DistilledClassification(3)
    assert evaluate(back, batches, task).summary()["loss"] > 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"transform": "haar"}, "form of the student="),
        ({"mode": "encoder"}, "layers="),
        ({"teacher": "another"}, "weights of the teacher="),
        ({"temperature": 3.0}, "temperature=2.0, now it is 3.0"),
        ({"about": {"original": "b"}}, "original=a, now it is b"),
        ({"epochs": 2}, "schedule.epochs=1, now it is 2"),
    ],
)
def test_another_distillation_is_not_taken_for_this_one(splits, tmp_path, change, said):
    teacher, another = timm_vit(), timm_vit()

    def run(overwrite=False, **change):
        how = {key: change.pop(key) for key in ("transform", "mode") if key in change}
        recipe = RECIPE.override([f"schedule.epochs={change.pop('epochs', 1)}"])
        of = another if change.pop("teacher", None) else teacher
        options = {"about": {"original": "a"}, "recipe": recipe, "overwrite": overwrite, **change}
        return distill(of, converted(teacher, **how), splits, tmp_path, **options)

    first = run()
    assert run().history == first.history
    with pytest.raises(ValueError, match=f"was trained with {said}.*; replace it with --overwrite"):
        run(**change)
    assert run().history == first.history
    result = run(overwrite=True, **change)
    assert result.history != first.history
    assert run(**change).history == result.history


def test_a_run_of_another_kind_is_not_resumed(splits, tmp_path):
    recipe = RECIPE.override(["schedule.epochs=1"])
    train(recipe, tmp_path, splits=splits, model=vit())
    with pytest.raises(ValueError, match="does not say what was distilled; replace it with --overwrite"):
        distill(vit(), vit(), splits, tmp_path, recipe=recipe)


class Stopping(Progress):
    """Sends a signal after the first epoch and keeps what is said."""

    def __init__(self):
        self.said = ""

    def epoch(self, row, is_best):
        signal.raise_signal(signal.SIGTERM)

    def message(self, text):
        self.said += text


def test_a_stopped_distillation_is_resumed_when_repeated(splits, tmp_path):
    teacher, report = vit(), Stopping()
    with pytest.raises(SystemExit):
        distill(teacher, converted(teacher), splits, tmp_path, recipe=RECIPE, progress=report)
    assert "everything is saved; resume with the same command" in report.said
    assert "tcpvit train" not in report.said
    result = distill(teacher, converted(teacher), splits, tmp_path, recipe=RECIPE)
    assert [row["epoch"] for row in result.history] == [1, 2, 3]


def test_errors(splits, tmp_path):
    with pytest.raises(ValueError, match=r"hard lies in \[0, 1\]"):
        distill(vit(), vit(), splits, tmp_path, hard=2)
    wide, narrow = nn.Sequential(nn.Linear(6, 8)), nn.Sequential(nn.Linear(6, 4))
    with (
        DistillationLoss(1.0, 0.5, 1.0).attached(wide, narrow, {"0": "0"}),
        pytest.raises(ValueError, match="0 gives shapes"),
    ):
        narrow(torch.randn(2, 6))
    for layers, who in ((["nope"], "teacher"), (["blocks.0.attn.qkv.transform"], "teacher")):
        with pytest.raises(ValueError, match=f"the {who} has no layer '{layers[0]}'"):
            distill(vit(), converted(vit()), splits, tmp_path, layers=layers)
    model = vit()
    with pytest.raises(ValueError, match="teacher and student are the same model"):
        distill(model, model, splits, tmp_path)
    masks = make_set(8, 0, masks=True)
    with pytest.raises(ValueError, match="made has segmentation targets"):
        distill(vit(), vit(), Splits("made", masks, masks, masks), tmp_path)
