"""AdamW, its learning rate, and the averaged weights: what a step does to the parameters."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from tcpvit.layers.groups import parameter_groups
from tcpvit.training.recipe import OptimizerRecipe, ScheduleRecipe


def build_optimizer(model: nn.Module, recipe: OptimizerRecipe) -> torch.optim.AdamW:
    """AdamW with decayed, undecayed and slice-wise groups; each group remembers its peak rate."""
    groups = parameter_groups(model, recipe.lr, recipe.weight_decay, recipe.slice_lr_scale)
    for group in groups:
        group["peak_lr"] = group["lr"]
    fused = next(model.parameters()).device.type in ("cpu", "cuda")
    return torch.optim.AdamW(groups, lr=recipe.lr, betas=recipe.betas, eps=recipe.eps, fused=fused)


def lr_factor(step: int, steps_per_epoch: int, schedule: ScheduleRecipe) -> float:
    """The learning rate of a step as a fraction of the peak: linear warm-up, then a cosine over the rest.

    >>> four = ScheduleRecipe(epochs=4, warmup_epochs=2, final_lr=0.1)
    >>> [round(lr_factor(step, 1, four), 3) for step in range(5)]
    [0.5, 1.0, 1.0, 0.55, 0.1]
    """
    total, warmup = schedule.epochs * steps_per_epoch, schedule.warmup_epochs * steps_per_epoch
    if step < warmup:
        return (step + 1) / warmup if step + 1 < warmup else 1.0
    done = min(1.0, (step - warmup) / max(total - warmup, 1))
    return schedule.final_lr + (1 - schedule.final_lr) * (1 + math.cos(math.pi * done)) / 2


def set_lr(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Give every group its peak rate times `factor`."""
    for group in optimizer.param_groups:
        group["lr"] = group["peak_lr"] * factor


class Ema:
    """The moving average of a model's weights, as a model that can be evaluated and saved.

    The decay starts low, (1 + step) / (10 + step), so that the random beginning is soon forgotten.
    """

    def __init__(self, model: nn.Module, decay: float):
        self.decay = decay
        self.model = copy.deepcopy(model).requires_grad_(False).eval()
        self._tensors: tuple[list[Tensor], ...] | None = None

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Move towards the weights after step number `step`; buffers are copied. It is always the same model."""
        if self._tensors is None:  # now, and not at the beginning: sharding puts others in their place
            self._tensors = tuple(list(f()) for m in (self.model, model) for f in (m.parameters, m.buffers))
        weights, buffers, new_weights, new_buffers = self._tensors
        decay = min(self.decay, (1 + step) / (10 + step))
        get_ema_multi_avg_fn(decay)(weights, new_weights, None)
        for mine, theirs in zip(buffers, new_buffers, strict=True):
            mine.copy_(theirs)


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's state as flat tensors, `<parameter>.exp_avg` and so on."""
    return {
        f"{name}.{key}": value
        for group in optimizer.param_groups
        for name, parameter in zip(group["names"], group["params"], strict=True)
        for key, value in optimizer.state[parameter].items()
    }


def load_optimizer_tensors(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """The inverse of `optimizer_tensors`."""
    by_name: dict[str, dict[str, Tensor]] = {}
    for full_name, tensor in tensors.items():
        name, _, key = full_name.rpartition(".")
        by_name.setdefault(name, {})[key] = tensor
    state: dict[str, Any] = optimizer.state_dict()
    names = [name for group in optimizer.param_groups for name in group["names"]]
    state["state"] = {index: by_name[name] for index, name in enumerate(names) if name in by_name}
    optimizer.load_state_dict(state)
