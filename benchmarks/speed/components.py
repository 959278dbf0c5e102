"""Where the time goes: torch.profiler's own time of every operator, summed by component."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from tcpvit.analysis.bench import Shape, forward_step, training_step
from tcpvit.layers import HatTransform
from tcpvit.timing import using_threads

# The first component whose word is in the name of an operator has it; the order matters ("gelu_backward" is no copy).
WORDS: dict[str, tuple[str, ...]] = {
    "attention half": ("attention_half",),
    "FFN half": ("ffn_half",),
    "attention": ("attention", "softmax"),
    "norm": ("norm", "addcmul"),
    "GELU": ("gelu",),
    "matrix products": ("mm", "matmul", "linear", "conv", "einsum"),
    "copies": ("copy", "clone", "contiguous", "cat", "stack", "reshape", "permute", "transpose", "view", "flatten"),
}
TRANSFORM, OTHER = "transform", "other"
COMPONENTS = ("attention half", "FFN half", "matrix products", "attention", "norm", "GELU", TRANSFORM, "copies", OTHER)
AT_LEAST = 10  # passes


@dataclass(frozen=True)
class Components:
    """Milliseconds of one pass on one thread by component; of several passes the fastest."""

    shape: str
    model: str
    training: bool
    milliseconds: dict[str, float]


def profile_models(name: str, shape: Shape, nets: Mapping[str, nn.Module], seconds: float) -> list[Components]:
    """Forward alone, and forward+backward, by the fastest pass; the models take turns for about `seconds` each."""
    images, found = shape.images(), []
    for training, step in ((False, forward_step), (True, training_step)):
        steps = {model: step(net.train(training), images) for model, net in nets.items()}
        with using_threads(1), ExitStack() as stack:
            for net in nets.values():
                stack.enter_context(_named_transform(net))
            fastest = _fastest(steps, seconds * len(nets))
        found += [
            Components(name, model, training, {part: round(ms, 4) for part, ms in times.items()})
            for model, times in fastest.items()
        ]
    return sorted(found, key=lambda row: list(nets).index(row.model))


def _fastest(steps: Mapping[str, Callable[[], object]], seconds: float) -> dict[str, dict[str, float]]:
    for step in steps.values():
        step()
    rounds: list[dict[str, dict[str, float]]] = []
    end = time.perf_counter() + seconds
    while len(rounds) < AT_LEAST or time.perf_counter() < end:
        rounds.append({model: _profiled(step) for model, step in steps.items()})
    return {model: min((one[model] for one in rounds), key=lambda times: sum(times.values())) for model in steps}


def _profiled(step: Callable[[], object]) -> dict[str, float]:
    with _without_chatter(), profile(activities=[ProfilerActivity.CPU]) as profiler:
        step()
    events = [event for event in profiler.events() if event.self_cpu_time_total > 0]
    forward = {event.sequence_nr for event in events if _is_inside(event, TRANSFORM) and event.sequence_nr >= 0}
    times = dict.fromkeys(COMPONENTS, 0.0)
    for event in events:
        times[_component(event, forward)] += event.self_cpu_time_total / 1e3
    return times


def _component(event: Any, transform: set[int]) -> str:
    """Of an operator; those of the transform, and their backward, which bears the same number, come first."""
    if any(e.name == TRANSFORM or e.sequence_nr in transform for e in _lineage(event)):
        return TRANSFORM
    name = event.name.lower()
    return next((part for part, words in WORDS.items() if any(word in name for word in words)), OTHER)


def _is_inside(event: Any, name: str) -> bool:
    return any(e.name == name for e in _lineage(event))


def _lineage(event: Any) -> Iterator[Any]:
    while event is not None:
        yield event
        event = event.cpu_parent


@contextmanager
def _without_chatter() -> Iterator[None]:
    """The profiler of torch 2.13 writes to stderr, from C++, that it starts and stops."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


@contextmanager
def _named_transform(net: nn.Module) -> Iterator[None]:
    """Let the profiler see where the tube transform is at work."""
    transforms = [module for module in net.modules() if isinstance(module, HatTransform)]
    names = ("to_hat", "from_hat", "to_hat_tokens", "from_hat_tokens")

    def named(method: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def run(x: torch.Tensor) -> torch.Tensor:
            with record_function(TRANSFORM):
                return method(x)

        return run

    for transform in transforms:
        for name in names:
            setattr(transform, name, named(getattr(transform, name)))
    try:
        yield
    finally:
        for transform in transforms:
            for name in names:
                delattr(transform, name)
