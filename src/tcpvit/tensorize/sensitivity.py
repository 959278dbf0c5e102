"""What an error at a layer costs the model: which of its outputs matter, and of which tokens.

A change δ of a layer's output at a token changes the model's output by gᵀδ, where g is a gradient. Over all tokens that
is taken apart into a metric of outputs, G = Σ g gᵀ, and a weight of each token, |g|² (as in K-FAC): patches that a
classifier does not read any more, or outputs that no prediction depends on, need not be kept.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tcpvit.tensorize.streams import Batch, Place, Streams, hooked, main_output, real_tokens, rows_of

DAMPING = 0.1  # nothing counts less than this part of the mean


@dataclass
class Sensitivity:
    """Of one layer."""

    metric: Tensor  # G, (out, out)
    tokens: list[list[Tensor]]  # by batch and call: (N,), 1 on average

    def damp_(self) -> None:
        """Let everything count a little."""
        size = len(self.metric)
        self.metric += (DAMPING * self.metric.trace() / size + 1e-30) * torch.eye(size, dtype=self.metric.dtype)
        found = [weights for calls in self.tokens for weights in calls]
        mean = torch.cat(found).mean().clamp_min(1e-30) if found else 1.0
        self.tokens = [[weights / mean + DAMPING for weights in calls] for calls in self.tokens]


def sensitivities(streams: Streams) -> dict[str, Sensitivity]:
    """By layer; nothing where the model has an operation without a derivative.

    Logits are judged by the likelihood of labels drawn from them, so that what does not change a prediction counts
    less; other outputs by random projections.
    """
    found = {
        place.name: Sensitivity(torch.zeros(2 * place.weight.shape[1:], dtype=torch.float64), [])
        for place in streams.places
    }
    generator = torch.Generator().manual_seed(0)
    learning = [p for p in streams.model.parameters() if p.requires_grad]
    for parameter in learning:
        parameter.requires_grad_(False)
    try:
        for batch in streams.batches:
            with torch.enable_grad(), _gradients_into(found, streams.places, batch):
                _score(streams.call(batch), batch, generator).backward()
    except RuntimeError:
        return {}
    finally:
        for parameter in learning:
            parameter.requires_grad_(True)
    for sensitivity in found.values():
        sensitivity.damp_()
    return found


@contextlib.contextmanager
def _gradients_into(found: dict[str, Sensitivity], places: list[Place], batch: Batch) -> Iterator[None]:
    def hook(sensitivity: Sensitivity) -> Any:
        calls: list[Tensor] = []
        sensitivity.tokens.append(calls)

        def start(module: nn.Module, args: Any, output: Tensor) -> Tensor:
            index = len(calls)
            calls.append(torch.zeros(len(rows_of(module, output, batch))))

            def note(gradient: Tensor) -> None:
                rows = rows_of(module, gradient, batch)
                sensitivity.metric += (rows.T @ rows).cpu()
                calls[index] = rows.square().sum(1).cpu()

            output = output if output.requires_grad else output.detach().requires_grad_()
            output.register_hook(note)
            return output

        return start

    with hooked(place.old.register_forward_hook(hook(found[place.name])) for place in places):
        yield


def _score(outputs: Any, batch: Batch, generator: torch.Generator) -> Tensor:
    """A number whose gradient is that of the model's output in a random direction."""
    name, found = main_output(outputs)
    rows = real_tokens(found, batch)
    if name == "logits":
        drawn = torch.multinomial(rows.detach().softmax(-1).cpu(), 1, generator=generator).to(rows.device)
        return rows.log_softmax(-1).gather(1, drawn).sum()
    return (rows * torch.randn(rows.shape, generator=generator).to(rows)).sum()
