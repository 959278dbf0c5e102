"""The page on speed: its targets are judged right, and it says what the record says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from benchmarks.speed.page import blocks, compile_table, draw, machine, time_tables
from benchmarks.speed.targets import best, speedup, targets, targets_table, why

from benchmarks.speed.clock import Measurement
from benchmarks.speed.components import COMPONENTS, Components
from benchmarks.speed.contenders import JOINT, SLICE, STD
from benchmarks.speed.memory import Footprint
from benchmarks.speed.record import Record

ROOT = Path(__file__).parents[2]
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
        shape, model, threads, "float32", compiled, 7, 8, 2.2, ms / 4, ms, 1, 1, 0.5, 0.25, 80, seconds, seconds
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
    record.memory += [Footprint("base224", STD, 1, 200, 100), Footprint("base224", SLICE, 1, 90, 30)]
    record.memory += [Footprint("base224", JOINT, 1, 110, 30)]
    return record


def test_each_model_counts_at_its_best(record):
    assert best(record, "cifar", STD, 1).compiled
    assert speedup(record, "cifar", SLICE, 1) == 90 / 60
    assert speedup(record, "cifar", JOINT, 1) == 90 / 72
    assert speedup(record, "cifar", SLICE, 1, "timm") == 95 / 60
    assert speedup(record, "cifar", JOINT, 2) is None


def test_targets_are_met_or_missed_with_the_reason(record):
    found = {target.what: target for target in targets(record)}
    by_slice = found[f"cifar: {SLICE}, beside Std-ViT"]
    assert (by_slice.found, by_slice.met) == (("1.50×", "1.00×"), False)  # two threads miss 1.2
    assert by_slice.reason == why(record, "cifar", SLICE)
    by_joint = found[f"cifar: {JOINT}, beside Std-ViT"]
    assert (by_joint.asked, by_joint.found, by_joint.met) == ("≥ 1.8×", ("1.25×", "–"), False)
    assert by_joint.reason == "not profiled"
    assert found[f"cifar: {SLICE}, beside the fastest of timm, vit-pytorch, Hugging Face"].met
    memory = {
        model: found[f"base224, batch 1: memory of training, {model}, beside Std-ViT"] for model in (SLICE, JOINT)
    }
    assert (memory[SLICE].met, memory[JOINT].met) == (True, False)
    assert memory[JOINT].reason == "the tensors themselves count 0.30×"
    transform = found[f"cifar: the transform's part of the forward, {SLICE}"]
    assert (transform.found, transform.met) == (("5.0 %",), False)
    assert not any(target.what.startswith("pet") for target in found.values())


def test_the_reason_is_the_profile(record):
    assert why(record, "cifar", SLICE) == (
        "on one thread its matrix products are 3.0× as fast as Std-ViT's, all else 0.7×, which is 75 % of its time "
        "(attention 62 %)"
    )


def test_compilation_is_recommended_where_it_pays(record):
    rows = {row.cells[1]: row.cells for row in compile_table(record).rows}
    assert rows[SLICE][3] == pytest.approx(80 / 60)
    assert rows[SLICE][5:] == (10.0, 500, "compiled")  # 10 s of compilation, 20 ms saved in each step


def test_a_row_for_each_model_with_what_was_measured(record):
    (table,) = time_tables(record, training=True)
    row = next(row.cells for row in table.rows if row.cells[0] == JOINT)
    assert row[2:8] == ("72.0", None, None, None, None, None)


def test_the_page_owns_up_to_a_busy_machine_and_a_partial_run(record):
    assert "busy" not in machine(record)
    assert {row.cells[-2] for row in targets_table(record).rows} == {"met", "missed"}
    assert "not complete" not in machine(record)
    record.facts = record.facts | {"load": 7.5}
    record.planned = ["a", "b"]
    assert {row.cells[-2] for row in targets_table(record).rows} == {"not judged"}
    assert "kept the machine busy when it started (load 7.5)" in machine(record)
    assert "The run is not complete" in machine(record)


def test_figures_are_drawn_of_what_there_is(record, tmp_path):
    pytest.importorskip("matplotlib")
    assert [path.name for path in draw(record, tmp_path) if path.suffix == ".svg"] == ["speedups.svg", "components.svg"]


def test_the_page_says_what_was_measured():
    spec = importlib.util.spec_from_file_location("write_speed", ROOT / "docs" / "write_speed.py")
    writer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(writer)
    record = writer.load()
    written = writer.PAGE.read_text(encoding="utf-8")
    assert written == writer.page(record), "docs/speed.md is not what python docs/write_speed.py writes"
    assert all(f"<!-- {name} -->" in written for name in blocks(record))
