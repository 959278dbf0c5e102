"""Time a picture of every model of the classification study, in one interleaved run: the frontier's second axis.

    python benchmarks/classification.py [--seconds 60]

Writes results/bench/classification.json, from which `tcpvit reproduce classification --pages-only` draws.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from tcpvit.models import create_model
from tcpvit.studies.classification import FULL, LARGE, SMALL
from tcpvit.studies.study import Planned
from tcpvit.tables import Table, Written, show
from tcpvit.timing import interleaved, using_threads

OUT = Path("results/bench/classification.json")
BATCH = 64
SAME_TIME = {
    "mix-data": "joint-mix",
    "fast-data": "joint-full-lr",
}  # a matrix drawn from the pictures takes the DCT's time


def main() -> None:
    """Measure, show, and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="of each of the two measurements")
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args()
    models = build_models()
    images, labels = torch.randn(BATCH, 3, 32, 32), torch.randint(10, (BATCH,))
    with using_threads(1):
        forward, training = (
            interleaved({name: of(model) for name, model in models.items()}, asked.seconds, time.thread_time)
            for of in (partial(_forward, images=images), partial(_step, images=images, labels=labels))
        )
    rows = [
        {
            "name": name,
            "parameters": sum(p.numel() for p in models[source].parameters()),
            "forward_ms": 1000 * forward[source] / BATCH,
            "training_ms": 1000 * training[source] / BATCH,
        }
        for name, source in [(name, SAME_TIME.get(name, name)) for name in SMALL | LARGE]
    ]
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    about = {"batch": BATCH, "threads": 1, "seconds": asked.seconds, "torch": torch.__version__}
    about |= {"command": "python benchmarks/classification.py", "machine": platform.machine()}
    asked.out.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    table = Table("times", "Milliseconds a picture, one thread", ["model", "parameters", "forward", "forward+backward"])
    for row in rows:
        times = [Written(f"{row[key]:.3f}") for key in ("forward_ms", "training_ms")]
        table.add(row["name"], row["parameters"], *times)
    show([table])


def build_models() -> dict[str, Any]:
    """The models by their names in the study, each built once."""
    found = {}
    for name, changes in (SMALL | LARGE).items():
        if name not in SAME_TIME:
            recipe = Planned("gap", name, FULL, changes).resolved()
            found[name] = create_model(recipe.model.name, **recipe.model.options)
    return found


def _forward(model: Any, images: torch.Tensor) -> Callable[[], object]:
    def run() -> None:
        model.eval()
        with torch.inference_mode():
            model(images)

    return run


def _step(model: Any, images: torch.Tensor, labels: torch.Tensor) -> Callable[[], object]:
    def run() -> None:
        model.train()
        F.cross_entropy(model(images), labels).backward()
        model.zero_grad(set_to_none=True)

    return run


if __name__ == "__main__":
    main()
