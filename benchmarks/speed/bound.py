"""The least time that a model could take on this machine, from rates that the machine shows in the same run.

time ≥ products + softmax + streams: FLOPs at the rate of a matrix product, one exponential for each score at the rate
of attention with heads of one number, and the bytes that have to pass through the memory (weights, gradients, images,
and what forward keeps for backward, written and read) at the rate of a copy. Forward+backward has three times the
products, and computes the scores twice. Norms, GELU and residuals are left out, so the bound is not reached. All on one
thread, whose own time counts: what other processes take is left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from benchmarks.speed.clock import BACKWARD, PEAK, PEAK_SIZE, matrix_product
from tcpvit.analysis import count_flops, count_memory
from tcpvit.analysis.bench import JOINT, SLICE, STD, Shape, for_inference, forward_step, training_step
from tcpvit.layers.attention import attend
from tcpvit.models import VisionTransformer
from tcpvit.timing import interleaved, using_threads

LAYERS = f"{STD}, layer by layer"  # as it would be without the fused halves
EXP, COPY = "exp", "copy"
ATTENDING = (128, 256)  # images, and tokens of each
COPIED = 2**24  # numbers, in no cache
SCORED_TWICE = 2


@dataclass(frozen=True)
class Rates:
    """What the machine does in a second."""

    flops: float
    exponentials: float
    bytes: float


@dataclass(frozen=True)
class Bound:
    """Milliseconds of a model beside the least that they could be, in parts; forward, or forward+backward."""

    shape: str
    model: str
    training: bool
    ms: float
    products_ms: float
    softmax_ms: float
    streams_ms: float
    speedup: float  # over Std-ViT layer by layer

    @property
    def least_ms(self) -> float:
        """The bound."""
        return self.products_ms + self.softmax_ms + self.streams_ms


def bounds(name: str, shape: Shape, models: Mapping[str, nn.Module], seconds: float) -> list[Bound]:
    """Std-ViT, with and without its fused halves, and both TCP-ViTs, forward and forward+backward."""
    images, found = shape.images(), []
    nets = {LAYERS: layer_by_layer(models[STD]), **models}
    for training, step in ((False, forward_step), (True, training_step)):
        steps = {model: step(net.train() if training else for_inference(net), images) for model, net in nets.items()}
        with using_threads(1):
            times = interleaved({**steps, **_probes()}, seconds, time.thread_time)
        rates = Rates(
            2 * PEAK_SIZE**3 / times[PEAK], ATTENDING[0] * ATTENDING[1] ** 2 / times[EXP], 8 * COPIED / times[COPY]
        )
        for model, net in nets.items():
            parts = least(shape, model, net, rates, training=training)
            gain = times[LAYERS] / times[model]
            found.append(Bound(name, model, training, _ms(times[model]), *map(_ms, parts), round(gain, 3)))
    return found


def least(shape: Shape, model: str, net: nn.Module, rates: Rates, *, training: bool) -> tuple[float, float, float]:
    """Seconds of the products, of the softmax and of the streams."""
    images = shape.images()
    memory = count_memory(net, images)
    passes = (BACKWARD, SCORED_TWICE) if training else (1, 1)
    moved = 2 * (memory.weights + memory.activations) + memory.gradients if training else memory.weights
    return (
        passes[0] * int(count_flops(net, images)) / rates.flops,
        passes[1] * scores(shape, model) / rates.exponentials,
        (moved + images.nbytes) / rates.bytes,
    )


def scores(shape: Shape, model: str) -> int:
    """Entries of all softmax maps of a batch.

    >>> scores(Shape(32, 4, tube=3, d=16, heads=4, std_heads=4, depth=4, batch=64), SLICE) == 4 * 64 * 12 * 65**2
    True
    """
    maps = {SLICE: shape.tube * shape.heads, JOINT: shape.heads}.get(model, shape.std_heads)
    tokens = 1 + (shape.img_size // shape.patch) ** 2
    return shape.depth * shape.batch * maps * tokens**2


def layer_by_layer(model: nn.Module) -> nn.Module:
    """A copy whose blocks are not fused: somebody watches their norms."""
    assert isinstance(model, VisionTransformer)
    copy = VisionTransformer(model.config)
    copy.load_state_dict(model.state_dict())
    for block in copy.blocks:
        for norm in (block.norm1, block.norm2):
            norm.register_forward_hook(_nothing)  # type: ignore[operator, union-attr]
    return copy


def _nothing(*_: object) -> None:
    pass


def _probes() -> dict[str, Callable[[], object]]:
    qkv, long = torch.randn(1, *ATTENDING, 3), torch.randn(COPIED)
    copied = torch.empty_like(long)
    return {
        PEAK: matrix_product("float32"),
        EXP: lambda: attend(qkv, num_heads=1),
        COPY: lambda: copied.copy_(long),
    }


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, 4)
