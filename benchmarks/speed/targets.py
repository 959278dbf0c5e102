"""What was to be reached, each model at its best, beside what was measured; a miss says where the time went."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.speed.clock import Measurement
from benchmarks.speed.components import TRANSFORM
from benchmarks.speed.contenders import JOINT, PEERS, SLICE, STD
from benchmarks.speed.record import Record
from tcpvit.tables import Table, Written

# shape -> model -> how many times as fast as Std-ViT, forward+backward
SPEEDUPS = {
    "cifar": {SLICE: 1.2, JOINT: 1.8},
    "pet": {SLICE: 1.6, JOINT: 1.6},
    "base224": {SLICE: 2.6, JOINT: 2.6},
    "multispectral": {SLICE: 11.0, JOINT: 11.0},
    "hyperspectral": {SLICE: 40.0, JOINT: 40.0},
}
THREADS = (1, 2)
MEMORY = ("base224", 1, 0.5)  # shape, batch, of Std-ViT's at most
TRANSFORM_SHARE = 0.03  # of the forward at most
PRODUCTS = "matrix products"


@dataclass(frozen=True)
class Target:
    """A target, what was found (for each number of threads, if it has any), whether that is enough, and why not."""

    what: str
    asked: str
    found: tuple[str, ...]
    met: bool
    reason: str = ""


def best(
    record: Record, shape: str, model: str, threads: int, *, precision: str = "float32", training: bool = True
) -> Measurement | None:
    """The model eager or compiled, whichever was faster; None if neither was measured."""
    found = [m for m in record.time if (m.shape, m.model, m.threads, m.precision) == (shape, model, threads, precision)]
    return min(found, key=lambda m: m.training_ms if training else m.forward_ms, default=None)


def speedup(
    record: Record, shape: str, model: str, threads: int, over: str = STD, *, training: bool = True
) -> float | None:
    """How many times as fast as `over`, each at its best, in float32."""
    one, other = (best(record, shape, name, threads, training=training) for name in (model, over))
    if one is None or other is None:
        return None
    return other.training_ms / one.training_ms if training else other.forward_ms / one.forward_ms


def targets(record: Record) -> list[Target]:
    """All of which something was measured."""
    return [*_speedups(record), *_peers(record), *_memory(record), *_transform(record)]


def _speedups(record: Record) -> Iterator[Target]:
    for shape, models in SPEEDUPS.items():
        for model, asked in models.items():
            found = [speedup(record, shape, model, threads) for threads in THREADS]
            known = [value for value in found if value is not None]
            if known:
                met = min(known) >= asked
                what = f"{shape}: {model}, beside Std-ViT"
                yield Target(what, f"≥ {asked:g}×", _times(found), met, "" if met else why(record, shape, model))


def _peers(record: Record) -> Iterator[Target]:
    for shape in SPEEDUPS:
        for model in (SLICE, JOINT):
            quotients = [{peer: speedup(record, shape, model, threads, peer) for peer in PEERS} for threads in THREADS]
            lowest = [min(((v, p) for p, v in q.items() if v is not None), default=(None, "")) for q in quotients]
            known = [(value, peer) for value, peer in lowest if value is not None]
            if known:
                value, peer = min(known)
                met = value > 1
                what = f"{shape}: {model}, beside the fastest of {', '.join(PEERS)}"
                yield Target(what, "> 1×", _times([v for v, _ in lowest]), met, "" if met else f"{peer} is faster")


def _memory(record: Record) -> Iterator[Target]:
    shape, batch, asked = MEMORY
    found = {f.model: f for f in record.memory if (f.shape, f.batch) == (shape, batch)}
    for model in (SLICE, JOINT):
        if STD in found and model in found:
            peak = found[model].peak_bytes / found[STD].peak_bytes
            counted = found[model].counted_bytes / found[STD].counted_bytes
            reason = "" if peak <= asked else f"the tensors themselves count {counted:.2f}×"
            what = f"{shape}, batch {batch}: memory of training, {model}, beside Std-ViT"
            yield Target(what, f"≤ {asked:g}×", (f"{peak:.2f}×",), peak <= asked, reason)


def _transform(record: Record) -> Iterator[Target]:
    for c in record.components:
        if c.model in (SLICE, JOINT) and not c.training:
            share = c.milliseconds[TRANSFORM] / sum(c.milliseconds.values())
            reason = "" if share <= TRANSFORM_SHARE else f"{c.milliseconds[TRANSFORM]:.2f} ms on the way in and out"
            what, asked = f"{c.shape}: the transform's part of the forward, {c.model}", f"≤ {100 * TRANSFORM_SHARE:g} %"
            yield Target(what, asked, (f"{100 * share:.1f} %",), share <= TRANSFORM_SHARE, reason)


def why(record: Record, shape: str, model: str) -> str:
    """Where the time of forward+backward went that the FLOPs do not explain, from the profile."""
    found = {c.model: c.milliseconds for c in record.components if c.shape == shape and c.training}
    if STD not in found or model not in found:
        return "not profiled"
    std, own = found[STD], found[model]
    total = sum(own.values())
    others = {part: ms for part, ms in own.items() if part != PRODUCTS}
    largest = max(others, key=lambda part: others[part])
    products = std[PRODUCTS] / own[PRODUCTS]
    rest = (sum(std.values()) - std[PRODUCTS]) / (total - own[PRODUCTS])
    return (
        f"on one thread its matrix products are {products:.1f}× as fast as Std-ViT's, all else {rest:.1f}×, which is "
        f"{100 * (1 - own[PRODUCTS] / total):.0f} % of its time ({largest} {100 * own[largest] / total:.0f} %)"
    )


def targets_table(record: Record) -> Table:
    """Met and missed."""
    title = "Targets, forward+backward in float32, each model eager or compiled, whichever is faster"
    table = Table("targets", title, ["target", "asked", *(f"{t} thread{'s' * (t > 1)}" for t in THREADS), "", "reason"])
    for target in targets(record):
        found = [*map(Written, target.found), *[None] * (len(THREADS) - len(target.found))]
        if record.is_busy:
            table.add(target.what, target.asked, *found, "not judged", "the machine was busy")
            continue
        verdict = "met" if target.met else "missed"
        table.add(target.what, target.asked, *found, verdict, target.reason, strong=not target.met)
    return table


def _times(values: list[float | None]) -> tuple[str, ...]:
    return tuple("–" if value is None else f"{value:.2f}×" for value in values)
