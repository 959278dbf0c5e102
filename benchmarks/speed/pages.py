"""The tables and figures of docs/speed.md, from a record: `python -m benchmarks.speed.pages`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.speed.bound import LAYERS, Bound
from benchmarks.speed.clock import Measurement
from benchmarks.speed.components import TRANSFORM
from benchmarks.speed.contenders import PAPER
from benchmarks.speed.figures import draw_components, draw_growth, draw_speedups
from benchmarks.speed.record import Record
from benchmarks.speed.tables import bound_table, growth_table, memory_table, percent, significant
from benchmarks.training import step_table
from experiments.pages import DOCS, ROOT, Blocks, fill, markdown
from tcpvit.analysis.bench import JOINT, PEERS, SHAPES, SLICE, STD
from tcpvit.figures.style import save_figure
from tcpvit.tables import Ratio, Table, Written

BENCH = ROOT / "results" / "bench"
LATEST = ("_fast_mkl", "")  # of bounds
THREADS = (1, 2)
# heading -> precision, compiled
KINDS = {"eager": ("float32", False), "compiled": ("float32", True), "bfloat16": ("bfloat16", False)}


def main() -> None:
    """Write the figures and the blocks of both pages."""
    record = Record.load(BENCH / "models.json")
    written = draw(record, DOCS / "figures")
    written += [fill(page, blocks) for page, blocks in pages(record).items()]
    print("\n".join(map(str, written)), file=sys.stdout)


def bounds(*kinds: str) -> list[Record]:
    """The bounds of those measurements that are there."""
    paths = [BENCH / f"bound{kind}.json" for kind in kinds]
    return [Record.load(path) for path in paths if path.is_file()]


def limit_table(bounds: list[Record]) -> Table:
    """Forward+backward of each model beside its bound, on all processors."""
    heads = [f"{head}, {_processor(r)}" for r in bounds for head in ("ms", "bound", "ms / bound", "speed-up")]
    title = "Milliseconds of forward+backward beside the least there could be, float32, eager, 1 thread"
    table = Table("limit", title, ["shape", "model", *heads])
    found = {(b.shape, b.model, i): b for i, record in enumerate(bounds) for b in record.bound if b.training}
    for shape, model in dict.fromkeys((shape, model) for shape, model, _ in found):
        cells = [cell for i in range(len(bounds)) for cell in _beside_its_bound(found.get((shape, model, i)))]
        table.add(shape, model.replace(" attention", ""), *cells, strong=model == LAYERS)
    table.notes.append(f"The speed-up is over {LAYERS}, as it was before its halves were fused too.")
    return table


def _beside_its_bound(b: Bound | None) -> list[Any]:
    if b is None:
        return [None] * 4
    return [significant(b.ms), significant(b.least_ms), Ratio(b.ms / b.least_ms), _times(b.speedup)]


def parts_table(record: Record) -> Table:
    """The parts of each bound on one processor, and where it was measured."""
    facts = record.facts
    table = bound_table(record.bound)
    table.title = f"{facts['machine']['processor']}{_mkl(record)}: {table.title[0].lower()}{table.title[1:]}"
    load = f"load at the start {facts['load']:g} of {facts['machine']['cores']} cores"
    table.notes.append(f"`{facts['command']}`, {facts['date']}, commit {facts['commit']}, {load}.")
    return table


def _processor(record: Record) -> str:
    return str(record.facts["machine"]["processor"]).split("(")[0].split()[0] + _mkl(record)  # AMD, Intel


def _mkl(record: Record) -> str:
    return ", fast MKL" if record.facts["machine"].get("fast MKL") else ""


def pages(record: Record) -> dict[Path, Blocks]:
    """What stands between the markers of the two pages, by their names."""
    long = BENCH / "long_tubes.json"
    return {
        DOCS / "speed.md": {
            "summary": markdown(summary_table(record)),
            "limit": markdown(limit_table(bounds(*LATEST))),
            "training step": training_step(),
        },
        DOCS / "results" / "speed_tables.md": {
            "training": markdown(*time_tables(record, training=True)),
            "inference": markdown(*time_tables(record, training=False)),
            "compile": markdown(compile_table(record)),
            "memory": markdown(*memory_tables(record)),
            "growth": markdown(growth_table(record.growth)),
            "bounds": markdown(*map(parts_table, bounds(*LATEST, "_intel"))),
            "machine": machine(record),
            "long tubes": markdown(*([long_table(json.loads(long.read_text()))] if long.is_file() else [])),
        },
    }


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


def summary_table(record: Record) -> Table:
    """For each shape, how fast TCP-ViT is beside Std-ViT and beside the fastest peer, and what it needs to train."""
    columns = ["shape", "C", "attention", "FLOPs", *(f"fwd+bwd, {t} thread{'s' * (t > 1)}" for t in THREADS)]
    columns += ["forward, 1 thread", "fwd+bwd beside the fastest peer", "memory of training", "transform's share"]
    table = Table("summary", "TCP-ViT beside Std-ViT: how many times as fast, each at its best, float32", columns)
    for shape in dict.fromkeys(m.shape for m in record.time):
        for model, attention in ((SLICE, "slice"), (JOINT, "joint")):
            one = best(record, shape, model, 1)
            if one is None:
                continue
            speedups = [_times(speedup(record, shape, model, threads)) for threads in THREADS]
            forward = _times(speedup(record, shape, model, 1, training=False))
            beside = [found for peer in PEERS if (found := speedup(record, shape, model, 1, peer)) is not None]
            peers = _times(min(beside)) if beside else None
            about = _memory_ratio(record, shape, model), _transform_share(record, shape, model)
            table.add(shape, SHAPES[shape].tube, attention, _times(one.flops_ratio), *speedups, forward, peers, *about)
    return table


def _times(value: float | None) -> Written | None:
    return None if value is None else Written(f"{value:.1f}×" if value >= 10 else f"{value:.2f}×")


def _memory_ratio(record: Record, shape: str, model: str) -> Ratio | None:
    batch = SHAPES[shape].batch
    peaks = {f.model: f.peak_bytes for f in record.memory if (f.shape, f.batch) == (shape, batch)}
    return Ratio.of(peaks.get(model), peaks.get(STD))


def _transform_share(record: Record, shape: str, model: str) -> Written | None:
    for c in record.components:
        if (c.shape, c.model, c.training) == (shape, model, False):
            return Written(f"{100 * c.milliseconds[TRANSFORM] / sum(c.milliseconds.values()):.1f} %")
    return None


def long_table(bench: dict[str, Any]) -> Table:
    """The share of the peak that each way to multiply many small slices reaches."""
    columns = ["product", "rows", "threads", *bench["rows"][0]["share_of_peak"]]
    table = Table("long_tubes", f"Share of the machine's peak, useful FLOPs only, C = {bench['tube']}", columns)
    for row in bench["rows"]:
        shares = [percent(share) for share in row["share_of_peak"].values()]
        table.add(f"{row['layer']}, {row['d_in']} → {row['d_out']}", row["rows"], row["threads"], *shares)
    table.notes.append(f"`{bench['command']}`, {bench['date']}, commit {bench['commit']}, torch {bench['torch']}.")
    return table


def training_step() -> str:
    """A step of `tcpvit train` beside timm's manner, if that was measured."""
    path = BENCH / "training.json"
    found = json.loads(path.read_text()) if path.is_file() else {}
    tables = []
    for threads in THREADS:
        if steps := found.get(f"threads_{threads}", {}).get("steps"):
            table = step_table(steps, f"{threads} thread{'s' * (threads > 1)}, batch {found['batch']}")
            table.notes.append(f"`{found['command']}`, {found['date']}, torch {found['torch']}, timm {found['timm']}.")
            tables.append(table)
    return markdown(*tables)


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
    table = Table("machine", "Where and with what this was measured", ["", "value"])
    table.add("processor", f"{machine['processor']}, {machine['cores']} cores, {machine['vectors']}")
    table.add("flags for bfloat16", ", ".join(machine["bfloat16"]) or "none")
    table.add("GFLOPS of one matrix product, 1024×1024", peaks)
    table.add("versions", versions)
    table.add("commit and date", f"{facts['commit']}, {facts['date']}")
    table.add("command", f"`{facts['command']}`")
    table.add("load at the start", f"{facts['load']:g} of {machine['cores']} cores")
    table.add("pieces measured", f"{len(record.pieces)} of {len(record.planned)}")
    return markdown(table)


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
    return table


def memory_tables(record: Record) -> list[Table]:
    """A table for each shape and batch."""
    groups = dict.fromkeys((f.shape, f.batch) for f in record.memory)
    return [memory_table([f for f in record.memory if (f.shape, f.batch) == group]) for group in groups]


def draw(record: Record, folder: Path) -> list[Path]:
    """The figures; one of which nothing was measured is left out."""
    written = []
    if record.time:
        panels = {
            f"{threads} thread{'s' * (threads > 1)}, forward+backward": {
                model: _points(record, model, threads) for model in (SLICE, JOINT, PAPER)
            }
            for threads in THREADS
            if any(m.threads == threads for m in record.time)
        }
        written += save_figure(draw_speedups(panels), folder / "speed_speedups", ["svg"])
    if record.components:
        shapes: dict[str, dict[str, dict[str, float]]] = {}
        for c in record.components:
            if c.training:
                shapes.setdefault(c.shape, {})[c.model] = c.milliseconds
        written += save_figure(draw_components(shapes), folder / "speed_components", ["svg"])
    if record.growth:
        axes: dict[str, dict[str, tuple[list[int], list[float], float]]] = {}
        for g in record.growth:
            axes.setdefault(g.axis, {})[g.model] = (g.points, g.training_ms, g.time_slope)
        written += save_figure(draw_growth(axes), folder / "speed_growth", ["svg"])
    return written


def _points(record: Record, model: str, threads: int) -> dict[str, tuple[float, float]]:
    """Of each shape the FLOPs ratio and the speed-up over Std-ViT, each at its best."""
    points = {}
    for shape in dict.fromkeys(m.shape for m in record.time):
        top, gain = best(record, shape, model, threads), speedup(record, shape, model, threads)
        if top is not None and gain is not None:
            points[shape] = (top.flops_ratio, gain)
    return points


if __name__ == "__main__":
    main()
