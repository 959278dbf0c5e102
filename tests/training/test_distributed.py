"""Two gloo processes on this machine, started by torchrun: the same run as one process, killed, resumed, in shards."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
import yaml
from small_runs import SMALL

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

    def command(self, name, processes, *words, restarts=0):
        train = ["-m", "tcpvit", "train", "small.yaml", "--runs", "runs", "--name", name, "--quiet", *words]
        if processes == 1:
            return [sys.executable, *train]
        torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes), "--max-restarts", str(restarts)]
        return [sys.executable, *torchrun, "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", *train]

    def start(self, name, processes, *words, restarts=0):
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = self.command(name, processes, *words, restarts=restarts)
        return subprocess.Popen(
            command, cwd=self.folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def finish(self, process):
        try:
            output, _ = process.communicate(timeout=200)
        finally:
            process.kill()
        assert process.returncode == 0, output

    def __call__(self, name, processes, *words):
        self.finish(self.start(name, processes, *words))
        return self

    def losses(self, name):
        with (self.folder / "runs" / name / "metrics.csv").open() as file:
            return [[float(row["train_loss"]), float(row["val_loss"])] for row in csv.DictReader(file)]

    def weights(self, name):
        tensors, _ = read_checkpoint(list_checkpoints(self.folder / "runs" / name / "checkpoints")[-1])
        return tensors


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """One process and two, the same global batch."""
    return Runs(tmp_path_factory.mktemp("distributed"))("one", 1)("two", 2)


def check_same(runs, name, other):
    """Losses, not weights: where a gradient is zero, as of key biases, AdamW steps by its rounding errors."""
    torch.testing.assert_close(torch.tensor(runs.losses(name)), torch.tensor(runs.losses(other)), **SAME)


def test_two_processes_have_the_losses_of_one(runs):
    check_same(runs, "two", "one")


def test_shards_have_the_losses_of_whole_models(runs):
    runs("sharded", 2, "--set", "distributed.strategy=fsdp")
    check_same(runs, "sharded", "one")


@pytest.mark.parametrize(("first", "then"), [(2, 1), (1, 2)])
def test_a_run_goes_on_with_another_number_of_processes(runs, first, then):
    name = f"{first}-{then}"
    runs(name, first, "--set", "schedule.epochs=2")
    folder = runs.folder / "runs" / name
    for path in list_checkpoints(folder / "checkpoints")[-1:]:
        path.unlink()  # as if it had been killed before its last checkpoint
    words = [*runs.command(name, then)]
    start = words.index("small.yaml")
    command = [*words[:start], "--resume", f"runs/{name}", "--quiet"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=runs.folder, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    check_same(runs, name, "one")


def test_a_killed_worker_does_not_lose_the_run(runs):
    process = runs.start("killed", 2, "--set", "schedule.epochs=2", restarts=2)
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
