"""The benchmark of whole models: that it compares equals, says what it measured, and goes on where it stood."""

import json
import math
import subprocess
import sys

import pytest
import torch

from benchmarks.speed import bench, clock, components, contenders, memory, verb
from benchmarks.speed.clock import Measurement, Setting
from benchmarks.speed.contenders import JOINT, OURS, PAPER, PEERS, PLAIN, SHAPES, SLICE, STD, Shape, build
from benchmarks.speed.growth import AXES, MODELS, at, grow, slope
from benchmarks.speed.record import Record
from tcpvit.analysis import count_flops, count_memory
from tcpvit.compat import repair_torchvision
from tcpvit.models import VisionTransformer

TINY = Shape(8, 4, tube=3, d=16, heads=2, std_heads=2, depth=1, batch=1)


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setitem(SHAPES, "tiny", TINY)


def parameters(model):
    return sum(p.numel() for p in model.parameters())


def test_the_papers_way_and_ours_are_the_same_function():
    images = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(build(PAPER, TINY)(images), build(SLICE, TINY)(images))


@pytest.mark.parametrize("name", SHAPES)
def test_the_shapes_are_those_of_the_issue(name):
    shape = SHAPES[name]
    std, tcp = shape.config("std"), shape.config("tcp")
    assert std.width == tcp.width == shape.width
    assert tcp.tube_length == tcp.in_chans == shape.tube


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("shape", [SHAPES["cifar"], TINY], ids=["cifar", "tiny"])
def test_peers_are_the_same_architecture(name, shape):
    repair_torchvision()
    pytest.importorskip(PEERS[name][1])
    std, peer, images = build(STD, shape), build(name, shape), shape.images(1)
    assert peer(images).shape == (1, 10)
    assert count_flops(peer, images) == count_flops(std, images)
    # vit-pytorch has no bias in qkv, and two norms around the patch embedding instead.
    extra = 2 * shape.patch**2 * shape.tube + 2 * shape.width - 3 * shape.width * shape.depth
    assert parameters(peer) == parameters(std) + (extra if name == "vit-pytorch" else 0)


def test_a_missing_peer_is_named_once_and_left_out(tiny, monkeypatch, capsys):
    monkeypatch.setattr(contenders, "PEERS", {"timm": ("timm", "no_such_package", None)})
    record = bench(["tiny"], threads=[1], seconds=0.001)
    assert capsys.readouterr().err == "not installed, so left out: timm (pip install timm)\n"
    assert [m.model for m in record.time] == list(OURS)


def test_the_verb_as_a_program(tmp_path):
    out = tmp_path / "deep" / "bench.json"
    command = [sys.executable, "-m", "tcpvit", "bench", "cifar", "--threads", "1", "--seconds", "0.001", "--no-peers"]
    done = subprocess.run([*command, "--json", "--out", str(out)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == json.loads(out.read_text())
    record = Record.load(out)
    assert record.is_complete
    assert record.facts["command"].startswith("tcpvit bench cifar --parts time --threads 1 --precision float32")
    assert set(record.facts) == {"command", "date", "commit", "load", "machine", "versions"}
    std, *others = record.time
    assert [std.model, *(m.model for m in others)] == list(OURS)
    assert std.forward_speedup == std.training_speedup == std.flops_ratio == 1
    for m in record.time:
        assert m.forward_ms < m.training_ms
        assert m.flops_ratio == pytest.approx(std.flops / m.flops, rel=1e-4)
        assert m.training_speedup == pytest.approx(std.training_ms / m.training_ms, rel=1e-3)
        achieved = m.flops * SHAPES["cifar"].batch / m.forward_ms / 1e6
        assert m.forward_share == pytest.approx(achieved / m.peak_gflops, rel=0.01)


def test_inference_is_measured_fused_and_the_model_stays_as_it_was():
    model, images = build(SLICE, TINY), TINY.images()
    fused = clock.for_inference(model)
    assert fused.fused
    assert not model.fused
    torch.testing.assert_close(fused(images), model(images))
    for name in (STD, PAPER):
        model = build(name, TINY)
        assert clock.for_inference(model) is model
        assert not model.training


def test_bfloat16_and_threads_are_settings(tiny, capsys):
    record = bench(["tiny"], threads=[1, 2], precision=["float32", "bfloat16"], peers=False, seconds=0.001)
    found = {(m.threads, m.precision) for m in record.time if m.model == JOINT}
    assert found == {(1, "float32"), (2, "float32"), (1, "bfloat16"), (2, "bfloat16")}
    assert not {m.model for m in record.time if m.precision == "bfloat16"} & set(PLAIN)
    assert "tiny: 8×8×3, P=4, d=16, C=3, L=1, batch 1, 2 threads, bfloat16, eager" in capsys.readouterr().out


def test_compiled_models_are_the_models_and_know_their_compile_time(monkeypatch):
    seen = []

    def compile_by_noting(function):
        seen.append(function)
        return function

    monkeypatch.setattr(torch, "compile", compile_by_noting)  # the real one takes a minute; test_compile has it
    models = {name: build(name, TINY) for name in OURS}
    found = clock.measure("tiny", TINY, models, Setting(compiled=True), 0.001)
    assert [m.model for m in found] == [STD, SLICE, JOINT]
    assert all(m.compiled and m.forward_compile_s is not None for m in found)
    assert sum(isinstance(model, VisionTransformer) for model in seen) == 2 * 3


def test_no_compiler_is_one_sentence(tiny, monkeypatch, capsys):
    def broken(function):
        raise RuntimeError("No C++ compiler found\nand a long story")

    monkeypatch.setattr(torch, "compile", broken)
    record = bench(["tiny"], threads=[1], compile=True, peers=False, seconds=0.001)
    assert capsys.readouterr().err == (
        "torch.compile does not work here, so compiled models are left out: No C++ compiler found\n"
    )
    assert not any(m.compiled for m in record.time)


def test_an_interrupted_run_goes_on(tiny, tmp_path, monkeypatch, capsys):
    out, calls = tmp_path / "bench.json", []

    def measure(shape, *rest):
        calls.append(rest[2])
        if len(calls) == 2:
            raise KeyboardInterrupt
        return clock.measure(shape, *rest)

    monkeypatch.setattr(verb, "measure", measure)
    options = {"threads": [1, 2], "peers": False, "seconds": 0.001, "out": out}
    with pytest.raises(KeyboardInterrupt):
        bench(["tiny"], **options)
    assert not Record.load(out).is_complete
    record = bench(["tiny"], **options)
    assert "1 of 2 pieces are done" in capsys.readouterr().err
    assert [setting.threads for setting in calls] == [1, 2, 2]
    assert [m.threads for m in record.time if m.model == STD] == [1, 2]
    bench(["tiny"], **options)  # a complete one starts anew
    assert len(calls) == 5
    assert len(Record.load(out).time) == len(record.time)


def test_what_is_no_record_is_said(tiny, tmp_path):
    out = tmp_path / "other.json"
    out.write_text('{"command": "old"}')
    with pytest.raises(ValueError, match="no record of this benchmark"):
        bench(["tiny"], out=out)


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


def test_components_have_all_the_time():
    net = build(SLICE, TINY)
    forward, training = components.profile_models("tiny", TINY, {SLICE: net}, 0.001)
    assert (forward.training, training.training) == (False, True)
    for found in (forward, training):
        assert list(found.milliseconds) == list(components.COMPONENTS)
        assert all(
            found.milliseconds[part] > 0 for part in ("matrix products", "attention", "norm", "GELU", "transform")
        )
    assert "enter" not in vars(net.transform)  # nothing is left of the measurement
    std, _ = components.profile_models("tiny", TINY, {STD: build(STD, TINY)}, 0.001)
    assert std.milliseconds["transform"] == 0


def test_the_backward_of_the_transform_belongs_to_it():
    big = Shape(8, 4, tube=3, d=256, heads=2, std_heads=2, depth=1, batch=8)
    net = build(SLICE, big)
    for block in net.blocks:
        block.forward = lambda x: x  # what is left is embedding, transform, norm and head
    forward, training = components.profile_models("big", big, {SLICE: net}, 0.001)
    assert training.milliseconds["transform"] > forward.milliseconds["transform"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"shapes": ["cifr"]}, "no shape is called 'cifr'.*did you mean 'cifar'"),
        ({"parts": ["tim"]}, "no part is called 'tim'.*did you mean 'time'"),
        ({"precision": ["float16"]}, "no precision is called 'float16'.*did you mean 'bfloat16'"),
        ({"threads": [0]}, "positive"),
        ({"seconds": 0}, "positive"),
    ],
)
def test_errors(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        bench(**options)


def test_measurements_survive_the_file(tmp_path):
    m = Measurement("tiny", STD, 1, "float32", False, 7, 8, 1.0, 1.5, 2.5, 1.0, 1.0, 0.5, 0.25, 80.0)
    record = Record({"command": "x"}, ["a"])
    record.add("a", "time", [m])
    record.save(tmp_path / "a.json")
    assert Record.load(tmp_path / "a.json") == record
