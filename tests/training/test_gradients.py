"""The gradient by slice: against autograd, before it is clipped, and once for each step also after a resumption."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
from test_trainer import Listener

import tcpvit
from tcpvit.training import resume, train
from tcpvit.training.gradients import gradient_norms

SMALL = {"patch_size": 8, "embed_dim": 24, "num_heads": 2, "depth": 2, "num_classes": 3}


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "gradients.csv").open() as file:
        return list(csv.DictReader(file))


class Stopping(Listener):
    """Breaks the run off after a number of steps."""

    def __init__(self, after: int):
        super().__init__()
        self.after = after

    def step(self, state):
        if state.step == self.after:
            raise InterruptedError


@pytest.mark.parametrize("coupling", [(), ("mix:rotation",), ("two_factor",)])
def test_squares_add_up_to_the_gradient_of_the_weights(coupling):
    model = tcpvit.create_model("tcp_vit_cifar", patch_embed="t_linear", coupling=coupling, **SMALL)
    model(torch.randn(4, 3, 32, 32)).square().sum().backward()
    found = gradient_norms(model)
    assert list(found) == [f"{place}:{k}" for place in ("patch_embed", "blocks.0", "blocks.1") for k in range(3)]
    for place in ("patch_embed", "blocks.0", "blocks.1"):
        layers = [p.grad for name, p in model.named_parameters() if name.startswith(place) and p.ndim == 3]
        weights = [grad for grad in layers if grad.shape[1] > 1]  # not biases and norms
        expected = sum(grad.square().sum() for grad in weights)
        torch.testing.assert_close(torch.tensor(sum(found[f"{place}:{k}"] ** 2 for k in range(3))), expected)


def test_a_slice_that_nothing_depends_on_has_none():
    model = tcpvit.create_model("tcp_vit_cifar", **SMALL | {"embed_dim": None, "patch_size": 4}).double()
    images = torch.randn(4, 3, 32, 32, dtype=torch.float64)
    tokens = model.transform.to_hat_tokens(model.unflatten(model.forward_features(images)))
    tokens[1].square().sum().backward()
    found = gradient_norms(model)
    assert {name for name, norm in found.items() if norm > 1e-6} == {"blocks.0:1", "blocks.1:1"}


@pytest.mark.parametrize(("name", "options"), [("std_vit_cifar", {}), ("tcp_vit_cifar", {"coupling": "shared+mix"})])
def test_a_model_without_weights_of_single_slices_has_none(name, options):
    model = tcpvit.create_model(name, **SMALL, **options)
    model(torch.randn(2, 3, 32, 32)).sum().backward()
    assert gradient_norms(model) == {}


def test_a_run_keeps_them_at_the_steps_that_were_asked_for(recipe, splits, tmp_path):
    clipped = recipe.override(["evaluation.gradients=2", "optimizer.clip_norm=0.001"])
    free = clipped.override(["optimizer.clip_norm=0"])
    train(clipped, tmp_path / "clipped", splits=splits)
    train(free, tmp_path / "free", splits=splits)
    found = rows(tmp_path / "clipped")
    assert [row["step"] for row in found] == ["1", "3", "5"]
    assert found[0] == rows(tmp_path / "free")[0]  # as they were before the clipping


def test_a_resumed_run_has_every_step_once(recipe, splits, tmp_path):
    recipe = recipe.override(["evaluation.gradients=1", "checkpoints.every_steps=2"])
    train(recipe, tmp_path / "whole", splits=splits)
    with pytest.raises(InterruptedError):
        train(recipe, tmp_path / "broken", splits=splits, progress=Stopping(5))
    resume(tmp_path / "broken", splits=splits)
    assert rows(tmp_path / "broken") == rows(tmp_path / "whole")
    assert len(rows(tmp_path / "whole")) == 6
