"""`tcpvit eval` of runs that Python gave a model or images to."""

from __future__ import annotations

import json

import pytest
from published import write_classes
from small_runs import SMALL, make_set

import tcpvit
from tcpvit.cli import app
from tcpvit.data import Splits
from tcpvit.progress import Progress
from tcpvit.training import Recipe, train


@pytest.fixture
def given(tmp_path, monkeypatch):
    """A run with images, and a model of a preset, that were given from Python."""
    monkeypatch.chdir(tmp_path)
    splits = Splits("made", make_set(24, 0), make_set(12, 1), make_set(12, 2))
    options = SMALL["model"]["options"]
    model = tcpvit.create_model("tcp_vit_cifar", num_classes=3, img_size=32, **options)
    train(Recipe.from_dict(SMALL), "run", splits=splits, model=model, progress=Progress())
    return tmp_path


def test_a_run_given_from_python_is_measured_on_a_set_that_has_a_name(given, capsys):
    write_classes(given / "images", {f"class {k}": 5 for k in range(3)})
    assert app.main(["eval", "run"]) == 1
    error = capsys.readouterr().err
    assert "data.name is 'given from Python (made)'" in error
    assert "name another set with --data NAME to measure it on" in error
    assert app.main(["eval", "run", "--data", "folder:images", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["images"] == 3
