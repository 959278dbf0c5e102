"""Whole models on a GPU, with our Triton kernels and without them, beside Std-ViT and timm's in one interleaved run.

    python -m benchmarks.gpu                 every shape, float32 and bfloat16; writes results/bench/gpu.json

The file has the form of results/bench/models.json, with the name of the GPU; `bfloat16` are weights and images of that
precision, without autocast. A line of the kernels says how far they are from torch's own results. `--device cpu` tries
the script out where there is no GPU: then no Triton kernel takes part.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.speed.clock import BACKWARD, PEAK, PEAK_SIZE, Measurement
from benchmarks.speed.contenders import build, builders
from benchmarks.speed.record import Record, facts
from benchmarks.speed.tables import TABLES
from tcpvit.analysis import count_flops
from tcpvit.analysis.bench import JOINT, SHAPES, SLICE, STD, Shape, for_inference, forward_step, speed_of, training_step
from tcpvit.cli.show import show
from tcpvit.timing import interleaved

PEER = "timm"
PLAIN = ", torch alone"  # the same model without our kernels


@contextmanager
def kernels(switched_on: bool) -> Iterator[None]:
    before = os.environ.get("TCPVIT_KERNELS")
    os.environ["TCPVIT_KERNELS"] = "1" if switched_on else "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ["TCPVIT_KERNELS"]
        else:
            os.environ["TCPVIT_KERNELS"] = before


def waited_for(run: Callable[[], object], device: torch.device, switched_on: bool) -> Callable[[], None]:
    """A call that ends when the GPU has ended it."""

    def call() -> None:
        with kernels(switched_on):
            run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return call


def times(models: dict[str, nn.Module], images: Tensor, seconds: float, *, training: bool) -> dict[str, float]:
    """The best seconds of each model, with and without our kernels, and of one matrix product."""
    step = training_step if training else forward_step
    runs: dict[str, Callable[[], None]] = {}
    for name, model in models.items():
        run = step(model.train() if training else for_inference(model), images)
        runs[name] = waited_for(run, images.device, True)
        if name != PEER:
            runs[name + PLAIN] = waited_for(run, images.device, False)
    A, B = (torch.randn(PEAK_SIZE, PEAK_SIZE, device=images.device, dtype=images.dtype) for _ in range(2))
    runs[PEAK] = waited_for(lambda: A @ B, images.device, False)
    return interleaved(runs, seconds)


def measure(name: str, shape: Shape, device: torch.device, precision: str, seconds: float) -> list[Measurement]:
    """Every model of a shape in one precision."""
    names = [model for model in (STD, SLICE, JOINT, PEER) if model in builders()]
    built = {model: build(model, shape) for model in names}
    flops = {model: int(count_flops(net, shape.images()[:1])) for model, net in built.items()}
    dtype = getattr(torch, precision)
    models = {model: net.to(device, dtype) for model, net in built.items()}
    images = shape.images().to(device, dtype)
    forward = times(models, images, seconds, training=False)
    training = times(models, images, seconds, training=True)
    peak = 2 * PEAK_SIZE**3 / min(forward[PEAK], training[PEAK])
    found = []
    for contender in forward.keys() - {PEAK}:
        model = contender.removesuffix(PLAIN)
        counted = flops | {contender: flops[model]}
        found.append(
            Measurement(
                **speed_of(contender, models[model], counted, forward, training),
                shape=name,
                threads=torch.get_num_threads(),
                precision=precision,
                compiled=False,
                forward_share=round(flops[model] * shape.batch / forward[contender] / peak, 4),
                training_share=round(BACKWARD * flops[model] * shape.batch / training[contender] / peak, 4),
                peak_gflops=round(peak / 1e9, 2),
            )
        )
    return sorted(found, key=lambda row: row.model)


def largest_difference(shape: Shape, device: torch.device, precision: str) -> float:
    """Between the logits of a TCP-ViT with and without our kernels."""
    dtype = getattr(torch, precision)
    model, images = build(SLICE, shape).to(device, dtype).eval(), shape.images()[:2].to(device, dtype)
    logits = []
    for switched_on in (True, False):
        with kernels(switched_on), torch.inference_mode():
            logits.append(model(images).float())
    return float((logits[0] - logits[1]).abs().max())


def gpu_facts(device: torch.device) -> dict[str, Any]:
    if device.type != "cuda":
        return {"gpu": None}
    properties = torch.cuda.get_device_properties(device)
    capability = f"sm_{properties.major}{properties.minor}"
    return {"gpu": properties.name, "capability": capability, "memory": properties.total_memory}


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", default=list(SHAPES), help=f"some of {', '.join(SHAPES)}; all by default")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precisions", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each comparison runs")
    parser.add_argument("--out", type=Path, default=Path("results/bench/gpu.json"))
    options = parser.parse_args(words)
    if unknown := set(options.shapes) - set(SHAPES):
        parser.error(f"no shape is called {', '.join(sorted(unknown))}; known: {', '.join(SHAPES)}")
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no GPU here; --device cpu tries the script out")
    pieces = [(shape, precision) for shape in options.shapes for precision in options.precisions]
    record = Record(facts("python -m benchmarks.gpu"), [f"{shape}, {precision}" for shape, precision in pieces])
    record.facts["machine"] |= gpu_facts(device)
    record.facts["largest_difference"] = {}
    for (shape, precision), piece in zip(pieces, record.planned, strict=True):
        record.facts["largest_difference"][piece] = largest_difference(SHAPES[shape], device, precision)
        found = measure(shape, SHAPES[shape], device, precision, options.seconds)
        record.add(piece, "time", found)
        record.save(options.out)
        show([TABLES["time"](found)])
    print(f"largest differences of the kernels: {record.facts['largest_difference']}")


if __name__ == "__main__":
    main()
