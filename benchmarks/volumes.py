"""Cost of dense and c-product Transformers of volumes from order 3 to 4: parameters, FLOPs, time, memory.

    python -m benchmarks.volumes --results results

All have one width. Their steps are measured in turn, the best of several rounds, so that a busy machine disturbs all
alike; the clips grow from 4 to 16 frames.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tcpvit.analysis import count_memory, predict_flops, predict_parameters
from tcpvit.files import write_json
from tcpvit.models import ViTConfig
from tcpvit.models.vit import VisionTransformer

DENSE = ViTConfig(
    "std", img_size=(8, 32, 32), patch_size=(4, 8, 8), in_chans=3, embed_dim=384, num_heads=2, depth=4, num_classes=10
)
KINDS: dict[str, dict[str, Any]] = {
    "dense": {},
    "order 3, channels": {"kind": "tcp", "tube": "channels"},
    "order 3, depth": {"kind": "tcp", "tube": "depth"},
    "order 4": {"kind": "tcp", "tube": "depth+channels"},
    "order 4, joint": {"kind": "tcp", "tube": "depth+channels", "attention": "joint", "coupling": ("shuffle", "norm")},
}


def config_of(kind: str, frames: int) -> ViTConfig:
    """The model of that kind for clips of so many frames."""
    changes = dict(KINDS[kind])
    if changes:
        changes["patch_embed"] = "t_linear"
    return replace(DENSE, img_size=(frames, 32, 32), **changes)


def measure(frames: int, batch: int, rounds: int) -> dict[str, dict[str, float]]:
    """Milliseconds of a forward pass and of a training step, and what analysis says of each model."""
    models = {kind: VisionTransformer(config_of(kind, frames)) for kind in KINDS}
    clips = torch.randn(batch, 3, frames, 32, 32)

    @torch.inference_mode()
    def forward(model: VisionTransformer) -> None:
        model(clips)

    def step(model: VisionTransformer) -> None:
        model.zero_grad()
        model(clips).square().mean().backward()

    best = {(kind, run.__name__): math.inf for kind in models for run in (forward, step)}
    runs: list[Callable[[VisionTransformer], None]] = [forward, step]
    for _ in range(rounds):
        for kind, model in models.items():
            for run in runs:
                begin = time.perf_counter()
                run(model)
                key = (kind, run.__name__)
                best[key] = min(best[key], 1000 * (time.perf_counter() - begin))
    return {
        kind: {
            "parameters": int(predict_parameters(model.config)),
            "mflops": sum(work.matrix for work in predict_flops(model.config).values()) / 1e6,
            "forward": best[kind, "forward"] / batch,
            "step": best[kind, "step"] / batch,
            "activations": count_memory(model, batch=1).activations,
            "training_memory": count_memory(model, batch=batch).total,
        }
        for kind, model in models.items()
    }


def main() -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = {str(frames): measure(frames, options.batch, options.rounds) for frames in (4, 8, 16)}
    about = {
        "command": "python -m benchmarks.volumes",
        "torch": torch.__version__,
        "batch": options.batch,
        "threads": 1,
    }
    write_json(options.results / "bench" / "volumes.json", {**about, "frames": found})


if __name__ == "__main__":
    main()
