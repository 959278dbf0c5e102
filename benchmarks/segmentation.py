"""Time of a segmenter by part, backbone and decoder, beside what its FLOPs promise.

    python -m benchmarks.segmentation             writes results/bench/segmentation.json, in some minutes

Times are those of the thread (`time.thread_time`), the best of several turns that the models take one after the other:
a busy machine spoils them little, and no model alone.
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
from benchmarks.speed.record import facts
from tcpvit.analysis import count_flops
from tcpvit.analysis.report import DECODER
from tcpvit.layers.groups import parameter_groups
from tcpvit.models import create_model
from tcpvit.timing import interleaved
from tcpvit.training.evaluation import autocast
from tcpvit.training.tasks import Segmentation

MODELS = ("std_vit_pet", "tcp_vit_pet", "tcp_vit_pet_plus", "tcp_vit_pet_full")
IMAGES = 5879  # in an epoch of the paper
CPU = torch.device("cpu")


def contenders(name: str, precision: str, batch: int) -> dict[str, Callable[[], object]]:
    """What is timed of a model: its parts in training and forward, the fused decoder, and a whole step with AdamW."""
    model, task = create_model(name), Segmentation(2)
    images, masks = torch.randn(batch, 3, 128, 128), torch.randint(0, 2, (batch, 128, 128))
    optimizer = torch.optim.AdamW(parameter_groups(model, 5e-4, 0.01), fused=True)
    maps = model.forward_features(images).detach().requires_grad_()
    at_rest = copy.deepcopy(model).eval()
    fused = copy.deepcopy(model).eval().fuse_()

    def backbone(of: Any = model) -> Tensor:
        with autocast(CPU, precision):
            return of.forward_features(images)

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

    return {
        "backbone training": lambda: backbone().float().square().mean().backward(),
        "decoder training": lambda: decoder().float().square().mean().backward(),
        "decoder training, channels first": channels_first,
        "step": step,
        "backbone": torch.inference_mode()(lambda: backbone(at_rest)),
        "decoder": torch.inference_mode()(lambda: decoder(at_rest)),
        "decoder, fused": torch.inference_mode()(lambda: decoder(fused)),
    }


def measure(precision: str, batch: int, seconds: float) -> tuple[dict[str, dict[str, float]], float]:
    """Milliseconds of a batch by model and part, all models in turns, and the FLOPs a second of a matrix product."""
    runs = {name: contenders(name, precision, batch) for name in MODELS}
    times: dict[str, dict[str, float]] = {name: {} for name in MODELS}
    for part in runs[MODELS[0]]:
        found = interleaved({name: runs[name][part] for name in MODELS}, seconds, time.thread_time)
        for name in MODELS:
            times[name][part] = round(1e3 * found[name], 1)
        print(precision, part, {name: times[name][part] for name in MODELS}, flush=True)
    a = torch.randn(1024, 1024, dtype=getattr(torch, precision))
    product = interleaved({"product": lambda: a @ a}, seconds / 10, time.thread_time)
    return times, 2 * 1024**3 / product["product"]


def flops_by_part(name: str, batch: int) -> dict[str, int]:
    """FLOPs of a batch, forward; training takes three times as many."""
    counts = count_flops(create_model(name), batch=batch)
    decoder = counts.sum(*(part for part in counts.components if part.startswith(DECODER)))
    return {"backbone": counts - decoder, "decoder": decoder}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=25.0, help="for each part, all models in turns")
    parser.add_argument("--out", type=Path, default=Path("results/bench/segmentation.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for precision in ("float32", "bfloat16"):
        times, speed = measure(precision, options.batch, options.seconds)
        for name in MODELS:
            flops = flops_by_part(name, options.batch)
            bound = {part: round(1e3 * number / speed, 1) for part, number in flops.items()}
            epoch = round(times[name]["step"] / 1e3 * IMAGES / options.batch)
            row = {"model": name, "precision": precision, "flops": flops, "bound_ms": bound}
            rows.append({**row, "ms": {**times[name], "epoch_seconds": epoch}})
    about = facts("python -m benchmarks.segmentation") | {"batch": options.batch, "threads": 1}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
