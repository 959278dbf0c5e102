"""A plan of pieces, each measured, shown and written at once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from torch import nn

from benchmarks.speed.bound import bounds
from benchmarks.speed.clock import Setting, measure
from benchmarks.speed.components import profile_models
from benchmarks.speed.contenders import build, builders
from benchmarks.speed.growth import AXES, grow
from benchmarks.speed.memory import footprint
from benchmarks.speed.record import Record, facts
from benchmarks.speed.tables import TABLES
from tcpvit.analysis.bench import JOINT, PEERS, SHAPES, SLICE, STD
from tcpvit.cli.show import show

MAIN = (STD, SLICE, JOINT)
WEIGHTS_DOMINATE = ("base224", 1)  # a shape and a batch at which training holds more weights than activations


@dataclass(frozen=True)
class Piece:
    """Something to measure by itself: its name, the part of the record it belongs to, and how."""

    name: str
    part: str
    run: Callable[[], Sequence[Any]]


def make_plan(shapes: list[str], parts: list[str], settings: list[Setting], peers: bool, seconds: float) -> list[Piece]:
    """The pieces of these parts, in that order."""
    return [piece for part in parts for piece in PLANS[part](shapes, settings, peers, seconds)]


def run_plan(plan: Sequence[Piece], command: str, out: Path) -> Record:
    """Measure piece by piece what is not in `out` already."""
    record = Record(facts(command), [piece.name for piece in plan])
    if out.exists() and (before := Record.load(out)).continues(record):
        record = before
        print(f"resuming {out}, {len(record.pieces)} of {len(plan)} pieces are done", file=sys.stderr)
    for piece in plan:
        if piece.name in record.pieces:
            continue
        found = piece.run()
        record.add(piece.name, piece.part, found)
        record.save(out)
        show([TABLES[piece.part](found)])
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


def _bound(shapes: list[str], settings: list[Setting], peers: bool, seconds: float) -> list[Piece]:
    def run(shape: str) -> Sequence[Any]:
        return bounds(shape, SHAPES[shape], {model: build(model, SHAPES[shape]) for model in MAIN}, seconds)

    return [Piece(f"bound of {shape}", "bound", partial(run, shape)) for shape in shapes]


PLANS = {"time": _time, "memory": _memory, "components": _components, "growth": _growth, "bound": _bound}
