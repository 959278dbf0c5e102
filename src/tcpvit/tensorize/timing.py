"""What layers take of time, measured here and now: the price of a form where the budget is one of time."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import nn

from tcpvit.layers.linear import TubalLinear
from tcpvit.tensorize.budget import Form
from tcpvit.timing import interleaved

MOST_TOKENS = 1024
SECONDS = 0.1  # for each layer that is measured
Shape = tuple[int, int, int]  # features in and out, tokens of a batch
Times = dict[tuple[int, int], float]  # seconds by tube and rank; (1, 0) is the dense layer


def price_in_seconds(
    options: Mapping[str, Sequence[Form]], shapes: Mapping[str, Shape]
) -> tuple[dict[str, list[Form]], dict[str, float]]:
    """The forms of each layer with the seconds that they take for a batch, and what the dense layers take.

    Each tube is measured at a few ranks for each shape: between them, time is a straight line.
    """
    tubes: dict[Shape, set[int]] = {}
    for name, forms in options.items():
        tubes.setdefault(shapes[name], set()).update(form.tube for form in forms)
    times = {shape: measure(*shape, tubes=found) for shape, found in tubes.items()}
    priced = {
        name: [replace(form, price=seconds(form, times[shapes[name]])) for form in forms]
        for name, forms in options.items()
    }
    return priced, {name: times[shapes[name]][1, 0] for name in options}


@torch.no_grad()
def measure(d_in: int, d_out: int, tokens: int, *, tubes: Iterable[int]) -> Times:
    """Seconds of the dense layer, and of each tube without a rank, with a low and with a high one."""
    x = torch.randn(min(tokens, MOST_TOKENS), d_in)
    layers: dict[tuple[int, int], nn.Module] = {(1, 0): nn.Linear(d_in, d_out)}
    for tube in tubes:
        ranks = (0, 8, max(16, min(d_in, d_out) // 2))
        layers |= {(tube, rank): TubalLinear(d_in, d_out, tube, rank=rank) for rank in ranks if tube > 1 or rank}
    calls = {key: lambda layer=layer: layer(x) for key, layer in layers.items()}
    best = interleaved(calls, SECONDS * len(layers), time.perf_counter)
    return {key: found * tokens / len(x) for key, found in best.items()}


def seconds(form: Form, times: Times) -> float:
    """What a form takes, from a few that were measured."""
    if form.rank == 0:
        return times[form.tube, 0]
    low, high = sorted(rank for tube, rank in times if tube == form.tube and rank)
    slope = max(times[form.tube, high] - times[form.tube, low], 0.0) / (high - low)
    return times[form.tube, low] + (form.rank - low) * slope
