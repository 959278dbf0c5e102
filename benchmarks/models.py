"""Whole models side by side with timm's, vit-pytorch's and Hugging Face's: the whole grid behind docs/speed.md.

    python benchmarks/models.py --seconds 0.6    writes results/bench/models.json, in about half an hour
    python docs/write_speed.py                   writes the tables and figures of docs/speed.md from it

Every piece is written as it ends, and the same command goes on where it was interrupted. `tcpvit bench` measures any
part of it, and more (compiled bfloat16). Waiting threads spin here, as they do for whoever uses the library: that is
faster on a quiet machine. The command line lets them sleep (OMP_WAIT_POLICY=PASSIVE), which a busy one needs.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from benchmarks.speed.clock import Setting
from benchmarks.speed.contenders import SHAPES
from benchmarks.speed.verb import make_plan, run_plan

PARTS = ["memory", "components", "growth", "time"]
SETTINGS = [
    *(Setting(threads, precision) for precision in ("float32", "bfloat16") for threads in (1, 2)),
    *(Setting(threads, compiled=True) for threads in (1, 2)),
]


def settle(seconds: float = 120) -> None:
    """The load is that of the minute before: let the machine forget what ended just now."""
    end = time.monotonic() + seconds
    while hasattr(os, "getloadavg") and os.getloadavg()[0] > 1 and time.monotonic() < end:
        time.sleep(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", default=list(SHAPES), help=f"some of {', '.join(SHAPES)}; all by default")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each comparison runs")
    parser.add_argument("--out", type=Path, default=Path("results/bench/models.json"))
    options = parser.parse_args()
    settle()
    plan = make_plan(options.shapes, PARTS, SETTINGS, peers=True, seconds=options.seconds)
    shapes = "" if options.shapes == list(SHAPES) else f" {' '.join(options.shapes)}"
    run_plan(plan, f"python benchmarks/models.py{shapes} --seconds {options.seconds:g}", options.out, json=False)


if __name__ == "__main__":
    main()
