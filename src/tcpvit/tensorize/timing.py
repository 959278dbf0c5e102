"""What layers take of time, measured here and now: the price of a form where the budget is one of time."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from tcpvit.layers.linear import TubalLinear
from tcpvit.tensorize.budget import Form
from tcpvit.timing import interleaved

MOST_TOKENS = 1024
SECONDS = 0.1  # for each kind of layer


@torch.no_grad()
def price_in_seconds(
    options: Mapping[str, Sequence[Form]], shapes: Mapping[str, Sequence[int]], tokens: Mapping[str, int]
) -> tuple[dict[str, list[Form]], dict[str, float]]:
    """The forms of each layer with the seconds that they take for a batch, and what the dense layers take.

    Slices are measured for each tube, low rank at two ranks: between them, time is a straight line.
    """
    known: dict[tuple[int, int, int], dict[int, tuple[float, float]]] = {}
    priced: dict[str, list[Form]] = {}
    dense: dict[str, float] = {}
    for name, forms in options.items():
        d_in, d_out = shapes[name]
        key = (d_in, d_out, min(tokens[name], MOST_TOKENS))
        if key not in known:
            known[key] = _measure(*key, tubes=sorted({form.tube for form in forms}))
        lines = known[key]
        dense[name] = lines[0][0]
        priced[name] = [
            replace(form, price=lines[0][0] if form.is_dense else lines[form.tube][0] + form.rank * lines[form.tube][1])
            for form in forms
        ]
    return priced, dense


def _measure(d_in: int, d_out: int, tokens: int, *, tubes: Sequence[int]) -> dict[int, tuple[float, float]]:
    """Seconds of the dense layer (0), and for each tube seconds at rank 0 and for each further rank."""
    x, low, high = torch.randn(tokens, d_in), 8, max(16, min(d_in, d_out) // 2)
    layers: dict[tuple[int, int], torch.nn.Module] = {(0, 0): torch.nn.Linear(d_in, d_out)}
    for tube in tubes:
        layers |= {(tube, rank): TubalLinear(d_in, d_out, tube, rank=rank) for rank in (low, high)}
    seconds = SECONDS * len(layers)
    best = interleaved({key: lambda m=m: m(x) for key, m in layers.items()}, seconds, time.perf_counter)  # type: ignore[misc]
    found = {0: (best[0, 0], 0.0)}
    for tube in tubes:
        slope = max(best[tube, high] - best[tube, low], 0.0) / (high - low)
        found[tube] = (best[tube, low] - low * slope, slope)
    return found
