"""The loop: what a step computes, when an epoch evaluates, saves and stops."""

from __future__ import annotations

import csv
import itertools
import json
import re
from types import SimpleNamespace

import pytest
import torch
from small_runs import make_set
from torch import nn

import tcpvit
from tcpvit.data import Splits
from tcpvit.progress import Progress
from tcpvit.training import NonFiniteLoss, Recipe, resume, train
from tcpvit.training.build import build_batches, build_model
from tcpvit.training.checkpoint import list_checkpoints, read_checkpoint
from tcpvit.training.folder import RunFolder
from tcpvit.training.tasks import task_for
from tcpvit.training.trainer import StepTotals, Trainer


class Listener(Progress):
    """Remembers what was said."""

    def __init__(self):
        self.said: list[str] = []
        self.steps: list[int] = []

    def message(self, text):
        self.said.append(text)

    def step(self, state):
        self.steps.append(state.step)


def make_trainer(recipe: Recipe, splits: Splits, folder, model: nn.Module | None = None) -> Trainer:
    device = torch.device("cpu")
    run = RunFolder(folder)
    run.begin(recipe, overwrite=True)
    return Trainer(
        recipe,
        model or build_model(recipe, splits.train),
        task_for(splits.train),
        build_batches(recipe, splits.train, device, training=True),
        build_batches(recipe, splits.val, device, training=False),
        run,
        device=device,
        progress=Listener(),
    )


def gradients(trainer: Trainer) -> torch.Tensor:
    trainer.batches.set_epoch(0)
    trainer.model.train()
    trainer.step(*next(iter(trainer.batches)))
    return torch.cat([p.grad.flatten() for p in trainer.model.parameters()])


@pytest.mark.parametrize("accumulate", [2, 3, 16])
@pytest.mark.parametrize("masks", [False, True])
def test_micro_batches_give_the_gradient_of_the_batch(recipe, tmp_path, accumulate, masks):
    """Up to the rounding of float32, 2e-6 of the norm; with masks, the numbers of counted pixels differ."""
    data = make_set(16, 0, masks=masks, size=32)
    if masks:
        data.targets[:4] = 255
        data.targets[4, 0, 0] = 1
    splits = Splits("made", data, data, data)
    recipe = recipe.override(["model.options.drop_rate=0", "augment.mixup=0", "augment.erase=0"])
    model = nn.Conv2d(3, 3, 1) if masks else build_model(recipe, data)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found = []
    for number in (1, accumulate):
        model.load_state_dict(state)
        changed = recipe.override([f"optimizer.accumulate={number}"])
        found.append(gradients(make_trainer(changed, splits, tmp_path / "run", model)))
    assert (found[0] - found[1]).norm() < 2e-6 * found[0].norm()


def test_the_gradient_is_clipped_and_zero_means_off(recipe, splits, tmp_path):
    calm = recipe.override(["model.options.drop_rate=0", "optimizer.accumulate=1"])
    free = gradients(make_trainer(calm.override(["optimizer.clip_norm=0"]), splits, tmp_path / "a"))
    clipped = gradients(make_trainer(calm.override(["optimizer.clip_norm=0.01"]), splits, tmp_path / "b"))
    assert free.norm() > 0.01
    torch.testing.assert_close(clipped, free * 0.01 / free.norm(), rtol=1e-4, atol=1e-9)


def test_a_run_leaves_everything_it_should(recipe, splits, tmp_path):
    folder = tmp_path / "run"
    before = torch.get_rng_state()
    result = train(recipe, folder, splits=splits)
    assert torch.equal(torch.get_rng_state(), before)
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert {file for file in files if not file.startswith("tensorboard")} == {
        ".lock",
        "config.yaml",
        "data.json",
        "environment.json",
        "metrics.csv",
        "result.json",
        "checkpoints/step-00000003.safetensors",
        "checkpoints/step-00000006.safetensors",
        *(
            f"{kept}/{f}"
            for kept in ("best", "last")
            for f in ("config.json", "model.safetensors", "preprocessing.json")
        ),
    }
    assert json.loads((folder / "data.json").read_text())["train"] == {"source": "made/0", "indices": list(range(40))}
    (session,) = json.loads((folder / "environment.json").read_text())
    assert session["torch"] == torch.__version__
    assert session["threads"] == 1
    rows = list(csv.DictReader((folder / "metrics.csv").open()))
    assert [(row["epoch"], row["step"]) for row in rows] == [("1", "3"), ("2", "6")]
    assert float(rows[1]["val_top1"]) == result.history[1]["val_top1"]
    assert json.loads((folder / "result.json").read_text())["test"]["top1"] == result.test["top1"]
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(tcpvit.from_pretrained(folder / "best")(images), result.model(images))


def test_it_learns(recipe, tmp_path):
    splits = Splits("made", make_set(160, 0), make_set(60, 1), make_set(60, 2))
    recipe = recipe.override(["schedule.epochs=10", "augment.mixup=0", "model.options.drop_rate=0"])
    result = train(recipe, tmp_path / "run", splits=splits)
    assert result.test["top1"] > 0.95
    assert result.history[-1]["train_loss"] < result.history[0]["train_loss"]


def test_segmentation_of_any_model(recipe, tmp_path):
    """A model of any make: its weights are kept, and it learns which grey is which class."""
    data = [make_set(number, seed, masks=True, size=16) for seed, number in enumerate((64, 20, 20))]
    splits = Splits("made", *data)
    recipe = recipe.override(["augment.mixup=0", "augment.erase=0", "optimizer.lr=0.05", "schedule.epochs=10"])
    recipe = recipe.override(["optimizer.label_smoothing=0", "optimizer.weight_decay=0"])
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 3, 1))
    result = train(recipe, tmp_path / "run", splits=splits, model=model)
    assert result.metric == "miou"
    assert result.test["miou"] > 0.95
    assert {"val_miou", "val_mdice", "val_pixel_accuracy"} <= result.history[-1].keys()
    assert (tmp_path / "run" / "best" / "model.safetensors").is_file()


class AmongOthers(nn.Sequential):
    """Gives its logits as the models of transformers do."""

    def forward(self, images):
        return SimpleNamespace(loss=None, logits=super().forward(images))


def test_a_model_that_gives_logits_among_other_things_trains_as_without_them(recipe, splits, tmp_path):
    made = [kind(nn.Flatten(), nn.Linear(3 * 32**2, 3)) for kind in (nn.Sequential, AmongOthers)]
    made[1].load_state_dict(made[0].state_dict())
    plain, wrapped = (train(recipe, tmp_path / str(i), splits=splits, model=m) for i, m in enumerate(made))
    assert torch.equal(wrapped.model[1].weight, plain.model[1].weight)
    assert wrapped.test == plain.test


def test_evaluation_every_k_epochs_and_at_the_end(recipe, splits, tmp_path):
    recipe = recipe.override(["schedule.epochs=5", "evaluation.every=2"])
    result = train(recipe, tmp_path / "run", splits=splits)
    assert [row["epoch"] for row in result.history if "val_loss" in row] == [2, 4, 5]
    assert result.last["epoch"] == 5
    rows = list(csv.DictReader((tmp_path / "run" / "metrics.csv").open()))
    assert [row["val_loss"] == "" for row in rows] == [True, False, True, False, False]


def test_patience_ends_a_run_that_does_not_improve(recipe, splits, tmp_path):
    recipe = recipe.override(["schedule.epochs=9", "evaluation.patience=2", "optimizer.lr=0", "optimizer.ema=0"])
    result = train(recipe, tmp_path / "run", splits=splits)
    assert [row["epoch"] for row in result.history] == [1, 2, 3]
    assert result.best["epoch"] == 1
    again = resume(tmp_path / "run", splits=splits)
    assert again.history == result.history


def test_the_averaged_weights_are_the_ones_saved(recipe, splits, tmp_path):
    trainer = make_trainer(recipe, splits, tmp_path / "run")
    trainer.fit()
    last = tcpvit.from_pretrained(tmp_path / "run" / "last").state_dict()
    assert all(torch.equal(last[name], tensor) for name, tensor in trainer.ema.model.state_dict().items())
    assert not torch.equal(last["head.weight"], trainer.model.head.weight)


def test_checkpoints_are_kept_by_number(recipe, splits, tmp_path):
    recipe = recipe.override(["schedule.epochs=3", "checkpoints.every_steps=1", "checkpoints.keep=3"])
    train(recipe, tmp_path / "run", splits=splits)
    kept = [path.name for path in list_checkpoints(tmp_path / "run" / "checkpoints")]
    assert kept == [f"step-0000000{step}.safetensors" for step in (7, 8, 9)]


def test_a_new_best_is_in_a_checkpoint_too(recipe, splits, tmp_path):
    """Otherwise a run that is resumed from an older one would not know whose weights `best` holds."""
    recipe = recipe.override(["schedule.epochs=3", "checkpoints.every_epochs=3", "optimizer.lr=0"])
    train(recipe, tmp_path / "run", splits=splits)  # which learns nothing: the first epoch stays the best
    kept = [path.name for path in list_checkpoints(tmp_path / "run" / "checkpoints")]
    assert kept == [f"step-0000000{step}.safetensors" for step in (3, 9)]


def test_a_seed_is_a_run(recipe, splits, tmp_path):
    found = []
    for number, seed in enumerate((0, 0, 1)):
        result = train(recipe.override([f"seed={seed}"]), tmp_path / str(number), splits=splits)
        found.append(torch.cat([p.flatten() for p in result.model.parameters()]))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_bfloat16_trains_and_keeps_float32_weights(recipe, splits, tmp_path):
    result = train(recipe.override(["precision=bfloat16"]), tmp_path / "run", splits=splits)
    assert {p.dtype for p in result.model.parameters()} == {torch.float32}
    plain = train(recipe, tmp_path / "plain", splits=splits)
    assert result.history[-1]["train_loss"] == pytest.approx(plain.history[-1]["train_loss"], rel=0.05)
    assert result.history[-1]["train_loss"] != plain.history[-1]["train_loss"]


def test_float16_scales_the_loss_and_its_scale_is_saved(recipe, splits, tmp_path):
    """On a CPU by the back door: recipes ask for a GPU."""
    recipe = recipe.override(["precision=float16", "schedule.epochs=3"])
    trainer = make_trainer(recipe, splits, tmp_path / "run")
    # So large that the gradients overflow at first: the scale halves until they do not, and the run continues.
    trainer.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**21)
    before = trainer.model.head.weight.clone()
    trainer.fit()
    assert 2**12 < trainer.scaler.get_scale() < 2**21
    assert not torch.equal(trainer.model.head.weight, before)
    assert trainer.state.skipped == 0
    other = make_trainer(recipe, splits, tmp_path / "other")
    other.restore(read_checkpoint(list_checkpoints(tmp_path / "run" / "checkpoints")[-1]))
    assert other.scaler.state_dict() == trainer.scaler.state_dict()


@pytest.mark.slow
def test_a_compiled_run_is_the_same_up_to_rounding(recipe, splits, tmp_path):
    recipe = recipe.override(["schedule.epochs=1", "model.options.drop_rate=0"])
    plain, compiled = (
        train(recipe.override([f"compile={word}"]), tmp_path / word, splits=splits) for word in ("false", "true")
    )
    assert compiled.history[0]["train_loss"] == pytest.approx(plain.history[0]["train_loss"], rel=1e-4)


def test_data_driven_transform_is_that_of_the_training_images(recipe, splits, tmp_path):
    recipe = recipe.override(["model.options.transform=data_driven", "schedule.epochs=1"])
    result = train(recipe, tmp_path / "run", splits=splits)
    images = torch.cat(
        [images for images, _ in build_batches(recipe, splits.train, torch.device("cpu"), training=False)]
    )
    expected = tcpvit.algebra.data_driven(images.movedim(1, -1)).matrix
    torch.testing.assert_close(result.model.transform.matrix.double(), expected.double(), rtol=1e-5, atol=1e-5)
    saved = tcpvit.from_pretrained(tmp_path / "run" / "best")
    assert torch.equal(saved.transform.matrix, result.model.transform.matrix)


def test_a_data_driven_transform_is_that_of_channels_and_not_of_parts_of_a_patch(recipe, splits, tmp_path):
    changes = {"transform": "data_driven", "patch_embed": "sub_patch", "tube": 4, "embed_dim": 16}
    with pytest.raises(ValueError, match="with patch_embed=sub_patch the tube runs through the parts of a patch"):
        train(
            recipe.override([f"model.options.{key}={value}" for key, value in changes.items()]),
            tmp_path / "run",
            splits=splits,
        )


class Explosive(nn.Module):
    """Its loss is NaN in the steps that `at` names."""

    def __init__(self, at: set[int]):
        super().__init__()
        self.linear, self.at, self.calls = nn.Linear(3, 3), at, itertools.count()

    def forward(self, x):
        bad = self.training and next(self.calls) in self.at
        return self.linear(x.mean((2, 3))) * (float("nan") if bad else 1.0)


def test_a_loss_that_is_not_finite_stops_the_run_and_names_the_place(recipe, splits, tmp_path):
    recipe = recipe.override(["optimizer.accumulate=1", "checkpoints.every_steps=1"])
    sentence = r"not finite at step 4 \(epoch 2\): loss nan, gradient norm nan, weight norm [\d.]+, lr .*--resume"
    with pytest.raises(NonFiniteLoss, match=sentence):
        train(recipe, tmp_path / "run", splits=splits, model=Explosive({4}))
    tensors, state = read_checkpoint(list_checkpoints(tmp_path / "run" / "checkpoints")[-1])
    assert state["state"]["step"] == 4
    assert all(torch.isfinite(tensor).all() for tensor in tensors.values())
    resumed = resume(tmp_path / "run", splits=splits, model=Explosive(set()), overrides=["optimizer.lr=0.001"])
    assert resumed.history[-1]["epoch"] == 2


def test_or_skips_the_step(recipe, splits, tmp_path):
    recipe = recipe.override(["optimizer.accumulate=1", "optimizer.on_nonfinite=skip"])
    listener = Listener()
    result = train(recipe, tmp_path / "run", splits=splits, model=Explosive({1, 4}), progress=listener)
    assert [re.match(r"skipped step (\d)", text)[1] for text in listener.said] == ["1", "4"]
    assert [row["skipped"] for row in result.history] == [1, 2]
    assert all(torch.isfinite(p).all() for p in result.model.parameters())


class Spoilt(nn.Module):
    """Its batch norm sees an infinite image at the second call of training."""

    def __init__(self):
        super().__init__()
        self.norm, self.linear, self.calls = nn.BatchNorm1d(3), nn.Linear(3, 3), itertools.count()

    def forward(self, x):
        bad = self.training and next(self.calls) == 1
        return self.linear(self.norm(x.mean((2, 3)) + (float("inf") if bad else 0.0)))


def test_a_skipped_step_leaves_no_trace_in_batch_norm(recipe, splits, tmp_path):
    recipe = recipe.override(["optimizer.accumulate=1", "optimizer.on_nonfinite=skip"])
    result = train(recipe, tmp_path / "run", splits=splits, model=Spoilt(), progress=Listener())
    assert result.history[-1]["skipped"] == 1
    assert all(buffer.isfinite().all() for buffer in result.model.buffers())


def test_a_blank_image_leaves_no_trace_in_batch_norm(recipe, splits, tmp_path):
    """It stands in for a process's share of a batch that is too small for all."""
    trainer = make_trainer(recipe.override(["optimizer.accumulate=1"]), splits, tmp_path / "run", Spoilt())
    trainer.batches.set_epoch(0)
    trainer.model.train()
    images, targets = next(iter(trainer.batches))
    before, weights = trainer.copy_buffers(), [p.detach().clone() for p in trainer.model.parameters()]
    assert trainer.step(images[:0], targets[:0]) == StepTotals(0.0, 0.0, 0.0, 0.0, 0.0)
    assert all(map(torch.equal, trainer.model.buffers(), before))
    assert all(map(torch.equal, trainer.model.parameters(), weights))  # no decay and no momentum either
    trainer.model.calls = itertools.count(2)
    trainer.step(images, targets)
    assert not any(map(torch.equal, trainer.model.buffers(), before))


def test_but_not_for_ever(recipe, splits, tmp_path, monkeypatch):
    monkeypatch.setattr("tcpvit.training.trainer.MAX_SKIPPED_IN_A_ROW", 3)
    recipe = recipe.override(["optimizer.accumulate=1", "optimizer.on_nonfinite=skip"])
    with pytest.raises(NonFiniteLoss, match="step 3"):
        train(recipe, tmp_path / "run", splits=splits, model=Explosive(set(range(99))), progress=Listener())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["model.options.img_size=64"], r"takes images of 64×64, but those of made/0 have 32×32; resize .*=64, or"),
        (["model.options.in_chans=1"], r"takes 1 channels, but the images of made/0 have 3; .*in_chans=3"),
        (["model.options.num_classes=2"], r"num_classes is 2, but made/0 has 3 classes; leave it out"),
        (["model.options.depth=abc"], r"model.options.depth should be a whole number of at least 1, got 'abc'"),
        (["model.options.img_size=abc"], r"model.options.img_size should be .*, got 'abc'"),
        (["model.options.dept=2"], r"'dept' is no option of ViTConfig; did you mean 'depth'"),
        (["model.name=tcp_vit_cifra"], r"no model is called 'tcp_vit_cifra'; did you mean 'tcp_vit_cifar'"),
        (["precision=float16"], r"precision=float16 needs a CUDA GPU, this run is on cpu; take bfloat16 or float32"),
        (["device=tpu"], r"device='tpu' is not available here"),
    ],
)
def test_misfits_are_said_before_anything_is_written(recipe, splits, tmp_path, words, sentence):
    with pytest.raises(ValueError, match=sentence):
        train(recipe.override(words), tmp_path / "run", splits=splits)
    assert not (tmp_path / "run").exists()


def test_masks_need_a_model_that_gives_masks(recipe, tmp_path):
    data = make_set(20, 0, masks=True)
    recipe = recipe.override(["augment.mixup=0", "augment.erase=0"])
    with pytest.raises(
        ValueError, match="has masks, but tcp_vit_cifar labels whole images; take another model, as tcp_vit_pet"
    ):
        train(recipe, tmp_path / "run", splits=Splits("made", data, data, data))
