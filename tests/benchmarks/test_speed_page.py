"""The page on speed says what the record says."""

from __future__ import annotations

import json

import pytest

from benchmarks import tensorize_pages
from benchmarks.speed import pages
from benchmarks.speed.clock import Measurement
from benchmarks.speed.components import COMPONENTS, Components
from benchmarks.speed.memory import Footprint
from benchmarks.speed.pages import best, compile_table, draw, machine, speedup, summary_table, time_tables
from benchmarks.speed.record import Record
from experiments.pages import stale
from tcpvit.analysis.bench import JOINT, SHAPES, SLICE, STD

FACTS = {
    "command": "python benchmarks/models.py",
    "date": "today",
    "commit": "abc",
    "load": 0.3,
    "versions": {"torch": "2"},
    "machine": {"processor": "abacus", "cores": 2, "vectors": "AVX2", "bfloat16": []},
}


def measured(model: str, ms: float, *, threads: int = 1, compiled: bool = False, shape: str = "cifar") -> Measurement:
    seconds = 10.0 if compiled else None
    return Measurement(
        shape, model, threads, "float32", 7, 8, 2.2, ms / 4, ms, 1, 1, compiled, 0.5, 0.25, 80, seconds, seconds
    )


def profiled(model: str, training: bool = True, **milliseconds: float) -> Components:
    parts = {name.replace("_", " "): ms for name, ms in milliseconds.items()}
    return Components("cifar", model, training, dict.fromkeys(COMPONENTS, 0.0) | parts)


@pytest.fixture
def record() -> Record:
    record = Record(FACTS, ["a"], ["a"])
    record.time += [measured(STD, 100), measured(STD, 90, compiled=True), measured(SLICE, 80), measured("timm", 95)]
    record.time += [measured(SLICE, 60, compiled=True), measured(JOINT, 72), measured(STD, 60, threads=2)]
    record.time += [measured(SLICE, 60, threads=2)]
    record.components += [profiled(STD, matrix_products=60, norm=20, attention=20)]
    record.components += [profiled(SLICE, matrix_products=20, norm=10, attention=50)]
    record.components += [profiled(SLICE, training=False, matrix_products=95, transform=5)]
    batch = SHAPES["cifar"].batch
    record.memory += [Footprint("cifar", STD, batch, 200, 100), Footprint("cifar", SLICE, batch, 90, 30)]
    record.memory += [Footprint("cifar", STD, 1, 1, 1), Footprint("cifar", SLICE, 1, 5, 1)]
    return record


def test_each_model_counts_at_its_best(record):
    assert best(record, "cifar", STD, 1).compiled
    assert speedup(record, "cifar", SLICE, 1) == 90 / 60
    assert speedup(record, "cifar", JOINT, 1) == 90 / 72
    assert speedup(record, "cifar", SLICE, 1, "timm") == 95 / 60
    assert speedup(record, "cifar", JOINT, 2) is None


def test_the_summary_has_the_ratios_of_each_shape(record):
    by_slice, by_joint = (row.cells for row in summary_table(record).rows)
    # FLOPs, forward+backward on 1 and 2 threads, forward, beside the fastest peer, memory, the transform's share
    assert by_slice[3:] == ("2.20×", "1.50×", "1.00×", "1.50×", "1.58×", 0.45, "5.0 %")
    assert by_joint[3:] == ("2.20×", "1.25×", None, "1.25×", "1.32×", None, None)


def test_compilation_is_recommended_where_it_pays(record):
    rows = {row.cells[1]: row.cells for row in compile_table(record).rows}
    assert rows[SLICE][3] == pytest.approx(80 / 60)
    assert rows[SLICE][5:] == (10.0, 500, "compiled")  # 10 s of compilation, 20 ms saved in each step


def test_a_row_for_each_model_with_what_was_measured(record):
    (table,) = time_tables(record, training=True)
    row = next(row.cells for row in table.rows if row.cells[0] == JOINT)
    assert row[2:8] == ("72.0", None, None, None, None, None)


def test_the_page_owns_up_to_a_busy_machine_and_a_partial_run(record):
    record.facts = record.facts | {"load": 7.5}
    record.planned = ["a", "b"]
    assert "| load at the start | 7.5 of 2 cores |" in machine(record)
    assert "| pieces measured | 1 of 2 |" in machine(record)


def test_figures_are_drawn_of_what_there_is(record, tmp_path):
    pytest.importorskip("matplotlib")
    assert [path.name for path in draw(record, tmp_path)] == ["speed_speedups.svg", "speed_components.svg"]


def test_the_pages_say_what_was_measured():
    assert stale(pages.pages(Record.load(pages.BENCH / "models.json"))) == [], (
        "write them with python -m benchmarks.speed.pages"
    )


def test_the_speed_of_converted_models_is_what_was_measured():
    bench = json.loads(tensorize_pages.BENCH.read_text(encoding="utf-8"))
    assert stale(tensorize_pages.pages_of_speed(bench)) == [], "write it with python -m benchmarks.tensorize_pages"
