"""The run folder: one writer, no run replaced by accident, nothing foreign removed."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from small_runs import make_set

from tcpvit.training import resume, train
from tcpvit.training.run import RunFolder

HOLD = """
import fcntl, sys, time
file = open(sys.argv[1], "a+")
fcntl.lockf(file, fcntl.LOCK_EX)
file.truncate(0); file.write("process 42"); file.flush()
print("held", flush=True); time.sleep(60)
"""


@pytest.mark.skipif(os.name == "nt", reason="locks of POSIX")
def test_two_runs_in_one_folder_have_a_clear_answer(recipe, splits, tmp_path):
    folder = tmp_path / "run"
    train(recipe, folder, splits=splits)
    before = sorted(path.read_bytes() for path in folder.rglob("*.*") if path.is_file())
    other = subprocess.Popen([sys.executable, "-c", HOLD, str(folder / ".lock")], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "held\n"
        for attempt in (
            lambda: train(recipe, folder, splits=splits, overwrite=True),
            lambda: resume(folder, splits=splits),
        ):
            with pytest.raises(ValueError, match=r"being written by another process \(process 42\); wait for it, stop"):
                attempt()
        other.kill()
        other.wait()
        assert sorted(path.read_bytes() for path in folder.rglob("*.*") if path.name != ".lock" and path.is_file()) == [
            content for content in before if not content.startswith(b"process")
        ]
        resume(folder, splits=splits)  # the lock went with its process
    finally:
        other.kill()


def test_a_name_that_exists_has_a_clear_answer(recipe, splits, tmp_path):
    folder = tmp_path / "run"
    first = train(recipe, folder, splits=splits)
    with pytest.raises(ValueError, match=r"holds a run already; .*--resume .*--overwrite, or choose another --name"):
        train(recipe.override(["seed=5"]), folder, splits=splits)
    (folder / "notes.txt").write_text("mine")
    second = train(recipe.override(["seed=5"]), folder, splits=splits, overwrite=True)
    assert not torch.equal(first.model.head.weight, second.model.head.weight)
    assert (folder / "notes.txt").read_text() == "mine"
    assert len(json.loads((folder / "environment.json").read_text())) == 1


def test_a_complete_run_is_left_as_it_is(recipe, splits, tmp_path):
    first = train(recipe, tmp_path / "run", splits=splits)
    metrics = (tmp_path / "run" / "metrics.csv").read_bytes()
    again = resume(tmp_path / "run", splits=splits)
    assert (tmp_path / "run" / "metrics.csv").read_bytes() == metrics
    assert again.test == first.test
    assert [s["from_step"] for s in json.loads((tmp_path / "run" / "environment.json").read_text())] == [0, 6]


def test_a_run_can_be_made_longer(recipe, splits, tmp_path):
    train(recipe, tmp_path / "run", splits=splits)
    longer = resume(tmp_path / "run", splits=splits, overrides=["schedule.epochs=4"])
    rows = list(csv.DictReader((tmp_path / "run" / "metrics.csv").open()))
    assert [row["epoch"] for row in rows] == ["1", "2", "3", "4"]
    assert RunFolder(tmp_path / "run").recipe() == longer.recipe
    assert longer.recipe.schedule.epochs == 4


@pytest.mark.parametrize("word", ["seed=3", "seed = 3", "data.batch_size=8", "model.name=std_vit_cifar"])
def test_but_keeps_its_model_data_and_seed(recipe, splits, tmp_path, word):
    train(recipe, tmp_path / "run", splits=splits)
    with pytest.raises(ValueError, match="a run that has begun keeps its model, data and seed"):
        resume(tmp_path / "run", splits=splits, overrides=[word])


def test_the_data_may_have_moved(recipe, splits, tmp_path):
    train(recipe, tmp_path / "run", splits=splits)
    assert resume(tmp_path / "run", splits=splits, overrides=["data.root=elsewhere"]).recipe.data.root == "elsewhere"


def test_but_not_have_changed(recipe, splits, tmp_path):
    train(recipe, tmp_path / "run", splits=splits)
    before = (tmp_path / "run" / "data.json").read_bytes()
    more = replace(splits, train=make_set(44, 0))
    with pytest.raises(ValueError, match=r"not those that .* began with .*: some were added or removed"):
        resume(tmp_path / "run", splits=more, overrides=["schedule.epochs=4"])
    assert (tmp_path / "run" / "data.json").read_bytes() == before


def test_there_is_nothing_to_resume(tmp_path):
    with pytest.raises(ValueError, match=r"holds no run \(it has no config.yaml\); begin one"):
        resume(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


def test_a_folder_that_cannot_be_made_is_one_sentence(recipe, splits, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="Not a directory") as caught:
        train(recipe, tmp_path / "file" / "run", splits=splits)
    assert "file" in str(caught.value.filename)
