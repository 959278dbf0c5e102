"""Minutes of training without labels: the converted model learns what the blocks of the original give, and its output.

Each step takes a batch of real inputs. The loss is the squared distance of what every block gives from what it gave in
the original, relative to its size, and of the model's output; only the converted layers and their biases learn.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tcpvit.progress import Progress
from tcpvit.tensorize.flops import in_eval_mode
from tcpvit.tensorize.record import drop_ins_of
from tcpvit.tensorize.streams import Batch, caller_of, main_output, real_tokens, unit_names

TEMPERATURE = 2.0
SMALLEST = 1e-3  # size of a weight, root mean square, for the steps that it takes


@dataclass(frozen=True)
class Step:
    """A point of the curve of quality against time."""

    step: int
    seconds: float
    loss: float  # on batches that are held out


def refine(
    original: nn.Module,
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    minutes: float,
    lr: float = 1e-2,
    held_out: Sequence[Batch] = (),
    progress: Progress | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> list[Step]:
    """Train the converted layers of `model` for some minutes to give what `original` gives, in place.

    `lr` is the part of its size by which a weight changes in the largest steps of Adam. Returns the curve of the loss
    on `held_out` batches (else on the first one), eleven points. `time.process_time` as the clock counts minutes of the
    processor.
    """
    if minutes <= 0:
        raise ValueError(f"minutes is positive, got {minutes}")
    batches = list(batches)
    layers = drop_ins_of(model)
    if not batches or not layers:
        raise ValueError("there is nothing to refine: give batches of inputs, and a model that tensorize_ converted")
    parameters = (p for layer in layers.values() for p in layer.parameters() if p.requires_grad)
    learning = list(dict.fromkeys(parameters))  # tied ones once
    sizes = [max(p.detach().square().mean().sqrt().item(), SMALLEST) for p in learning]
    optimizer = torch.optim.Adam([{"params": [p]} for p in learning], lr=lr, betas=(0.9, 0.99))
    judged, curve = held_out or batches[:1], []
    generator = torch.Generator().manual_seed(0)
    progress = progress or Progress()
    with (
        in_eval_mode(original),
        in_eval_mode(model),
        contextlib.closing(_Loss(original, model, batches[0])) as loss_of,
        _gradients_of(learning),
    ):
        start, step, end = clock(), 0, 60 * minutes
        for tenth in progress.track(range(11), "refining"):
            while (spent := clock() - start) < end * tenth / 10:
                rate = lr * min(1.0, (step + 1) / 20) * max(1 - spent / end, 0.02)
                for group, size in zip(optimizer.param_groups, sizes, strict=True):
                    group["lr"] = rate * size
                batch = batches[int(torch.randint(len(batches), (1,), generator=generator))]
                optimizer.zero_grad(set_to_none=True)
                loss_of(batch).backward(inputs=learning)  # the others keep the gradients that they have
                torch.nn.utils.clip_grad_norm_(learning, 1.0)
                optimizer.step()
                step += 1
            with torch.no_grad():
                loss = sum(loss_of(batch).item() for batch in judged) / len(judged)
            curve.append(Step(step, clock() - start, loss))
    return curve


@contextlib.contextmanager
def _gradients_of(learning: Iterable[nn.Parameter]) -> Iterator[None]:
    """Gradients that are of no use afterwards."""
    try:
        yield
    finally:
        for parameter in learning:
            parameter.grad = None


class _Loss:
    """How far the model is from the original on a batch: at each block, and in the end."""

    def __init__(self, original: nn.Module, model: nn.Module, batch: Batch):
        self.calls = [caller_of(module, batch) for module in (original, model)]
        self.seen: list[dict[str, Any]] = [{}, {}]
        self.hooks = contextlib.ExitStack()
        for seen, module in zip(self.seen, (original, model), strict=True):
            for unit in unit_names(list(drop_ins_of(model))):
                handle = module.get_submodule(unit).register_forward_hook(_note(seen, unit))
                self.hooks.callback(handle.remove)

    def __call__(self, batch: Batch) -> Tensor:
        with torch.no_grad():
            name, expected = main_output(self.calls[0](batch))
        _, found = main_output(self.calls[1](batch))
        terms = [
            relative(real_tokens(self.seen[1][unit], batch), real_tokens(before, batch))
            for unit, before in self.seen[0].items()
        ]
        found, expected = real_tokens(found, batch), real_tokens(expected, batch)
        hidden = torch.stack(terms).mean() if terms else found.new_zeros(())
        return hidden + (divergence(found, expected) if name == "logits" else relative(found, expected))

    def close(self) -> None:
        """Take the hooks away."""
        self.hooks.close()


def _note(seen: dict[str, Any], unit: str) -> Any:
    def hook(module: nn.Module, args: Any, output: Any) -> None:
        seen[unit] = output[0] if isinstance(output, tuple | list) else output

    return hook


def relative(found: Tensor, expected: Tensor) -> Tensor:
    """The squared distance, as a part of the variance of what is expected."""
    return (found - expected).square().mean() / (expected - expected.mean(0)).square().mean().clamp_min(1e-12)


def divergence(found: Tensor, expected: Tensor) -> Tensor:
    """The Kullback-Leibler divergence of softened predictions."""
    soft, target = ((logits / TEMPERATURE).log_softmax(-1) for logits in (found, expected))
    return TEMPERATURE**2 * F.kl_div(soft, target, reduction="batchmean", log_target=True)
