"""`tcpvit bench`: a plan of pieces, each measured, shown and written at once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from torch import nn

from benchmarks.speed.clock import PRECISIONS, Setting, compiler_problem, measure
from benchmarks.speed.components import profile_models
from benchmarks.speed.contenders import JOINT, PEERS, SHAPES, SLICE, STD, build, builders, missing_peers
from benchmarks.speed.growth import AXES, grow
from benchmarks.speed.memory import footprint
from benchmarks.speed.record import PARTS, Record, facts
from benchmarks.speed.tables import TABLES
from tcpvit.cli.show import show
from tcpvit.errors import did_you_mean

MAIN = (STD, SLICE, JOINT)
WEIGHTS_DOMINATE = ("base224", 1)  # a shape and a batch at which training holds more weights than activations


@dataclass(frozen=True)
class Piece:
    """Something to measure by itself: its name, the part of the record it belongs to, and how."""

    name: str
    part: str
    run: Callable[[], Sequence[Any]]


def bench(
    shapes: list[str] | None = None,
    *,
    parts: list[str] | None = None,
    threads: list[int] | None = None,
    precision: list[str] | None = None,
    compile: bool = False,
    peers: bool = True,
    seconds: float = 2.0,
    out: Path | None = None,
    json: bool = False,
) -> Record:
    """Time of models, forward and forward+backward, beside what their FLOPs promise.

    Std-ViT, the paper's way (one slice after the other), TCP-ViT and the same ViT from timm, vit-pytorch and Hugging
    Face run in turns in one process, and so does one large matrix product; the best of many times counts. Speed-ups
    are against Std-ViT of the same shape and setting.

    Args:
        shapes: which shapes to run, all if none is named: cifar, pet, base224, multispectral, hyperspectral.
        parts: what to measure, may be repeated: time (if not given), memory (of training, each model in a process of
            its own), components (where the time goes), growth (of the time with N, d, C and the batch).
        threads: threads of torch, may be repeated; 1 and 2 if not given.
        precision: float32 (if not given) or bfloat16 (autocast), may be repeated.
        compile: also run the models compiled by torch.compile, which takes a minute or more for a shape.
        peers: with the models of timm, vit-pytorch and Hugging Face, as far as they are installed.
        seconds: how long each comparison runs; slow models run three times at least.
        out: write everything into this JSON file, after each piece; the same command goes on with a file that was
            interrupted.
        json: print JSON.

    Examples:
        tcpvit bench cifar
        tcpvit bench cifar pet --threads 1 --compile --no-peers
        tcpvit bench --precision float32 --precision bfloat16 --seconds 5
        tcpvit bench base224 --parts memory --parts components --out speed.json
    """
    shapes, parts, threads = shapes or list(SHAPES), parts or ["time"], threads or [1, 2]
    precision = precision or ["float32"]
    for kind, asked, known in (("shape", shapes, SHAPES), ("part", parts, PARTS), ("precision", precision, PRECISIONS)):
        for name in asked:
            if name not in known:
                raise ValueError(f"no {kind} is called {name!r}{did_you_mean(name, known)}")
    if min(threads) < 1 or seconds <= 0:
        raise ValueError(f"threads and seconds are positive, got threads={threads} and seconds={seconds}")
    if compile and "time" in parts and (problem := compiler_problem()):
        compile = False
        print(problem, file=sys.stderr)
    if peers and (missing := missing_peers()):
        packages = " ".join(PEERS[name][0] for name in missing)
        print(f"not installed, so left out: {', '.join(missing)} (pip install {packages})", file=sys.stderr)
    settings = [Setting(t, p, c) for c in ((False, True) if compile else (False,)) for p in precision for t in threads]
    plan = make_plan(shapes, parts, settings, peers, seconds)
    return run_plan(plan, _command(shapes, parts, settings, peers, seconds), out, json)


def make_plan(shapes: list[str], parts: list[str], settings: list[Setting], peers: bool, seconds: float) -> list[Piece]:
    """The pieces of these parts, in that order."""
    return [piece for part in parts for piece in PLANS[part](shapes, settings, peers, seconds)]


def run_plan(plan: Sequence[Piece], command: str, out: Path | None, json: bool) -> Record:
    """Measure piece by piece what is not in `out` already."""
    record = Record(facts(command), [piece.name for piece in plan])
    if out is not None and out.exists() and (before := Record.load(out)).continues(record):
        record = before
        print(f"going on with {out}, {len(record.pieces)} of {len(plan)} pieces are done", file=sys.stderr)
    for piece in plan:
        if piece.name in record.pieces:
            continue
        found = piece.run()
        record.add(piece.name, piece.part, found)
        if out is not None:
            record.save(out)
        if not json:
            show([TABLES[piece.part](found)])
    if json:
        print(record.to_json())
    return record


def _time(shapes: list[str], settings: list[Setting], peers: bool, seconds: float) -> list[Piece]:
    @lru_cache(maxsize=1)  # the models of a shape may take gigabytes and a while to build
    def models(shape: str) -> dict[str, nn.Module]:
        return {name: build(name, SHAPES[shape]) for name in builders(peers)}

    def run(shape: str, setting: Setting) -> Sequence[Any]:
        return measure(shape, SHAPES[shape], models(shape), setting, seconds)

    return [Piece(f"{shape}, {s}", "time", partial(run, shape, s)) for shape in shapes for s in settings]


def _memory(shapes: list[str], settings: list[Setting], peers: bool, seconds: float) -> list[Piece]:
    asked: list[tuple[str, int, tuple[str, ...]]] = [(shape, SHAPES[shape].batch, MAIN) for shape in shapes]
    if WEIGHTS_DOMINATE[0] in shapes:
        asked.append((*WEIGHTS_DOMINATE, (*MAIN, *(name for name in builders(peers) if name in PEERS))))

    def run(shape: str, batch: int, names: Sequence[str]) -> Sequence[Any]:
        return [footprint(shape, name, batch) for name in names]

    return [
        Piece(f"memory of {shape}, batch {batch}", "memory", partial(run, shape, batch, m)) for shape, batch, m in asked
    ]


def _components(shapes: list[str], settings: list[Setting], peers: bool, seconds: float) -> list[Piece]:
    def run(shape: str) -> Sequence[Any]:
        nets = {model: build(model, SHAPES[shape]) for model in MAIN}
        return profile_models(shape, SHAPES[shape], nets, seconds / 2)

    return [Piece(f"components of {shape}", "components", partial(run, shape)) for shape in shapes]


def _growth(shapes: list[str], settings: list[Setting], peers: bool, seconds: float) -> list[Piece]:
    return [Piece(f"growth with {axis}", "growth", partial(grow, axis, at, seconds / 4)) for axis, at in AXES.items()]


PLANS = {"time": _time, "memory": _memory, "components": _components, "growth": _growth}


def _command(shapes: list[str], parts: list[str], settings: list[Setting], peers: bool, seconds: float) -> str:
    """What to type for the same again."""
    words = ["tcpvit bench", *(shapes if shapes != list(SHAPES) else [])]
    words += [f"--parts {part}" for part in parts]
    words += [f"--threads {count}" for count in dict.fromkeys(s.threads for s in settings)]
    words += [f"--precision {name}" for name in dict.fromkeys(s.precision for s in settings)]
    words += ["--compile"] * any(s.compiled for s in settings) + ["--no-peers"] * (not peers)
    return " ".join([*words, f"--seconds {seconds:g}"])
