"""What was measured, as tables for the terminal: each piece as it comes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.speed.bound import LAYERS, Bound
from benchmarks.speed.clock import Measurement, Setting
from benchmarks.speed.components import COMPONENTS, Components
from benchmarks.speed.growth import BASE, Growth
from benchmarks.speed.memory import Footprint
from tcpvit.analysis.bench import SHAPES, STD
from tcpvit.tables import Bytes, Ratio, Table, Written


def time_table(found: Sequence[Measurement]) -> Table:
    """One shape in one setting."""
    first = found[0]
    setting = Setting(first.threads, first.precision, first.compiled)
    columns = ["model", "parameters", "forward ms", "fwd+bwd ms", "forward speed-up", "fwd+bwd speed-up"]
    columns += ["FLOPs promise", "forward of peak", "fwd+bwd of peak"]
    columns += ["compile s"] if first.compiled else []
    table = Table(f"{first.shape}", f"{first.shape}: {SHAPES[first.shape]}, {setting}", columns)
    for m in found:
        ratios = Ratio(m.forward_speedup), Ratio(m.training_speedup), Ratio(m.flops_ratio)
        shares = percent(m.forward_share), percent(m.training_share)
        compile_s = [(m.forward_compile_s or 0) + (m.training_compile_s or 0)] if m.compiled else []
        strong = m.model == STD
        table.add(m.model, m.parameters, m.forward_ms, m.training_ms, *ratios, *shares, *compile_s, strong=strong)
    table.notes.append(
        f"The peak is one {first.precision} matrix product in the same run: {first.peak_gflops:.0f} GFLOPS."
    )
    return table


def memory_table(found: Sequence[Footprint]) -> Table:
    """Training of one shape, Std-ViT first."""
    first = found[0]
    title = f"Memory of training with AdamW, {first.shape}, batch {first.batch}"
    table = Table(f"memory_{first.shape}_{first.batch}", title, ["model", "peak", "counted", "peak of Std-ViT's"])
    for f in found:
        ratio = Ratio.of(f.peak_bytes, first.peak_bytes)
        table.add(f.model, Bytes(f.peak_bytes), Bytes(f.counted_bytes), ratio, strong=f.model == STD)
    return table


def growth_table(found: Sequence[Growth]) -> Table:
    """The slopes of every axis there is."""
    title = f"Growth of forward+backward: exponents, one block, 1 thread, around N=64, d={BASE.d}, C={BASE.tube}"
    table = Table("growth", title, ["axis", "points", "model", "time", "FLOPs"])
    for g in found:
        points = f"{g.points[0]} to {g.points[-1]}"
        table.add(g.axis, points, g.model, Written(f"{g.time_slope:.2f}"), Written(f"{g.flops_slope:.2f}"))
    return table


def components_table(found: Sequence[Components]) -> Table:
    """Where the time of one shape goes, in per cent."""
    table = Table("components", f"Time by component, {found[0].shape}, 1 thread", ["model", "pass", "ms", *COMPONENTS])
    for c in found:
        total = sum(c.milliseconds.values())
        shares = [percent(c.milliseconds[part] / total) for part in COMPONENTS]
        table.add(c.model, "fwd+bwd" if c.training else "forward", total, *shares, strong=c.model == STD)
    return table


def bound_table(found: Sequence[Bound]) -> Table:
    """Time, the least time in parts, and their ratio, of shapes that were measured alike."""
    columns = ["shape", "model", "pass", "ms", "bound", "products", "softmax", "streams", "ms / bound"]
    table = Table(
        "bound", "Milliseconds beside the least there could be, float32, eager, 1 thread", [*columns, "speed-up"]
    )
    for b in found:
        parts = (b.least_ms, b.products_ms, b.softmax_ms, b.streams_ms)
        numbers = map(significant, (b.ms, *parts))
        ratios = Ratio(b.ms / b.least_ms), Ratio(b.speedup)
        kind = "fwd+bwd" if b.training else "forward"
        table.add(b.shape, b.model, kind, *numbers, *ratios, strong=b.model == LAYERS)
    table.notes.append(f"The speed-up is over the first row of each group, {LAYERS}.")
    return table


def percent(share: float) -> Written:
    """A share as it is read.

    >>> percent(0.125)
    '12 %'
    """
    return Written(f"{100 * share:.0f} %")


def significant(ms: float) -> Written:
    """Milliseconds with three digits, or all before the point.

    >>> significant(0.0123456), significant(1234.5)
    ('0.0123', '1,234')
    """
    return Written(f"{ms:.3g}" if ms < 100 else f"{ms:,.0f}")


TABLES: dict[str, Callable[[Any], Table]] = {
    "time": time_table,
    "memory": memory_table,
    "growth": growth_table,
    "components": components_table,
    "bound": bound_table,
}
