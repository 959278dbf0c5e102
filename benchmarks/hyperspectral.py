"""Each model on one core: a step of training, and all of Indian Pines predicted, with memory for one and two scenes.

    python -m benchmarks.hyperspectral --root FOLDER      writes results/bench/hyperspectral.json, in a minute

Each measurement is a process of its own. Time is that of the thread, the best of two; memory is the highest that the
process had while it predicted, less what it had before: two scenes side by side are 145×290 pixels. Steps of training,
forward and backward of a batch, take turns in one process.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.speed.record import facts
from experiments.hyperspectral.cube import WINDOW
from experiments.hyperspectral.peers import NETWORKS
from experiments.hyperspectral.spectra import Spectra
from tcpvit.analysis.bench import training_step
from tcpvit.data.scenes import Scene, find_scene, fit_statistics, scene_windows
from tcpvit.models import create_model
from tcpvit.timing import interleaved, using_threads

NAMES = ("tcp_scene", "tcp_scene_stem", "std_scene")
OUT = Path("results/bench/hyperspectral.json")
BATCH = 512
TRAINING_BATCH = 64


def measure(name: str, root: Path, copies: int) -> dict[str, Any]:
    """Predict copies of the scene beside each other."""
    torch.set_num_threads(1)
    one = find_scene("indian-pines", root)
    scene = Scene(np.tile(one.data, (1, copies, 1)), name=one.name)
    peer = NETWORKS.get(name)
    spectra = Spectra(fit_statistics(scene, transductive=True), peer.components if peer else None)
    model: Any = peer.network(spectra.channels, peer.window, 16) if peer else create_model(name)
    window = peer.window if peer else WINDOW
    predict(model.eval(), scene, window, spectra, pixels=BATCH)  # warm
    Path("/proc/self/clear_refs").write_text("5")  # the highest memory counts from here
    before, times = memory("VmRSS"), []
    for _ in range(2 if copies == 1 else 1):
        begun = time.thread_time()
        predict(model, scene, window, spectra)
        times.append(time.thread_time() - begun)
    return {
        "name": name,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "cpu_seconds": min(times),
        "peak_bytes": max(memory("VmHWM") - before, 0),
    }


@torch.inference_mode()
def predict(model: Any, scene: Scene, window: int, spectra: Spectra, pixels: int | None = None) -> None:
    """The class of every pixel, or of the first ones."""

    def prepare(tile: Tensor) -> Tensor:  # (1, bands, h, w) -> (1, channels, h, w)
        return torch.from_numpy(spectra.apply(tile[0].permute(1, 2, 0).numpy())).permute(2, 0, 1)[None]

    classes, done = np.zeros(scene.shape[:2], np.uint8), 0
    for batch in scene_windows(scene, window, BATCH, prepare):
        classes[tuple(batch.pixels.T)] = 1 + model(batch.windows).argmax(1).numpy()
        done += len(batch.pixels)
        if pixels is not None and done >= pixels:
            return


def training_ms(seconds: float = 10) -> dict[str, float]:
    """Milliseconds of a step of each model."""
    models = {name: create_model(name) for name in NAMES}
    windows = torch.randn(TRAINING_BATCH, 200, WINDOW, WINDOW)
    steps = {name: training_step(model.train(), windows) for name, model in models.items()}
    with using_threads(1):
        return {name: 1e3 * best for name, best in interleaved(steps, seconds, time.thread_time).items()}


def memory(name: str) -> int:
    """VmRSS (what the process has) or VmHWM (the most it had), in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def main() -> None:
    """Measure all models, each in its own process, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, help="the folder that holds the data sets")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.one[0], given.root, int(given.one[1]))))
        return
    rows, steps = [], training_ms()
    for name in NAMES:
        own, two = (_apart(name, given.root, copies) for copies in (1, 2))
        rows.append(own | {"peak_bytes_of_two": two["peak_bytes"], "training_ms": steps[name]})
        print(rows[-1])
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps({**facts("python -m benchmarks.hyperspectral"), "models": rows}, indent=1) + "\n")


def _apart(name: str, root: Path | None, copies: int) -> dict[str, Any]:
    words = [sys.executable, "-m", "benchmarks.hyperspectral", "--one", name, str(copies)]
    words += [] if root is None else ["--root", str(root)]
    found = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    return dict(json.loads(found.splitlines()[-1]))


if __name__ == "__main__":
    main()
