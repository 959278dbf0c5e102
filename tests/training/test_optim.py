"""The learning rate by closed form, the groups, the averaged weights, and the optimiser's state as tensors."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

import tcpvit
from tcpvit.training.optim import (
    Ema,
    build_optimizer,
    load_optimizer_tensors,
    lr_factor,
    optimizer_tensors,
    set_lr,
)
from tcpvit.training.recipe import OptimizerRecipe, ScheduleRecipe


def small_model(**options):
    return tcpvit.create_model("tcp_vit_cifar", depth=1, patch_size=8, embed_dim=24, num_heads=2, **options)


def test_cosine_without_warm_up_is_torchs():
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20, eta_min=0.1)
    schedule = ScheduleRecipe(epochs=5, final_lr=0.1)
    for step in range(20):
        assert lr_factor(step, 4, schedule) == pytest.approx(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()


def test_warm_up_is_linear_and_the_cosine_fills_the_rest():
    schedule = ScheduleRecipe(epochs=3, warmup_epochs=1)
    factors = [lr_factor(step, 10, schedule) for step in range(31)]
    assert factors[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert factors[10:] == pytest.approx([(1 + math.cos(math.pi * step / 20)) / 2 for step in range(21)], abs=1e-12)


def test_a_fraction_of_an_epoch_warms_up_too():
    assert lr_factor(0, 5, ScheduleRecipe(epochs=1, warmup_epochs=0.5)) == pytest.approx(1 / 2.5)
    assert lr_factor(2, 5, ScheduleRecipe(epochs=1, warmup_epochs=0.5)) == 1.0


def test_slices_learn_faster_and_biases_do_not_decay():
    model = small_model()
    optimizer = build_optimizer(model, OptimizerRecipe(lr=0.1, weight_decay=0.05, slice_lr_scale="full"))
    set_lr(optimizer, 0.5)
    by_name = {name: group for group in optimizer.param_groups for name in group["names"]}
    assert set(by_name) == dict(model.named_parameters()).keys()
    assert by_name["blocks.0.attn.qkv.weight_hat"]["lr"] == pytest.approx(0.5 * 0.1 * 3)
    assert by_name["head.weight"]["lr"] == pytest.approx(0.5 * 0.1)
    assert by_name["head.weight"]["weight_decay"] == 0.05
    assert by_name["head.bias"]["weight_decay"] == 0.0


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, number: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(number):
        optimizer.zero_grad()
        model(torch.randn(4, 3, 32, 32, generator=generator)).square().sum().backward()
        optimizer.step()


def test_the_state_survives_as_flat_tensors():
    torch.manual_seed(0)
    model = small_model()
    optimizer = build_optimizer(model, OptimizerRecipe())
    steps(model, optimizer, 3, seed=0)
    tensors = {name: tensor.clone() for name, tensor in optimizer_tensors(optimizer).items()}
    other = copy.deepcopy(model)
    other_optimizer = build_optimizer(other, OptimizerRecipe())
    load_optimizer_tensors(other_optimizer, tensors)
    steps(model, optimizer, 2, seed=1)
    steps(other, other_optimizer, 2, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_ema_is_the_weighted_sum_of_all_weights():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    ema = Ema(model, decay=0.5)
    expected = model[0].weight.detach().double().clone()
    for step in range(12):
        with torch.no_grad():
            model[0].weight.add_(step)
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * model[0].weight.detach().double()
        model[1].running_mean.fill_(step)
        ema.update(model, step)
    torch.testing.assert_close(ema.model[0].weight.double(), expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(ema.model[1].running_mean, model[1].running_mean)
    assert not any(p.requires_grad for p in ema.model.parameters())
