"""The tables and figures of docs/speed.md, from a record."""

from __future__ import annotations

from pathlib import Path

from benchmarks.speed.clock import Measurement
from benchmarks.speed.contenders import JOINT, PAPER, SHAPES, SLICE, STD
from benchmarks.speed.figures import draw_components, draw_growth, draw_speedups
from benchmarks.speed.record import Record
from benchmarks.speed.tables import growth_table, memory_table, percent
from benchmarks.speed.targets import THREADS, best, speedup, targets_table
from tcpvit.figures.style import save_figure
from tcpvit.tables import Ratio, Table, Written, render

# heading -> precision, compiled
KINDS = {"eager": ("float32", False), "compiled": ("float32", True), "bfloat16": ("bfloat16", False)}


def blocks(record: Record) -> dict[str, str]:
    """What stands between the markers of the page, by their names."""
    return {
        "machine": machine(record),
        "targets": render([targets_table(record)], "markdown"),
        "training": render(time_tables(record, training=True), "markdown"),
        "inference": render(time_tables(record, training=False), "markdown"),
        "compile": render([compile_table(record)], "markdown"),
        "memory": render(memory_tables(record), "markdown"),
        "growth": render([growth_table(record.growth)], "markdown"),
    }


def machine(record: Record) -> str:
    """Where the numbers come from."""
    facts, machine = record.facts, record.facts["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    peaks = ", ".join(
        f"{max(found):.0f} ({precision}, {threads} thread{'s' * (threads > 1)})"
        for precision in ("float32", "bfloat16")
        for threads in THREADS
        if (found := [m.peak_gflops for m in record.time if (m.precision, m.threads) == (precision, threads)])
    )
    flags = ", ".join(machine["bfloat16"]) or "none"
    state = "" if record.is_complete else " The run is not complete: what is missing has no row."
    if record.is_busy:
        state += (
            f" **Other programs kept the machine busy when it started (load {facts['load']:g}): times are too long "
            "and ratios rough.**"
        )
    return (
        f"{machine['processor']}, {machine['cores']} cores, {machine['vectors']}, flags for bfloat16: {flags}. "
        f"{versions}. Commit {facts['commit']}, {facts['date']}, `{facts['command']}`. One matrix product of 1024×1024 "
        f"reached, in GFLOPS: {peaks}.{state}"
    )


def time_tables(record: Record, *, training: bool) -> list[Table]:
    """A table for each shape: every model in every setting."""
    shapes = dict.fromkeys(m.shape for m in record.time)
    return [_times_of(record, shape, training) for shape in shapes]


def _times_of(record: Record, shape: str, training: bool) -> Table:
    heads = [f"{kind}, {threads}" for kind in KINDS for threads in THREADS]
    gains = [f"speed-up, {threads}" for threads in THREADS]
    columns = ["model", "parameters", *heads, *gains, "FLOPs promise", "of peak, 1"]
    table = Table(shape, f"{shape}: {SHAPES[shape]}; milliseconds on 1 and 2 threads", columns)
    found = {(m.model, m.precision, m.compiled, m.threads): m for m in record.time if m.shape == shape}
    for model in dict.fromkeys(m.model for m in record.time if m.shape == shape):
        own = [found.get((model, *kind, threads)) for kind in KINDS.values() for threads in THREADS]
        any_of = next(m for m in own if m is not None)
        times = [None if m is None else _ms(m, training) for m in own]
        speedups = [speedup(record, shape, model, threads, training=training) for threads in THREADS]
        top = best(record, shape, model, 1, training=training)
        share = None if top is None else percent(top.training_share if training else top.forward_share)
        ratios = [None if s is None else Ratio(s) for s in speedups]
        promise = Ratio(any_of.flops_ratio)
        table.add(model, any_of.parameters, *times, *ratios, promise, share, strong=model == STD)
    return table


def _ms(m: Measurement, training: bool) -> Written:
    ms = m.training_ms if training else m.forward_ms
    return Written(f"{ms:.2f}" if ms < 10 else f"{ms:.1f}" if ms < 100 else f"{ms:,.0f}")


def compile_table(record: Record) -> Table:
    """What torch.compile brings to each shape, and after how many steps it has paid for itself."""
    columns = ["shape", "model", "threads", "fwd+bwd: eager / compiled", "forward: eager / compiled"]
    columns += ["compile s, fwd+bwd", "pays after steps", "recommended for training"]
    table = Table("compile", "Eager or compiled, float32", columns)
    eager = {(m.shape, m.model, m.threads): m for m in record.time if (m.precision, m.compiled) == ("float32", False)}
    for m in record.time:
        before = eager.get((m.shape, m.model, m.threads))
        if not m.compiled or m.precision != "float32" or m.model not in (STD, SLICE, JOINT) or before is None:
            continue
        gain, saved = before.training_ms / m.training_ms, (before.training_ms - m.training_ms) / 1e3
        steps = round((m.training_compile_s or 0) / saved) if saved > 0 else None
        verdict = "compiled" if gain > 1.02 else "eager" if gain < 0.98 else "either"
        forward = Ratio(before.forward_ms / m.forward_ms)
        table.add(m.shape, m.model, m.threads, Ratio(gain), forward, m.training_compile_s, steps, verdict)
    table.notes.append("Within 2 % it is called either. Compilation started with an empty cache.")
    return table


def memory_tables(record: Record) -> list[Table]:
    """A table for each shape and batch."""
    groups = dict.fromkeys((f.shape, f.batch) for f in record.memory)
    return [memory_table([f for f in record.memory if (f.shape, f.batch) == group]) for group in groups]


def draw(record: Record, folder: Path) -> list[Path]:
    """The figures as SVG and PNG; one of which nothing was measured is left out."""
    written = []
    if record.time:
        panels = {
            f"{threads} thread{'s' * (threads > 1)}, forward+backward": {
                model: _points(record, model, threads) for model in (SLICE, JOINT, PAPER)
            }
            for threads in THREADS
            if any(m.threads == threads for m in record.time)
        }
        written += save_figure(draw_speedups(panels), folder / "speedups")
    if record.components:
        shapes: dict[str, dict[str, dict[str, float]]] = {}
        for c in record.components:
            if c.training:
                shapes.setdefault(c.shape, {})[c.model] = c.milliseconds
        written += save_figure(draw_components(shapes), folder / "components")
    if record.growth:
        axes: dict[str, dict[str, tuple[list[int], list[float], float]]] = {}
        for g in record.growth:
            axes.setdefault(g.axis, {})[g.model] = (g.points, g.training_ms, g.time_slope)
        written += save_figure(draw_growth(axes), folder / "growth")
    return written


def _points(record: Record, model: str, threads: int) -> dict[str, tuple[float, float]]:
    """Of each shape the FLOPs ratio and the speed-up over Std-ViT, each at its best."""
    points = {}
    for shape in dict.fromkeys(m.shape for m in record.time):
        top, gain = best(record, shape, model, threads), speedup(record, shape, model, threads)
        if top is not None and gain is not None:
            points[shape] = (top.flops_ratio, gain)
    return points
