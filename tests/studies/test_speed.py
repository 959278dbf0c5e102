"""The benchmark of whole models: that it compares equals, and says what it measured."""

import json

import pytest
import torch

from tcpvit.studies import speed
from tcpvit.studies.speed import PAPER, STD, Shape, bench, build

TINY = Shape(8, 4, tube=3, d=16, heads=2, std_heads=2, depth=1, batch=1)


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(speed, "SHAPES", {"tiny": TINY})


def test_the_papers_way_and_ours_are_the_same_function():
    models = build(TINY)
    ours = models["TCP-ViT, slice attention"]
    # build ours anew from the seed that the paper's way had second
    torch.manual_seed(0)
    speed.VisionTransformer(TINY.config("std"))
    ours = speed.VisionTransformer(TINY.config("tcp"))
    images = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(models[PAPER](images), ours(images))


@pytest.mark.parametrize("name", speed.SHAPES)
def test_the_shapes_are_those_of_the_issue(name):
    shape = speed.SHAPES[name]
    std, tcp = shape.config("std"), shape.config("tcp")
    assert std.width == tcp.width == shape.tube * shape.d
    assert tcp.tube_length == tcp.in_chans == shape.tube


def test_measurements_table_and_record(tiny, tmp_path, capsys):
    out = tmp_path / "deep" / "bench.json"
    found = bench(["tiny"], threads=[1], seconds=0.01, out=out)
    shown = capsys.readouterr().out
    assert STD in shown
    assert "FLOPs" in shown
    record = json.loads(out.read_text())
    assert len(record["measurements"]) == len(found) == 6
    first = record["measurements"][0]
    assert first["model"] == STD
    assert first["training_speedup"] == first["flops_ratio"] == 1
    assert all(m["training_ms"] > 0 for m in record["measurements"])
    assert record["measurements"][2]["flops_ratio"] > 1


def test_json_alone_is_printed(tiny, capsys):
    bench(["tiny"], threads=[1], seconds=0.01, json=True)
    assert json.loads(capsys.readouterr().out)["shapes"]["tiny"]["tube"] == 3


def test_errors():
    with pytest.raises(ValueError, match="did you mean 'cifar'"):
        bench(["cifr"])
    with pytest.raises(ValueError, match="positive"):
        bench(["cifar"], threads=[0])
