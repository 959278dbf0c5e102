"""Time of a segmenter by part, backbone and decoder, beside what its FLOPs promise.

    python benchmarks/segmentation.py             writes results/bench/segmentation.json, in some minutes

Times are those of the thread (`time.thread_time`), the best of a few turns, so that a busy machine spoils them little.
The bound is the time that the part would take at the speed of a matrix product of 1024×1024 in the same precision.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

import tcpvit.models.decoder
from tcpvit.analysis import count_flops
from tcpvit.analysis.report import DECODER
from tcpvit.layers.groups import parameter_groups
from tcpvit.models import create_model
from tcpvit.studies.speed.record import facts
from tcpvit.training.evaluation import autocast
from tcpvit.training.tasks import Segmentation

MODELS = ("std_vit_pet", "tcp_vit_pet", "tcp_vit_pet_plus", "tcp_vit_pet_full")
PICTURES = 5879  # in an epoch of the paper
CPU = torch.device("cpu")


def best_time(run: Callable[[], object], turns: int) -> float:
    """Seconds of the thread, the best of `turns` after one that warms up."""
    run()
    times = []
    for _ in range(turns):
        begin = time.thread_time()
        run()
        times.append(time.thread_time() - begin)
    return min(times)


def product_speed(precision: str, turns: int) -> float:
    """FLOPs a second of a large matrix product."""
    a = torch.randn(1024, 1024, dtype=getattr(torch, precision))
    return 2 * 1024**3 / best_time(lambda: a @ a, turns)


def measure(name: str, precision: str, batch: int, turns: int) -> dict[str, Any]:
    """Milliseconds of a batch: the parts forward and in training, the fused decoder, and a whole step with AdamW."""
    model, task = create_model(name), Segmentation(2)
    images, masks = torch.randn(batch, 3, 128, 128), torch.randint(0, 2, (batch, 128, 128))
    optimizer = torch.optim.AdamW(parameter_groups(model, 5e-4, 0.01), fused=True)
    maps = model.forward_features(images).detach().requires_grad_()
    fused = copy.deepcopy(model).fuse_()

    def backbone() -> Tensor:
        with autocast(CPU, precision):
            return model.forward_features(images)

    def decoder(of: Any = model) -> Tensor:
        with autocast(CPU, precision):
            return of.decoder(maps, (128, 128))

    def step() -> None:
        with autocast(CPU, precision):
            logits = model(images)
        optimizer.zero_grad(set_to_none=True)
        (task.loss(logits, masks) / task.weight(masks)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    def channels_first() -> None:
        with patch.object(tcpvit.models.decoder, "LAYOUT", torch.contiguous_format):
            decoder().float().square().mean().backward()

    training = {
        "backbone training": lambda: backbone().float().square().mean().backward(),
        "decoder training": lambda: decoder().float().square().mean().backward(),
        "decoder training, channels first": channels_first,
        "step": step,
    }
    times = {what: best_time(run, turns) for what, run in training.items()}
    model.eval()
    forward = {"backbone": backbone, "decoder": decoder, "decoder, fused": lambda: decoder(fused)}
    with torch.inference_mode():
        times |= {what: best_time(run, turns) for what, run in forward.items()}
    found: dict[str, Any] = {what: round(1e3 * seconds, 1) for what, seconds in times.items()}
    return found | {"epoch_seconds": round(times["step"] * PICTURES / batch)}


def flops_by_part(name: str, batch: int) -> dict[str, int]:
    """FLOPs of a batch, forward; training takes three times as many."""
    counts = count_flops(create_model(name), batch=batch)
    decoder = counts.sum(*(part for part in counts.components if part.startswith(DECODER)))
    return {"backbone": counts - decoder, "decoder": decoder}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("results/bench/segmentation.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for precision in ("float32", "bfloat16"):
        speed = product_speed(precision, options.turns)
        for name in MODELS:
            flops = flops_by_part(name, options.batch)
            bound = {part: round(1e3 * number / speed, 1) for part, number in flops.items()}
            times = measure(name, precision, options.batch, options.turns)
            rows.append({"model": name, "precision": precision, "flops": flops, "bound_ms": bound, "ms": times})
            print(json.dumps(rows[-1]), flush=True)
    about = facts("python benchmarks/segmentation.py") | {"batch": options.batch, "threads": 1}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
