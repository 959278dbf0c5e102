"""Time an image of every model of the classification study, in one interleaved run: the frontier's second axis.

    python -m benchmarks.classification [--seconds 60]

Writes results/bench/classification.json, from which `python -m experiments classification --pages-only` draws.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F

from experiments.classification.plan import DEEP, FULL, LARGE, SMALL
from experiments.classification.small import FINALS
from tcpvit.cli.show import show
from tcpvit.compare.study import Planned
from tcpvit.layers.coupling import coupling_words
from tcpvit.models import create_model
from tcpvit.tables import Table, Written
from tcpvit.timing import interleaved, using_threads

OUT = Path("results/bench/classification.json")
BATCH = 64


def main() -> None:
    """Measure, show, and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="of each of the two measurements")
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args()
    chosen = SMALL | LARGE | DEEP | FINALS
    networks = {name: network(changes) for name, changes in chosen.items()}  # some differ in training only
    models = {each: create_model(each.name, **dict(each.options)) for each in dict.fromkeys(networks.values())}
    images, labels = torch.randn(BATCH, 3, 32, 32), torch.randint(10, (BATCH,))
    with using_threads(1):
        forward, training = (
            interleaved({each: of(model) for each, model in models.items()}, asked.seconds, time.thread_time)
            for of in (partial(_forward, images=images), partial(_step, images=images, labels=labels))
        )
    rows = [
        {
            "name": name,
            "parameters": sum(p.numel() for p in models[each].parameters()),
            "forward_ms": 1000 * forward[each] / BATCH,
            "training_ms": 1000 * training[each] / BATCH,
        }
        for name, each in networks.items()
    ]
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    about = {"batch": BATCH, "threads": 1, "seconds": asked.seconds, "torch": torch.__version__}
    about |= {"command": "python -m benchmarks.classification", "machine": platform.machine()}
    asked.out.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    table = Table("times", "Milliseconds an image, one thread", ["model", "parameters", "forward", "forward+backward"])
    for row in rows:
        times = [Written(f"{row[key]:.3f}") for key in ("forward_ms", "training_ms")]
        table.add(row["name"], row["parameters"], *times)
    show([table])


class Network(NamedTuple):
    """What is timed: a preset with its options."""

    name: str
    options: tuple[tuple[str, Any], ...]


def network(changes: tuple[str, ...]) -> Network:
    """The model of a run of the study; a transform drawn from the images takes the DCT's time."""
    model = Planned("gap", "", FULL, changes).resolved().model
    options = {key: value for key, value in model.options.items() if value != "data_driven"}
    options |= {"coupling": coupling_words(options["coupling"])} if "coupling" in options else {}
    return Network(model.name, tuple(sorted(options.items())))


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
