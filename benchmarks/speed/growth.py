"""How time grows: one block of Std-ViT and TCP-ViT against N, d, C and the batch, with slopes in logarithms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.speed.contenders import build
from tcpvit.analysis import count_flops
from tcpvit.analysis.bench import SLICE, STD, Shape, training_step
from tcpvit.timing import interleaved, using_threads

# One block on 8×8 = 64 patches; one of the four is changed at a time.
BASE = Shape(64, 8, tube=4, d=64, heads=4, std_heads=4, depth=1, batch=8)
AXES: dict[str, tuple[int, ...]] = {
    "N": (16, 64, 256, 1024),
    "d": (16, 32, 64, 128, 256),
    "C": (1, 2, 4, 8, 16),
    "batch": (1, 2, 4, 8, 16, 32),
}
MODELS = (STD, SLICE)


@dataclass(frozen=True)
class Growth:
    """Forward+backward of a model along an axis, one thread; slopes are of milliseconds and of FLOPs."""

    axis: str
    model: str
    points: list[int]
    training_ms: list[float]
    time_slope: float
    flops_slope: float


def grow(axis: str, points: Sequence[int], seconds: float) -> list[Growth]:
    """Both models along an axis, each point for about `seconds`."""
    times: dict[str, list[float]] = {model: [] for model in MODELS}
    flops: dict[str, list[float]] = {model: [] for model in MODELS}
    for value in points:
        shape = at(axis, value)
        models, images = {model: build(model, shape) for model in MODELS}, shape.images()
        with using_threads(1):
            best = interleaved({model: training_step(net, images) for model, net in models.items()}, seconds)
        for model, net in models.items():
            times[model].append(round(1e3 * best[model], 4))
            flops[model].append(int(count_flops(net, images)))
    return [
        Growth(axis, m, list(points), times[m], round(slope(points, times[m]), 3), round(slope(points, flops[m]), 3))
        for m in MODELS
    ]


def at(axis: str, value: int) -> Shape:
    """The shape with that value on the axis.

    >>> at("N", 256).img_size, at("C", 16).width
    (128, 1024)
    """
    changes: dict[str, dict[str, Any]] = {
        "N": {"img_size": BASE.patch * math.isqrt(value)},
        "d": {"d": value},
        "C": {"tube": value},
        "batch": {"batch": value},
    }
    return replace(BASE, **changes[axis])


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The exponent p of y ≈ a·x^p, by least squares of the logarithms.

    >>> round(slope([1, 2, 4], [3, 12, 48]), 6)
    2.0
    """
    if len(x) < 2:
        raise ValueError(f"a slope needs at least two points, got {len(x)}")
    u, v = [math.log(value) for value in x], [math.log(value) for value in y]
    mean_u, mean_v = sum(u) / len(u), sum(v) / len(v)
    products = sum((a - mean_u) * (b - mean_v) for a, b in zip(u, v, strict=True))
    return products / sum((a - mean_u) ** 2 for a in u)
