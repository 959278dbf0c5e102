"""What a run survives: kill -9 anywhere, signals, a damaged checkpoint, a full disk. It ends in the same weights."""

from __future__ import annotations

import csv
import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from test_trainer import Listener

from tcpvit import files
from tcpvit.training import Recipe, resume, train
from tcpvit.training.checkpoint import list_checkpoints, read_checkpoint

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
RESUME = [sys.executable, "-m", "tcpvit", "train", "--resume"]


def final_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Everything of the last checkpoint: weights, averaged weights, moments of the optimiser."""
    tensors, _ = read_checkpoint(list_checkpoints(folder / "checkpoints")[-1])
    assert {name.partition(".")[0] for name in tensors} == {"model", "optimizer", "ema"}
    return tensors


def measured(folder: Path) -> list[dict[str, str]]:
    """metrics.csv without the columns that tell the time."""
    rows = csv.DictReader((folder / "metrics.csv").open())
    return [{k: v for k, v in row.items() if k not in ("images_per_second", "seconds")} for row in rows]


def assert_same_run(folder: Path, reference: Path) -> None:
    found, expected = final_tensors(folder), final_tensors(reference)
    assert found.keys() == expected.keys()
    assert [name for name in expected if not torch.equal(found[name], expected[name])] == []
    assert measured(folder) == measured(reference)
    for kept in ("best", "last"):
        assert (folder / kept / "model.safetensors").read_bytes() == (
            reference / kept / "model.safetensors"
        ).read_bytes()


@pytest.fixture
def slow_recipe(recipe) -> Recipe:
    """A checkpoint at every second step, so that most resumptions are in the middle of an epoch."""
    return recipe.override(["schedule.epochs=4", "checkpoints.every_steps=2", "data.options.sizes=[160,20,20]"])


def begin(recipe: Recipe, folder: Path) -> subprocess.Popen[str]:
    """A run in a process of its own."""
    file = folder.parent / "recipe.yaml"
    file.write_text(recipe.to_yaml())
    command = [sys.executable, "-m", "tcpvit", "train", str(file), "--runs", str(folder.parent), "--name", folder.name]
    return subprocess.Popen(
        command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=0
    )


def wait_for_checkpoint(folder: Path, process: subprocess.Popen[str], step: int) -> None:
    """Until a checkpoint of this step or a later one is there."""
    for _ in range(2400):
        names = [path.stem for path in list_checkpoints(folder / "checkpoints")]
        if names and int(names[-1].removeprefix("step-")) >= step:
            return
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    raise AssertionError("no checkpoint in two minutes")


def test_kill_9_twice_and_resume_is_bit_identical(slow_recipe, tmp_path):
    train(slow_recipe, tmp_path / "whole")
    folder = tmp_path / "killed"
    process = begin(slow_recipe, folder)
    wait_for_checkpoint(folder, process, 4)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    process = subprocess.Popen([*RESUME, str(folder), "--quiet"], env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    wait_for_checkpoint(folder, process, 14)
    process.kill()
    process.wait()
    assert int(list_checkpoints(folder / "checkpoints")[-1].stem[-8:]) < 40
    resume(folder)
    assert_same_run(folder, tmp_path / "whole")


@pytest.mark.parametrize(("number", "code", "name"), [(signal.SIGTERM, 143, "SIGTERM"), (signal.SIGINT, 130, "Ctrl-C")])
def test_signals_save_and_say_how_to_resume(slow_recipe, tmp_path, number, code, name):
    recipe = slow_recipe.override(["checkpoints.every_steps=0"])
    folder = tmp_path / "stopped"
    process = begin(recipe, folder)
    wait_for_checkpoint(folder, process, 10)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == code, said
    assert f"stopped by {name} after step" in said
    assert f"tcpvit train --resume {folder}" in said
    assert "Traceback" not in said
    train(recipe, tmp_path / "whole")
    resume(folder)
    assert_same_run(folder, tmp_path / "whole")


class Killed(BaseException):
    """Nothing catches it: the process is gone."""


def test_a_kill_at_any_write_changes_nothing(recipe, tmp_path, monkeypatch):
    """Stop before and after every rename of a small run in turn, then resume."""
    recipe = recipe.override(["checkpoints.every_steps=2"])
    train(recipe, tmp_path / "whole")
    replace, stop_at, calls = os.replace, [0, False], [0]

    def counted(source, target):
        calls[0] += 1
        if calls[0] == stop_at[0] and not stop_at[1]:
            raise Killed
        replace(source, target)
        if calls[0] == stop_at[0]:
            raise Killed

    monkeypatch.setattr(files.os, "replace", counted)
    train(recipe, tmp_path / "counted")
    total = calls[0]
    assert total > 15
    for number in range(1, total + 1):
        folder = tmp_path / f"stopped-{number}"
        calls[0], stop_at[:] = 0, [number, number % 2 == 0]
        with pytest.raises(Killed):
            train(recipe, folder)
        stop_at[0] = 0
        resume(folder) if (folder / "config.yaml").exists() else train(recipe, folder)
        assert_same_run(folder, tmp_path / "whole")
        assert not list(folder.rglob("*.tmp"))


def test_a_damaged_last_checkpoint_falls_back_and_ends_the_same(slow_recipe, tmp_path):
    train(slow_recipe, tmp_path / "whole")
    folder = tmp_path / "damaged"
    train(slow_recipe, folder)
    (folder / "result.json").unlink()
    last = list_checkpoints(folder / "checkpoints")[-1]
    content = bytearray(last.read_bytes())
    content[-100] ^= 1
    last.write_bytes(content)
    listener = Listener()
    resume(folder, progress=listener)
    assert len(listener.said) == 1
    assert (
        f"{last} is damaged (its checksum is wrong) and renamed to *.damaged; using the previous one"
        in listener.said[0]
    )
    assert_same_run(folder, tmp_path / "whole")


def test_a_full_disk_loses_nothing(recipe, tmp_path, monkeypatch):
    train(recipe, tmp_path / "whole")
    fsync, room = os.fsync, [14]

    def until_full(descriptor):
        room[0] -= 1
        if room[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    monkeypatch.setattr(files.os, "fsync", until_full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        train(recipe, tmp_path / "run")
    monkeypatch.undo()
    assert "what was saved before is intact: free space or fix the disk" in str(caught.value)
    assert f"then resume with `tcpvit train --resume {tmp_path / 'run'}`" in str(caught.value)
    assert not list((tmp_path / "run").rglob("*.tmp"))
    resume(tmp_path / "run")
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_a_second_ctrl_c_does_not_wait():
    from tcpvit.training.interrupt import StopSignal

    before = signal.getsignal(signal.SIGINT)  # ignored, if the tests run in the background of a shell
    with StopSignal() as stop_signal:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop_signal.name == "Ctrl-C"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
