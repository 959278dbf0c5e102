"""What a run survives: kill -9 anywhere, signals, a damaged checkpoint, a full disk. It ends in the same weights."""

from __future__ import annotations

import csv
import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from test_trainer import Listener

import tcpvit
from tcpvit import files
from tcpvit.training import ClassificationMetrics, Recipe, resume, train
from tcpvit.training.checkpoint import list_checkpoints, read_checkpoint, write_checkpoint
from tcpvit.training.trainer import Trainer

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
        command,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        bufsize=0,
        start_new_session=True,  # a group of its own, to be sent signals
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


def go_on(folder: Path) -> subprocess.Popen[str]:
    """The same run, resumed in another process."""
    return subprocess.Popen([*RESUME, str(folder), "--quiet"], env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)


def test_a_run_killed_and_stopped_by_signals_ends_bit_identical(slow_recipe, tmp_path):
    train(slow_recipe, tmp_path / "whole")
    folder = tmp_path / "stopped"
    process = begin(slow_recipe, folder)
    wait_for_checkpoint(folder, process, 4)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    for number, code, name, step in ((signal.SIGTERM, 143, "SIGTERM", 12), (signal.SIGINT, 130, "Ctrl-C", 22)):
        process = go_on(folder)
        wait_for_checkpoint(folder, process, step)
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
        assert process.returncode == code, said
        assert f"stopped by {name} after step" in said
        assert f"tcpvit train --resume {folder}" in said
        assert "Traceback" not in said
    assert int(list_checkpoints(folder / "checkpoints")[-1].stem[-8:]) < 40
    resume(folder)
    assert_same_run(folder, tmp_path / "whole")


@pytest.fixture
def streamed_recipe(slow_recipe, tmp_path) -> Recipe:
    """Images that two worker processes read from files, for longer than the test waits."""
    random = np.random.default_rng(0)
    for number in range(48):
        file = tmp_path / "images" / f"class {number % 3}" / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(file)
    words = [f"data.name=folder:{tmp_path / 'images'}", "data.options={stream: true}", "data.workers=2"]
    words += ["data.image_size=32"]
    return slow_recipe.override(["schedule.epochs=1000", *words])


@pytest.mark.skipif(sys.platform != "linux", reason="signals that know their sender")
def test_a_signal_to_all_processes_saves_too(streamed_recipe, tmp_path):
    """What Slurm and systemd send; with data workers, which must not die of it."""
    folder = tmp_path / "stopped"
    process = begin(streamed_recipe, folder)
    wait_for_checkpoint(folder, process, 4)
    assert len(children(process.pid)) >= 2
    os.killpg(process.pid, signal.SIGTERM)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 143, said
    step = int(re.search(r"stopped by SIGTERM after step (\d+); everything is saved", said)[1])
    assert "Error" not in said
    assert list_checkpoints(folder / "checkpoints")[-1].stem == f"step-{step:08d}"
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)  # no worker is left


@pytest.mark.skipif(sys.platform != "linux", reason="finds workers in /proc")
def test_a_killed_worker_is_one_sentence_and_how_to_resume(streamed_recipe, tmp_path):
    folder = tmp_path / "run"
    process = begin(streamed_recipe, folder)
    wait_for_checkpoint(folder, process, 4)
    os.kill(children(process.pid)[-1], signal.SIGKILL)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 1, said
    told = [line for line in said.splitlines() if line.startswith("tcpvit: a data worker was killed")]
    assert len(told) == 1, said
    assert f"train --resume {folder}`" in told[0]
    assert "Traceback" not in said
    assert list_checkpoints(folder / "checkpoints")


def children(process: int) -> list[int]:
    return list(map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split()))


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
        signal.raise_signal(signal.SIGINT)
        assert stop_signal.name == "Ctrl-C"
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    ("scores", "epochs", "best", "said"),
    [
        ([0.1, 0.9], 2, 2, None),  # the checkpoint has the weights of the best epoch
        ([0.9, 0.1], 2, 2, "the weights of the last epoch take its place"),
        ([0.9, 0.1, 0.5, 0.4], 4, 3, "the best epoch is chosen among those that are left"),
    ],
)
@pytest.mark.parametrize("damage", ["removed", "truncated"])
def test_a_run_that_lost_its_best_model_can_end(
    recipe, splits, tmp_path, monkeypatch, scores, epochs, best, said, damage
):
    folder, test = tmp_path / "run", 0.3
    metric = iter([*scores[:2], test, *scores[2:], test])
    monkeypatch.setattr(ClassificationMetrics, "summary", lambda self: {"loss": 1.0, "top1": next(metric)})
    train(recipe, folder, splits=splits)
    weights = folder / "best" / "model.safetensors"
    shutil.rmtree(folder / "best") if damage == "removed" else weights.write_bytes(weights.read_bytes()[:100])
    listener = Listener()
    result = resume(folder, splits=splits, overrides=[f"schedule.epochs={epochs}"], progress=listener)
    assert listener.said == ([f"{folder / 'best'} is missing or damaged; {said}"] if said else [])
    assert result.best["epoch"] == best
    assert torch.equal(result.model.head.weight, load_file(weights)["head.weight"])
    if best == epochs:
        assert weights.read_bytes() == (folder / "last" / "model.safetensors").read_bytes()


def test_removed_checkpoints_are_made_again(recipe, splits, tmp_path):
    train(recipe, tmp_path / "whole", splits=splits)
    train(recipe, tmp_path / "run", splits=splits)
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    listener = Listener()
    resume(tmp_path / "run", splits=splits, progress=listener)
    assert [said.partition(" any more")[0] for said in listener.said] == [f"{tmp_path / 'run'} has no checkpoint"]
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_another_environment_is_told_once(recipe, splits, tmp_path, monkeypatch):
    train(recipe, tmp_path / "run", splits=splits)
    listener = Listener()
    resume(tmp_path / "run", splits=splits, progress=listener)
    assert listener.said == []
    path = tmp_path / "run" / "environment.json"
    sessions = json.loads(path.read_text())
    sessions[-1] |= {"torch": "2.6.0", "threads": 64, "kernels": not sessions[-1]["kernels"]}
    path.write_text(json.dumps(sessions))
    resume(tmp_path / "run", splits=splits, progress=listener)
    assert len(listener.said) == 1
    now = "on" if sessions[0]["kernels"] else "off"
    before = {"on": "off", "off": "on"}[now]
    assert listener.said[0].startswith(
        f"resumed in another environment (torch 2.6.0 before, {torch.__version__} now; threads 64 before, 1 now; "
        f"kernels {before} before, {now} now): the result may differ"
    )
    resume(tmp_path / "run", splits=splits, progress=listener)
    assert len(listener.said) == 1


def test_a_refused_run_leaves_nothing(recipe, splits, tmp_path):
    """Three classes of images and a head of two: only the first step can tell."""
    model = tcpvit.create_model("tcp_vit_cifar", depth=1, num_classes=2)
    with pytest.raises(ValueError, match="2"):
        train(recipe, tmp_path / "runs" / "run", splits=splits, model=model)
    assert not (tmp_path / "runs").exists()
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "notes.txt").write_text("mine")
    (mine / "figures").mkdir()
    with pytest.raises(ValueError, match="2"):
        train(recipe, mine / "run", splits=splits, model=model)
    assert sorted(path.name for path in mine.iterdir()) == ["figures", "notes.txt"]


def test_a_refused_overwrite_leaves_the_old_run(recipe, splits, tmp_path, monkeypatch):
    train(recipe, tmp_path / "run", splits=splits)
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*.safetensors")}

    def refuse(*args):
        raise ValueError("no such optimiser here")

    monkeypatch.setattr("tcpvit.training.trainer.build_optimizer", refuse)
    with pytest.raises(ValueError, match="no such optimiser"):
        train(recipe, tmp_path / "run", splits=splits, overwrite=True)
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*.safetensors")} == before


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")]
)
def test_out_of_memory_says_what_would_fit(recipe, tmp_path, monkeypatch, error):
    """The sentence names the step, and the command in it resumes the run with half of the memory."""
    whole = Trainer.step
    calls = []

    def step(self, images, targets):
        calls.append(len(images))
        if len(calls) == 4:
            raise error
        return whole(self, images, targets)

    monkeypatch.setattr(Trainer, "step", step)
    recipe = recipe.override(["checkpoints.every_steps=1"])
    with pytest.raises(ValueError, match=r"cpu has run out of memory after step 3 \(epoch 2\) with batches of") as said:
        train(recipe, tmp_path / "run", progress=Listener())
    assert "data.batch_size=8, which should need about half" in str(said.value)
    overrides = re.findall(r"--set (\S+?),? ", f"{said.value} ")
    assert [word.partition("=")[0] for word in overrides] == ["optimizer.accumulate", "data.eval_batch_size"]
    resume(tmp_path / "run", overrides=overrides, progress=Listener())
    assert (tmp_path / "run" / "result.json").is_file()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"epoch": -1}, r"the state of the checkpoint\.epoch should be a whole number of at least 0, got -1"),
        ({"step": 2.5}, r"the state of the checkpoint\.step should be a whole number"),
        ({"sums": {"loss": "low"}}, r"the state of the checkpoint\.sums\.loss should be a number"),
        ({"history": [{"epoch": 1}]}, r"the history of the checkpoint\[0\] does not say step, train_loss"),
    ],
)
def test_a_checkpoint_whose_state_is_nonsense_is_refused(recipe, tmp_path, change, sentence):
    recipe = recipe.override(["schedule.epochs=1"])
    train(recipe, tmp_path / "run", progress=Listener())
    (path,) = list_checkpoints(tmp_path / "run" / "checkpoints")[-1:]
    tensors, state = read_checkpoint(path)
    write_checkpoint(path, tensors, {**state, "state": {**state["state"], **change}})
    with pytest.raises(ValueError, match=sentence):
        resume(tmp_path / "run", overrides=["schedule.epochs=2"], progress=Listener())
