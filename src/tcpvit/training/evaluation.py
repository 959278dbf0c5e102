"""How good a model is on a set."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from tcpvit.training.distributed import World
from tcpvit.training.metrics import AnyMetrics
from tcpvit.training.sharding import forward_any, is_sharded
from tcpvit.training.tasks import Task


def evaluate(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    task: Task,
    device: torch.device | str = "cpu",
    precision: str = "float32",
    world: World | None = None,
) -> AnyMetrics:
    """The metrics of `model` over all batches, those of the other processes too; its mode stays as it was."""
    device = torch.device(device)
    metrics, was_training = task.metrics(device), model.training
    model.eval()
    try:
        # FSDP uses the same memory in training and evaluation, which inference mode does not allow.
        with torch.no_grad() if is_sharded(model) else torch.inference_mode():
            for images, targets in batches:
                images, targets = images.to(device), targets.to(device)
                with autocast(device, precision):
                    logits = forward_any(lambda x: unwrapped(model(x)), images)
                task.check_logits(logits, targets)
                metrics.update(logits, targets, task.loss(logits, targets))
    finally:
        model.train(was_training)
    for counts in metrics.counts():
        (world or World()).sum(counts)
    return metrics


def unwrapped(output: Any) -> Tensor:
    """The logits of a model that gives them among other things, as those of transformers do."""
    logits: Tensor = getattr(output, "logits", output)
    return logits


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """Products in bfloat16 or float16; float32 is plain."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, dtype=getattr(torch, precision))
