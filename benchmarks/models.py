"""Whole models side by side with timm's, vit-pytorch's and Hugging Face's: the whole grid behind docs/speed.md.

    python -m benchmarks.models --fast-mkl --seconds 0.6     writes results/bench/models.json, in about half an hour
    python -m benchmarks.models --parts bound --out results/bench/bound.json     the least time there could be
    python -m benchmarks.models --fast-mkl --parts bound --out results/bench/bound_fast_mkl.json
    python -m benchmarks.speed.pages              writes the tables and figures of docs/speed.md

With `--fast-mkl` MKL computes on any processor as on Intel's: without it Std-ViT and the peers are slow on AMD.

Every piece is written as it ends, and the same command resumes where it was interrupted. `tcpvit bench` is the small
form of it. Waiting threads spin here, as they do for whoever uses the library: that is faster on a quiet machine. The
command line lets them sleep (OMP_WAIT_POLICY=PASSIVE), which a busy one needs.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from benchmarks.speed.clock import Setting, compiler_problem
from benchmarks.speed.mkl import use_fast
from benchmarks.speed.plan import PLANS, make_plan, run_plan
from tcpvit.analysis.bench import PRECISIONS, SHAPES

PARTS = ["memory", "components", "growth", "time"]


def settle(seconds: float = 120) -> None:
    """The load is that of the minute before: let the machine forget what ended just now."""
    end = time.monotonic() + seconds
    while hasattr(os, "getloadavg") and os.getloadavg()[0] > 1 and time.monotonic() < end:
        time.sleep(1)


def settings(compiled: bool) -> list[Setting]:
    """One and two threads: eager in both precisions, and compiled in float32."""
    eager = [Setting(threads, precision) for precision in PRECISIONS for threads in (1, 2)]
    return eager + ([Setting(threads, compiled=True) for threads in (1, 2)] if compiled else [])


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", default=list(SHAPES), help=f"some of {', '.join(SHAPES)}; all by default")
    parser.add_argument("--parts", nargs="+", choices=PLANS, default=PARTS)
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each comparison runs")
    parser.add_argument("--out", type=Path, default=Path("results/bench/models.json"))
    parser.add_argument("--fast-mkl", action="store_true", help="MKL as on Intel")
    options = parser.parse_args(words)
    if unknown := set(options.shapes) - set(SHAPES):
        parser.error(f"no shape is called {', '.join(sorted(unknown))}; known: {', '.join(SHAPES)}")
    if options.fast_mkl:
        use_fast(sys.argv[1:] if words is None else words)
    problem = compiler_problem() if "time" in options.parts else None
    if problem:
        print(problem)
    settle()
    plan = make_plan(options.shapes, options.parts, settings(problem is None), peers=True, seconds=options.seconds)
    shapes = "" if options.shapes == list(SHAPES) else f" {' '.join(options.shapes)}"
    parts = "" if options.parts == PARTS else f" --parts {' '.join(options.parts)}"
    fast = " --fast-mkl" * options.fast_mkl
    run_plan(plan, f"python -m benchmarks.models{shapes}{fast}{parts} --seconds {options.seconds:g}", options.out)


if __name__ == "__main__":
    main()
