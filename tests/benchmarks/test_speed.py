"""The benchmark of whole models: that it compares equals, says what it measured, and goes on where it stood."""

import json
import math

import pytest
import torch

from benchmarks import models
from benchmarks.speed import bound, clock, components, memory, plan
from benchmarks.speed.clock import Measurement, Setting
from benchmarks.speed.contenders import ALL_OURS, PAPER, PLAIN, build
from benchmarks.speed.growth import AXES, MODELS, at, grow, slope
from benchmarks.speed.plan import make_plan, run_plan
from benchmarks.speed.record import Record
from tcpvit.analysis import count_flops, count_memory
from tcpvit.analysis.bench import JOINT, SHAPES, SLICE, STD, Shape
from tcpvit.models import VisionTransformer

TINY = Shape(8, 4, tube=3, d=16, heads=2, std_heads=2, depth=1, batch=1)


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setitem(SHAPES, "tiny", TINY)
    monkeypatch.setattr(clock, "PEAK_SIZE", 64)


def run(out, settings, parts=("time",)) -> Record:
    return run_plan(make_plan(["tiny"], list(parts), settings, peers=False, seconds=0.001), "made", out)


def test_the_papers_way_and_ours_are_the_same_function():
    images = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(build(PAPER, TINY)(images), build(SLICE, TINY)(images))


def test_a_record_says_what_was_measured(tiny, tmp_path):
    out = tmp_path / "deep" / "bench.json"
    record = run(out, [Setting()])
    assert record == Record.load(out)
    assert record.is_complete
    assert set(record.facts) == {"command", "date", "commit", "load", "machine", "versions"}
    std, *others = record.time
    assert [std.model, *(m.model for m in others)] == list(ALL_OURS)
    assert std.forward_speedup == std.training_speedup == std.flops_ratio == 1
    for m in record.time:
        assert m.flops_ratio == pytest.approx(std.flops / m.flops, rel=1e-4)
        assert m.training_speedup == pytest.approx(std.training_ms / m.training_ms, rel=1e-2)
        achieved = m.flops * TINY.batch / m.forward_ms / 1e6
        assert m.forward_share == pytest.approx(achieved / m.peak_gflops, rel=0.05, abs=2e-4)


def test_the_program_writes_the_parts_that_it_is_asked_for(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(models, "settle", lambda: None)
    out = tmp_path / "growth.json"
    monkeypatch.setitem(plan.PLANS, "growth", lambda *_: [plan.Piece("growth", "growth", lambda: [])])
    monkeypatch.setitem(plan.TABLES, "growth", lambda found: None)
    monkeypatch.setattr(plan, "show", lambda tables: None)
    models.main(["tiny", "--parts", "growth", "--seconds", "0.5", "--out", str(out)])
    assert Record.load(out).facts["command"] == "python -m benchmarks.models tiny --parts growth --seconds 0.5"
    with pytest.raises(SystemExit):
        models.main(["cifr"])


def test_bfloat16_and_threads_are_settings(tiny, tmp_path, capsys):
    settings = [Setting(1, "float32"), Setting(2, "bfloat16")]
    record = run(tmp_path / "bench.json", settings)
    found = {(m.threads, m.precision) for m in record.time if m.model == JOINT}
    assert found == {(1, "float32"), (2, "bfloat16")}
    assert not {m.model for m in record.time if m.precision == "bfloat16"} & set(PLAIN)
    assert "tiny: 8×8×3, P=4, d=16, C=3, L=1, batch 1, 2 threads, bfloat16, eager" in capsys.readouterr().out


def test_compiled_models_are_the_models_and_know_their_compile_time(monkeypatch):
    seen = []

    def compile_by_noting(function):
        seen.append(function)
        return function

    monkeypatch.setattr(torch, "compile", compile_by_noting)  # the real one takes a minute; test_compile has it
    nets = {name: build(name, TINY) for name in ALL_OURS}
    found = clock.measure("tiny", TINY, nets, Setting(compiled=True), 0.001)
    assert [m.model for m in found] == [STD, SLICE, JOINT]
    assert all(m.compiled and m.forward_compile_s is not None for m in found)
    assert sum(isinstance(model, VisionTransformer) for model in seen) == 2 * 3


def test_no_compiler_is_one_sentence(monkeypatch):
    def broken(function):
        raise RuntimeError("No C++ compiler found\nand a long story")

    monkeypatch.setattr(torch, "compile", broken)
    assert clock.compiler_problem() == (
        "torch.compile does not work here, so compiled models are left out: No C++ compiler found"
    )


def test_an_interrupted_run_resumes(tiny, tmp_path, monkeypatch, capsys):
    out, calls = tmp_path / "bench.json", []

    def measure(shape, *rest):
        calls.append(rest[2])
        if len(calls) == 2:
            raise KeyboardInterrupt
        return clock.measure(shape, *rest)

    monkeypatch.setattr(plan, "measure", measure)
    settings = [Setting(), Setting(precision="bfloat16")]
    with pytest.raises(KeyboardInterrupt):
        run(out, settings)
    assert not Record.load(out).is_complete
    record = run(out, settings)
    assert "1 of 2 pieces are done" in capsys.readouterr().err
    assert [setting.precision for setting in calls] == ["float32", "bfloat16", "bfloat16"]
    assert [m.precision for m in record.time if m.model == STD] == ["float32", "bfloat16"]
    run(out, settings)  # a complete one starts anew
    assert len(calls) == 5
    assert len(Record.load(out).time) == len(record.time)


def test_what_is_no_record_is_said(tiny, tmp_path):
    out = tmp_path / "other.json"
    out.write_text(json.dumps({"command": "old"}))
    with pytest.raises(ValueError, match="no record of this benchmark"):
        run(out, [Setting()])


@pytest.mark.parametrize(("shape", "model", "batch"), [("cifar", STD, 16), ("hyperspectral", SLICE, 8)])
def test_memory_of_a_fresh_process(shape, model, batch):
    found = memory.footprint(shape, model, batch)
    counted = count_memory(build(model, SHAPES[shape]), batch=batch).total
    assert found.counted_bytes == counted
    assert 0.7 * counted < found.peak_bytes < 4 * counted


def test_memory_of_what_does_not_exist_is_one_sentence():
    with pytest.raises(OSError, match="memory of no such model at cifar could not be measured: KeyError"):
        memory.footprint("cifar", "no such model", 1)


def test_slopes():
    x = [1, 2, 4, 8]
    assert slope(x, [5 * v**1.5 for v in x]) == pytest.approx(1.5)
    noise = [1.1, 0.9, 1.2, 0.8]
    by_lstsq = torch.linalg.lstsq(
        torch.tensor([[math.log(v), 1.0] for v in x], dtype=torch.float64),
        torch.tensor([[math.log(v * e)] for v, e in zip(x, noise, strict=True)], dtype=torch.float64),
    ).solution[0, 0]
    assert slope(x, [v * e for v, e in zip(x, noise, strict=True)]) == pytest.approx(float(by_lstsq))
    with pytest.raises(ValueError, match="at least two points, got 1"):
        slope([1], [1])


def test_growth_knows_the_exponents_of_the_flops():
    found = grow("batch", [1, 2], 0.001)
    assert [g.model for g in found] == list(MODELS)
    assert [g.flops_slope for g in found] == [1, 1]
    assert all(len(g.training_ms) == 2 for g in found)


@pytest.mark.parametrize("axis", AXES)
def test_axes_change_one_thing(axis):
    value = AXES[axis][-1]
    shape = at(axis, value)
    patches = (shape.img_size // shape.patch) ** 2
    assert {"N": patches, "d": shape.d, "C": shape.tube, "batch": shape.batch}[axis] == value
    assert shape.config("tcp").d == shape.d


def test_a_bound_is_the_sum_of_its_parts(tiny, tmp_path):
    record = run(tmp_path / "bound.json", [Setting()], ["bound"])
    assert record == Record.load(tmp_path / "bound.json")
    assert [b.model for b in record.bound] == 2 * [bound.LAYERS, STD, SLICE, JOINT]
    for b in record.bound:
        assert b.least_ms == pytest.approx(b.products_ms + b.softmax_ms + b.streams_ms)
    rates = bound.Rates(flops=1e9, exponentials=1e6, bytes=1e6)
    net = build(SLICE, TINY)
    products, softmax, streams = bound.least(TINY, SLICE, net, rates, training=False)
    assert products == count_flops(net, TINY.images()) / 1e9
    assert softmax == 6 * 5 * 5 / 1e6  # 3 slices of 2 heads, 4 patches and the class token
    assert streams == pytest.approx((count_memory(net, TINY.images()).weights + 4 * 3 * 8 * 8) / 1e6)
    longer = bound.least(TINY, SLICE, net, rates, training=True)
    assert longer[:2] == pytest.approx((3 * products, 2 * softmax))
    assert longer[2] > streams


def test_layer_by_layer_is_the_same_function():
    std, images = build(STD, TINY), torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(bound.layer_by_layer(std)(images), std(images), atol=1e-5, rtol=1e-5)


def test_components_have_all_the_time():
    net = build(SLICE, TINY)
    forward, training = components.profile_models("tiny", TINY, {SLICE: net}, 0.001)
    assert (forward.training, training.training) == (False, True)
    for found in (forward, training):
        assert list(found.milliseconds) == list(components.COMPONENTS)
        assert all(
            found.milliseconds[part] > 0 for part in ("matrix products", "attention half", "FFN half", "transform")
        )
    assert "enter" not in vars(net.transform)  # nothing is left of the measurement
    std, _ = components.profile_models("tiny", TINY, {STD: build(STD, TINY)}, 0.001)
    assert std.milliseconds["transform"] == 0


def test_the_backward_of_the_transform_belongs_to_it():
    big = Shape(8, 4, tube=3, d=256, heads=2, std_heads=2, depth=1, batch=8)
    net = build(SLICE, big)
    for block in net.blocks:
        block.forward = lambda x, grid: x  # what is left is embedding, transform, norm and head
    forward, training = components.profile_models("big", big, {SLICE: net}, 0.001)
    assert training.milliseconds["transform"] > forward.milliseconds["transform"]


def test_measurements_survive_the_file(tmp_path):
    m = Measurement("tiny", STD, 1, "float32", 7, 8, 1.0, 1.5, 2.5, 1.0, 1.0, False, 0.5, 0.25, 80.0)
    record = Record({"command": "x"}, ["a"])
    record.add("a", "time", [m])
    record.save(tmp_path / "a.json")
    assert Record.load(tmp_path / "a.json") == record
