"""`tcpvit bench` compares equals, says what it measured, and refuses what it does not know."""

import json
import subprocess
import sys

import pytest

from tcpvit.analysis import bench as measuring
from tcpvit.analysis import count_flops, count_memory
from tcpvit.analysis.bench import OURS, PEERS, SHAPES, SLICE, STD, Shape, build, builders, for_inference
from tcpvit.cli.bench import bench
from tcpvit.compat import repair_torchvision

TINY = Shape(8, 4, tube=3, d=16, heads=2, std_heads=2, depth=1, batch=1)


def parameters(model):
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", SHAPES)
def test_models_of_a_shape_have_one_width(name):
    shape = SHAPES[name]
    std, tcp = shape.config("std"), shape.config("tcp")
    assert std.width == tcp.width == shape.width
    assert tcp.tube_length == tcp.in_chans == shape.tube


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("shape", [SHAPES["cifar"], TINY], ids=["cifar", "tiny"])
def test_peers_are_the_same_architecture(name, shape):
    repair_torchvision()
    pytest.importorskip(PEERS[name][1])
    std, peer, images = build(OURS[STD], shape), build(builders()[name], shape), shape.images(1)
    assert peer(images).shape == (1, 10)
    assert count_flops(peer, images) == count_flops(std, images)
    # vit-pytorch has no bias in qkv, and two norms around the patch embedding instead.
    extra = 2 * shape.patch**2 * shape.tube + 2 * shape.width - 3 * shape.width * shape.depth
    assert parameters(peer) == parameters(std) + (extra if name == "vit-pytorch" else 0)


def test_inference_is_measured_fused_and_the_model_stays_as_it_was():
    model, images = build(OURS[SLICE], TINY), TINY.images()
    fused = for_inference(model)
    assert fused.fused
    assert not model.fused
    assert (fused(images) - model(images)).abs().max() < 1e-5
    std = build(OURS[STD], TINY)
    assert for_inference(std) is std
    assert not std.training


def test_a_missing_peer_is_named_once_and_left_out(monkeypatch, capsys):
    monkeypatch.setitem(SHAPES, "tiny", TINY)
    monkeypatch.setattr(measuring, "PEERS", {"timm": ("timm", "no_such_package", None)})
    found = bench(["tiny"], threads=[1], precision=["float32", "bfloat16"], seconds=0.001)
    captured = capsys.readouterr()
    assert captured.err == "not installed, so left out: timm (pip install timm)\n"
    assert "tiny: 8×8×3, P=4, d=16, C=3, L=1, batch 1, 1 thread, bfloat16" in captured.out
    assert [row.model for row in found] == 2 * list(OURS)
    for row in found:
        model = build(OURS[row.model], TINY)
        assert row.parameters == parameters(model)
        assert row.training_bytes == count_memory(model, TINY.images()).total


def test_the_verb_as_a_program():
    command = [sys.executable, "-m", "tcpvit", "bench", "cifar", "--threads", "1", "--seconds", "0.001", "--no-peers"]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    std, *others = rows = json.loads(done.stdout)
    assert [row["model"] for row in rows] == list(OURS)
    assert std["forward_speedup"] == std["training_speedup"] == std["flops_ratio"] == 1
    for row in others:
        assert row["forward_ms"] < row["training_ms"]
        assert row["flops_ratio"] == pytest.approx(std["flops"] / row["flops"], rel=1e-4)
        assert row["training_speedup"] == pytest.approx(std["training_ms"] / row["training_ms"], rel=1e-3)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"shapes": ["cifr"]}, "no shape is called 'cifr'.*did you mean 'cifar'"),
        ({"precision": ["float16"]}, "no precision is called 'float16'.*did you mean 'bfloat16'"),
        ({"threads": [0]}, "threads are between 1 and 1024"),
        ({"seconds": 0}, "positive"),
    ],
)
def test_errors(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        bench(**options)
