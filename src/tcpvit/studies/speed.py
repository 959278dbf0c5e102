"""Speed of whole models: Std-ViT, the paper's way and ours, in one interleaved run, beside what the FLOPs promise."""

from __future__ import annotations

import json as json_module
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import tcpvit
from tcpvit.algebra.checks import nearest
from tcpvit.analysis import count_flops
from tcpvit.layers.reference import PaperEncoder
from tcpvit.models import VisionTransformer, ViTConfig
from tcpvit.tables import Ratio, Table, show
from tcpvit.timing import interleaved, using_threads


@dataclass(frozen=True)
class Shape:
    """A pair of models of the same width on the same images; `heads` is per slice, `std_heads` of the Std-ViT."""

    img_size: int
    patch: int
    tube: int
    d: int
    heads: int
    std_heads: int
    depth: int
    batch: int
    mlp_ratio: float = 4.0

    def config(self, kind: str, **options: Any) -> ViTConfig:
        """The model of that kind."""
        return ViTConfig(
            kind,
            img_size=self.img_size,
            patch_size=self.patch,
            in_chans=self.tube,
            embed_dim=self.tube * self.d,
            depth=self.depth,
            num_heads=self.std_heads if kind == "std" else self.heads,
            mlp_ratio=self.mlp_ratio,
            **options,
        )


SHAPES = {
    "cifar": Shape(32, 4, tube=3, d=16, heads=4, std_heads=4, depth=4, batch=64),
    "pet": Shape(128, 8, tube=3, d=64, heads=4, std_heads=4, depth=4, batch=8, mlp_ratio=2.0),
    "base224": Shape(224, 16, tube=3, d=256, heads=4, std_heads=12, depth=2, batch=2),
    "multispectral": Shape(64, 8, tube=16, d=64, heads=1, std_heads=16, depth=2, batch=4),
    "hyperspectral": Shape(15, 5, tube=200, d=25, heads=5, std_heads=5, depth=1, batch=8),
}

VARIANTS: dict[str, dict[str, str]] = {
    "TCP-ViT, slice attention": {},
    "TCP-ViT, slice, spatial GELU": {"activation_domain": "spatial"},
    "TCP-ViT, joint attention": {"attention": "joint"},
    "TCP-ViT, joint, spatial GELU": {"attention": "joint", "activation_domain": "spatial"},
}
STD, PAPER = "Std-ViT", "TCP-ViT, the paper's way"


@dataclass(frozen=True)
class Measurement:
    """One model on one shape: best milliseconds, FLOPs of one image, both also as Std-ViT's over this model's."""

    shape: str
    threads: int
    model: str
    forward_ms: float
    training_ms: float
    forward_speedup: float
    training_speedup: float
    flops: int
    flops_ratio: float


def build(shape: Shape) -> dict[str, VisionTransformer]:
    """Every contender of a shape; the paper's way runs its slices as C encoders, one after the other."""
    torch.manual_seed(0)
    models = {STD: VisionTransformer(shape.config("std"))}
    paper = VisionTransformer(shape.config("tcp"))
    paper.blocks = nn.ModuleList([PaperEncoder(list(paper.blocks))])  # type: ignore[arg-type]
    models[PAPER] = paper
    return models | {name: VisionTransformer(shape.config("tcp", **options)) for name, options in VARIANTS.items()}


def measure(name: str, thread_counts: list[int], seconds: float) -> list[Measurement]:
    """All contenders of one shape, forward and forward+backward, interleaved."""
    shape = SHAPES[name]
    models = build(shape)
    images = torch.randn(shape.batch, shape.tube, shape.img_size, shape.img_size)
    flops = {model: int(count_flops(net, images[:1])) for model, net in models.items() if model != PAPER}
    flops[PAPER] = flops[next(iter(VARIANTS))]
    found = []
    for count in thread_counts:
        with using_threads(count):
            forward = interleaved({m: _forward(net.eval(), images) for m, net in models.items()}, seconds)
            training = interleaved({m: _training(net.train(), images) for m, net in models.items()}, seconds)
        found += [
            Measurement(
                shape=name,
                threads=count,
                model=model,
                forward_ms=1e3 * forward[model],
                training_ms=1e3 * training[model],
                forward_speedup=forward[STD] / forward[model],
                training_speedup=training[STD] / training[model],
                flops=flops[model],
                flops_ratio=flops[STD] / flops[model],
            )
            for model in models
        ]
    return found


def _forward(model: nn.Module, images: Tensor) -> Callable[[], object]:
    def run() -> object:
        with torch.inference_mode():
            return model(images)

    return run


def _training(model: nn.Module, images: Tensor) -> Callable[[], object]:
    def run() -> None:
        model.zero_grad(set_to_none=True)
        model(images).square().mean().backward()

    return run


def as_table(name: str, count: int, found: list[Measurement]) -> Table:
    """The measurements of one shape on `count` threads."""
    shape = SHAPES[name]
    title = (
        f"{name}: {shape.img_size}×{shape.img_size}×{shape.tube}, P={shape.patch}, d={shape.d}, C={shape.tube}, "
        f"L={shape.depth}, batch {shape.batch}, {count} thread{'s' if count > 1 else ''}"
    )
    columns = ["model", "forward ms", "fwd+bwd ms", "forward speed-up", "fwd+bwd speed-up", "FLOPs promise"]
    table = Table(f"{name}_{count}", title, columns)
    for m in found:
        speedups = Ratio(m.forward_speedup), Ratio(m.training_speedup), Ratio(m.flops_ratio)
        table.add(m.model, m.forward_ms, m.training_ms, *speedups, strong=m.model == STD)
    return table


def bench(
    shapes: list[str] | None = None,
    *,
    threads: list[int] | None = None,
    seconds: float = 5.0,
    out: Path | None = None,
    json: bool = False,
) -> list[Measurement]:
    """Time of models, forward and forward+backward, beside what their FLOPs promise.

    Std-ViT, the paper's way (one slice after the other) and TCP-ViT run in turns in one process; the best of many
    times counts. Speed-ups are against Std-ViT of the same shape.

    Args:
        shapes: which shapes to run, all if none is named: cifar, pet, base224, multispectral, hyperspectral.
        threads: threads of torch, may be repeated; 1 and 2 if not given.
        seconds: how long each comparison runs.
        out: also write the measurements with versions and settings into this JSON file.
        json: print JSON.

    Examples:
        tcpvit bench cifar
        tcpvit bench cifar pet --threads 1 --seconds 10
        tcpvit bench --out results/bench/models.json
    """
    names, counts = shapes or list(SHAPES), threads or [1, 2]
    for name in names:
        if name not in SHAPES:
            raise ValueError(f"no shape is called {name!r}{nearest(name, SHAPES)}")
    if min(counts) < 1 or seconds <= 0:
        raise ValueError(f"threads and seconds are positive, got threads={counts} and seconds={seconds}")
    found = []
    for name in names:
        measured = measure(name, counts, seconds)
        found += measured
        if not json:
            show([as_table(name, count, [m for m in measured if m.threads == count]) for count in counts])
    record = as_record(found, seconds)
    if json:
        print(json_module.dumps(record, indent=2))
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json_module.dumps(record, indent=2) + "\n")
    return found


def as_record(found: list[Measurement], seconds: float) -> dict[str, Any]:
    """What goes into the JSON file: the settings, then the measurements."""
    return {
        "command": f"tcpvit bench --seconds {seconds:g}",
        "tcpvit": tcpvit.__version__,
        "torch": torch.__version__,
        "processor": platform.processor() or platform.machine(),
        "shapes": {name: asdict(SHAPES[name]) for name in {m.shape: None for m in found}},
        "measurements": [asdict(m) for m in found],
    }
