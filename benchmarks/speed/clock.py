"""Times of all contenders of a shape in one interleaved run, beside the machine's own matrix product."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn

from benchmarks.speed.contenders import PAPER, PLAIN
from tcpvit.analysis import count_flops
from tcpvit.analysis.bench import SLICE, Shape, Speed, for_inference, forward_step, speed_of, training_step
from tcpvit.timing import interleaved, using_threads

PEAK = "one matrix product"
PEAK_SIZE = 1024
CACHE = "TORCHINDUCTOR_CACHE_DIR"
BACKWARD = 3  # forward and backward are three times the products of forward, but for the first layer's input


@dataclass(frozen=True)
class Setting:
    """How the models of a shape are run."""

    threads: int = 1
    precision: str = "float32"  # or "bfloat16": autocast
    compiled: bool = False

    def __str__(self) -> str:
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        return f"{threads}, {self.precision}, {'compiled' if self.compiled else 'eager'}"


@dataclass(frozen=True)
class Measurement(Speed):
    """A speed beside the machine's peak, in one setting.

    A share is FLOPs a second over those of one large matrix product in the same run. Compiled models have the seconds
    that their first call took.
    """

    compiled: bool
    forward_share: float
    training_share: float
    peak_gflops: float
    forward_compile_s: float | None = None
    training_compile_s: float | None = None


def measure(
    name: str, shape: Shape, models: Mapping[str, nn.Module], setting: Setting, seconds: float
) -> list[Measurement]:
    """Every model, forward and forward+backward, each for about `seconds`; `PLAIN` says where some are left out."""
    if setting.compiled or setting.precision != "float32":
        models = {model: net for model, net in models.items() if model not in PLAIN}
    images = shape.images()
    flops = {model: _flops(model, models, images[:1]) for model in models}
    forward, forward_compile = _times(models, images, setting, seconds, training=False)
    training, training_compile = _times(models, images, setting, seconds, training=True)
    peak = 2 * PEAK_SIZE**3 / min(forward[PEAK], training[PEAK])
    return [
        Measurement(
            **speed_of(model, net, flops, forward, training),
            shape=name,
            threads=setting.threads,
            precision=setting.precision,
            compiled=setting.compiled,
            forward_share=round(flops[model] * shape.batch / forward[model] / peak, 4),
            training_share=round(BACKWARD * flops[model] * shape.batch / training[model] / peak, 4),
            peak_gflops=round(peak / 1e9, 2),
            forward_compile_s=forward_compile.get(model),
            training_compile_s=training_compile.get(model),
        )
        for model, net in models.items()
    ]


def _flops(model: str, models: Mapping[str, nn.Module], image: Tensor) -> int:
    return int(count_flops(models[SLICE if model == PAPER else model], image))  # the same products


def _times(
    models: Mapping[str, nn.Module], images: Tensor, setting: Setting, seconds: float, *, training: bool
) -> tuple[dict[str, float], dict[str, float]]:
    """The best seconds of each model and of the matrix product, and the seconds that compilation took."""
    step = training_step if training else forward_step
    with using_threads(setting.threads), _compiler() if setting.compiled else nullcontext():
        nets = {model: net.train() if training else for_inference(net) for model, net in models.items()}
        if setting.compiled:
            nets = {model: torch.compile(net) for model, net in nets.items()}  # type: ignore[misc]
        steps = {model: step(net, images, setting.precision) for model, net in nets.items()}
        compile_s = {model: round(_seconds(run), 2) for model, run in steps.items()} if setting.compiled else {}
        return interleaved({**steps, PEAK: matrix_product(setting.precision)}, seconds), compile_s


def matrix_product(precision: str) -> Callable[[], object]:
    """The machine's peak: one large product."""
    A, B = (torch.randn(PEAK_SIZE, PEAK_SIZE, dtype=getattr(torch, precision)) for _ in range(2))
    return lambda: A @ B


def compiler_problem() -> str | None:
    """Why torch.compile does not work here, in a sentence, or None."""
    try:
        with _compiler():
            pass
    except Exception as error:  # whatever is missing: a compiler, its headers, a supported Python
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        return f"torch.compile does not work here, so compiled models are left out: {first}"
    return None


@contextmanager
def _compiler() -> Iterator[None]:
    """An empty cache, so that the time of compilation is what a first run takes; what all of them share is ready."""
    torch.compiler.reset()
    before = os.environ.get(CACHE)
    with TemporaryDirectory() as folder:
        os.environ[CACHE] = folder
        try:
            torch.compile(lambda x: x.exp() + 1)(torch.ones(8))
            yield
        finally:
            os.environ.pop(CACHE)
            if before is not None:
                os.environ[CACHE] = before
            torch.compiler.reset()


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
