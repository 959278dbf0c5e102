"""Two gloo processes on this machine, started by torchrun: the same run as one process, killed, resumed, in shards."""

from __future__ import annotations

import csv
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
import yaml
from small_runs import SMALL

from tcpvit.training import Recipe, resume, train
from tcpvit.training.checkpoint import list_checkpoints, read_checkpoint
from tcpvit.training.sharding import shard_dim

# No dropout: its random numbers are drawn by each process for its own share.
OPTIONS = {**SMALL["model"]["options"], "drop_rate": 0.0}
RECIPE = {
    **SMALL,
    "model": {"name": "tcp_vit_cifar", "options": OPTIONS},
    "augment": {"shift": 2, "flip": 0.5},
    "data": {**SMALL["data"], "options": {"sizes": [44, 21, 21]}},  # batches of 16, 16 and 12; 21 is odd
    "optimizer": {"lr": 0.01, "label_smoothing": 0.1},
    "checkpoints": {"every_steps": 1},
}
SAME = {"atol": 2e-5, "rtol": 1e-4}  # float32 sums in another order, over a few steps of AdamW


class Runs:
    """Runs in one folder, each a real command."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "small.yaml").write_text(yaml.safe_dump(RECIPE))

    def start(self, name, *words, restarts=0):
        torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", str(restarts)]
        torchrun += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
        begin = ["small.yaml", "--runs", "runs", "--name", name]
        train = ["-m", "tcpvit", "train", *(() if "--resume" in words else begin), *words, "--quiet"]
        return subprocess.Popen(
            [sys.executable, *torchrun, *train],
            cwd=self.folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def finish(self, process):
        try:
            output, _ = process.communicate(timeout=200)
        finally:
            process.kill()
        assert process.returncode == 0, output

    def __call__(self, name, *words):
        self.finish(self.start(name, *words))
        return self

    def stopped(self, name, other):
        """A copy of the run `name`, as if it had been killed before its last checkpoint."""
        folder = self.folder / "runs" / other
        shutil.copytree(self.folder / "runs" / name, folder)
        list_checkpoints(folder / "checkpoints")[-1].unlink()
        return folder

    def losses(self, name):
        with (self.folder / "runs" / name / "metrics.csv").open() as file:
            return [[float(row["train_loss"]), float(row["val_loss"])] for row in csv.DictReader(file)]

    def weights(self, name):
        tensors, _ = read_checkpoint(list_checkpoints(self.folder / "runs" / name / "checkpoints")[-1])
        return tensors


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """One process, which is this one, and two: the same global batch."""
    runs = Runs(tmp_path_factory.mktemp("distributed"))
    train(Recipe.from_dict(RECIPE), runs.folder / "runs" / "one")
    return runs("two")


def check_same(runs, name, other):
    """Losses, not weights: where a gradient is zero, as of key biases, AdamW steps by its rounding errors."""
    torch.testing.assert_close(torch.tensor(runs.losses(name)), torch.tensor(runs.losses(other)), **SAME)


def test_two_processes_have_the_losses_of_one(runs):
    check_same(runs, "two", "one")


def test_shards_have_the_losses_of_whole_models(runs):
    runs("sharded", "--set", "distributed.strategy=fsdp")
    check_same(runs, "sharded", "one")


def test_a_run_of_two_processes_goes_on_with_one(runs):
    resume(runs.stopped("two", "two-one"))
    check_same(runs, "two-one", "one")


def test_a_run_of_one_process_goes_on_with_two(runs):
    folder = runs.stopped("one", "one-two")
    runs("one-two", "--resume", str(folder))
    check_same(runs, "one-two", "one")
    assert len(list_checkpoints(folder / "checkpoints")) == len(
        list_checkpoints(folder.with_name("one") / "checkpoints")
    )


def test_a_killed_worker_does_not_lose_the_run(runs):
    process = runs.start("killed", restarts=2)
    folder = runs.folder / "runs" / "killed" / "checkpoints"
    end = time.monotonic() + 120
    while not list_checkpoints(folder) and time.monotonic() < end:
        time.sleep(0.02)
    os.kill(workers(process.pid)[-1], signal.SIGKILL)
    runs.finish(process)
    ours, theirs = runs.weights("killed"), runs.weights("two")
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


def workers(pid):
    """The processes that torchrun started."""
    children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=True)
    return [int(word) for word in children.stdout.split()]


def test_tensors_are_cut_where_the_processes_divide_them():
    assert shard_dim((3, 64, 192), 8) == 2
    assert shard_dim((3, 64, 63), 2) == 1
    assert shard_dim((3, 5), 2) == 0
