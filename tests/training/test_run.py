"""The run folder: one writer, no run replaced by accident, nothing foreign removed."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_runs import make_set

from tcpvit import cli
from tcpvit.training import resume, train
from tcpvit.training import run as run_module
from tcpvit.training.checkpoint import list_checkpoints, read_checkpoint
from tcpvit.training.folder import FILES, FOLDERS, LOCK, RunFolder, folder_of
from tcpvit.training.trainer import Trainer

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
    with pytest.raises(ValueError, match="a resumed run keeps its model, data and seed"):
        resume(tmp_path / "run", splits=splits, overrides=[word])


def test_the_data_may_have_moved(recipe, splits, tmp_path):
    train(recipe, tmp_path / "run", splits=splits)
    assert resume(tmp_path / "run", splits=splits, overrides=["data.root=elsewhere"]).recipe.data.root == "elsewhere"


def test_but_not_have_changed(recipe, splits, tmp_path):
    train(recipe, tmp_path / "run", splits=splits)
    before = (tmp_path / "run" / "data.json").read_bytes()
    more = replace(splits, train=make_set(44, 0))
    with pytest.raises(ValueError, match=r"not those that .* started with .*: some were added, removed or renamed"):
        resume(tmp_path / "run", splits=more, overrides=["schedule.epochs=4"])
    assert (tmp_path / "run" / "data.json").read_bytes() == before


def killed(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_change_is_kept_only_once_checkpoint_and_images_fit(recipe, splits, tmp_path, monkeypatch):
    train(recipe, tmp_path / "run", splits=splits)
    before = (tmp_path / "run" / "config.yaml").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "restore", killed)
        with pytest.raises(KeyboardInterrupt):
            resume(tmp_path / "run", splits=splits, overrides=["schedule.epochs=4"])
    with pytest.raises(ValueError, match="the images are not those"):
        resume(tmp_path / "run", splits=replace(splits, train=make_set(44, 0)), overrides=["schedule.epochs=4"])
    assert (tmp_path / "run" / "config.yaml").read_bytes() == before
    assert len(resume(tmp_path / "run", splits=splits).history) == 2


@pytest.mark.parametrize(("first", "then"), [("float32", "float16"), ("float16", "bfloat16")])
def test_a_run_goes_on_in_another_precision(recipe, splits, tmp_path, monkeypatch, first, then):
    """On a CPU by the back door: recipes ask for a GPU."""
    monkeypatch.setattr(run_module, "find_device", lambda recipe: torch.device("cpu"))
    train(recipe.override([f"precision={first}"]), tmp_path / "run", splits=splits)
    changes = [f"precision={then}", "schedule.epochs=3"]
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "add_session", killed)  # comes after the change
        with pytest.raises(KeyboardInterrupt):
            resume(tmp_path / "run", splits=splits, overrides=changes)
    result = resume(tmp_path / "run", splits=splits)
    assert (len(result.history), result.recipe.precision) == (3, then)
    _, state = read_checkpoint(list_checkpoints(tmp_path / "run" / "checkpoints")[-1])
    assert bool(state["scaler"]) == (then == "float16")


def test_there_is_nothing_to_resume(tmp_path):
    with pytest.raises(ValueError, match=r"holds no run \(it has no config.yaml\); start one"):
        resume(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


def test_a_folder_that_cannot_be_made_is_one_sentence(recipe, splits, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="Not a directory") as caught:
        train(recipe, tmp_path / "file" / "run", splits=splits)
    assert "file" in str(caught.value.filename)


links = pytest.mark.skipif(os.name == "nt", reason="links need rights on Windows")


def lay_out(home, kind):
    """A folder outside of a run, with something of the user's in it; gives what a link is to lead to."""
    outside = home / "outside"
    outside.mkdir()
    (outside / "mine").write_text("mine")
    (outside / ".mine.tmp").write_text("mine")
    return {"file": outside / "mine", "folder": outside, "nothing": home / "nothing"}[kind]


def remove(path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


def untouched(home) -> bool:
    files = {path.name: path.read_text() for path in (home / "outside").iterdir()}
    return files == {"mine": "mine", ".mine.tmp": "mine"} and not (home / "nothing").exists()


@links
@pytest.mark.parametrize("target", ["there", "nothing"])
@pytest.mark.parametrize("name", [*FILES, *FOLDERS, LOCK, "best/model.safetensors", "checkpoints/more"])
def test_a_part_that_is_a_link_is_refused(recipe, splits, tmp_path, name, target):
    folder = tmp_path / "run"
    train(recipe, folder, splits=splits)
    kind = ("folder" if name in FOLDERS else "file") if target == "there" else "nothing"
    remove(folder / name)
    (folder / name).symlink_to(lay_out(tmp_path, kind))
    for attempt in (
        lambda: resume(folder, splits=splits, overrides=["schedule.epochs=3"]),
        lambda: train(recipe, folder, splits=splits, overwrite=True),
        lambda: RunFolder(folder).locked().__enter__(),
    ):
        with pytest.raises(
            ValueError, match=rf"{re.escape(name)} is a link to .*; put the file or folder itself there"
        ):
            attempt()
    assert untouched(tmp_path)


@links
def test_a_new_run_is_not_begun_among_links(recipe, splits, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "best").symlink_to(lay_out(tmp_path, "folder"))
    with pytest.raises(ValueError, match=r"best is a link to"):
        train(recipe, tmp_path / "run", splits=splits)
    assert untouched(tmp_path)


@links
def test_the_run_itself_may_be_a_link_and_so_may_what_is_not_of_the_run(recipe, splits, tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    (tmp_path / "disk" / "notes").symlink_to(lay_out(tmp_path, "file"))
    train(recipe, tmp_path / "run", splits=splits)
    train(recipe, tmp_path / "run", splits=splits, overwrite=True)
    assert (tmp_path / "disk" / "result.json").is_file()
    assert untouched(tmp_path)


@links
@pytest.mark.parametrize("name", [LOCK, "checkpoints", "tensorboard"])
def test_resuming_by_the_command_line_writes_nothing_outside(recipe, tmp_path, capsys, name):
    folder = tmp_path / "run"
    train(recipe, folder)
    target = lay_out(tmp_path, "file" if name == LOCK else "folder")
    remove(folder / name)
    (folder / name).symlink_to(target)
    capsys.readouterr()
    assert cli.main(["train", "--resume", str(folder), "--set", "schedule.epochs=3"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"tcpvit: {folder / name} is a link to {target}, ")
    assert err.count("\n") == 1
    assert untouched(tmp_path)


NAMES = ["../../x", "..", ".", "", "a/b", "a\\b", "/abs", "C:x", "a\nb", "a\x1b[2Jb", "a\0b", "a/"]


@pytest.mark.parametrize("verb", ["train", "compare"])
@pytest.mark.parametrize("name", NAMES)
def test_a_name_stays_inside_runs(recipe, tmp_path, monkeypatch, capsys, verb, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(recipe.to_yaml())
    assert cli.main([verb, "small.yaml", "--runs", "deep/runs", f"--name={name}"]) == 1
    err = capsys.readouterr().err
    assert "--name is the name of one folder in deep/runs" in err
    assert repr(name) in err
    assert err.count("\n") == 1
    assert os.listdir(tmp_path) == ["small.yaml"]


@pytest.mark.parametrize("name", ["short", "two words", "größer", ".hidden", "v1.2", "a..b"])
def test_names_of_one_folder_are_taken(name):
    assert folder_of(Path("runs"), name) == Path("runs") / name
