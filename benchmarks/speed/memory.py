"""Peak memory of training, each model in a fresh process.

A process imports everything, trains a small model so that every library is loaded, and notes what it holds. Then it
builds its own model and trains it three steps with AdamW; the highest resident memory of these steps, less what was
held before, is the model's. It is what the system sees, so what the allocator keeps to itself counts too. Linux forgets
an earlier peak when asked to (/proc/self/clear_refs); elsewhere the peak is that of the whole process, and a model
smaller than what importing took shows as nothing.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.speed.contenders import build
from tcpvit.analysis import count_memory
from tcpvit.analysis.bench import SHAPES, Shape

STEPS = 3  # the moments come with the first, everything is there together in the second


@dataclass(frozen=True)
class Footprint:
    """Bytes that training takes: the measured peak, and what `count_memory` counts."""

    shape: str
    model: str
    batch: int
    peak_bytes: int
    counted_bytes: int


def footprint(shape: str, model: str, batch: int | None = None) -> Footprint:
    """Train a model of a shape in a process of its own, on one thread."""
    batch = batch or SHAPES[shape].batch
    command = [sys.executable, "-m", "benchmarks.speed.memory", shape, model, str(batch)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:] or [f"it ended with code {done.returncode}"]
        raise OSError(f"the memory of {model} at {shape} could not be measured: {said[0]}")
    return Footprint(**json.loads(done.stdout))


def measure_here(name: str, model: str, batch: int) -> Footprint:
    """What the fresh process does."""
    torch.set_num_threads(1)
    shape = SHAPES[name]
    small = Shape(8, 4, tube=3, d=8, heads=1, std_heads=1, depth=1, batch=1)
    _train(build(model, small), small.images())
    before = _resident()
    net, images = build(model, shape), shape.images(batch)
    _forget_peak()
    _train(net, images)
    peak = _peak() - before
    return Footprint(name, model, batch, peak, count_memory(net, images).total)


def _train(model: nn.Module, images: Tensor) -> None:
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(STEPS):
        model(images).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def _resident() -> int:
    return _status("VmRSS") or _peak()


def _peak() -> int:
    return _status("VmHWM") or _maximum()


def _status(key: str) -> int | None:
    """A line of /proc/self/status in bytes; None where there is no such file."""
    status = Path("/proc/self/status")
    found = re.search(rf"{key}:\s+(\d+) kB", status.read_text()) if status.exists() else None
    return 1024 * int(found[1]) if found else None


def _maximum() -> int:
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _forget_peak() -> None:
    with suppress(OSError):  # not Linux, or not allowed
        Path("/proc/self/clear_refs").write_text("5")


if __name__ == "__main__":
    name, model, batch = sys.argv[1:]
    print(json.dumps(asdict(measure_here(name, model, int(batch)))))
