"""Checkpoint files: whole or not there, checked, and nothing but tensors and JSON."""

from __future__ import annotations

import os
import resource

import pytest
import torch
from torch import nn

from tcpvit.models.pretrained import load_weights
from tcpvit.training import resume, train
from tcpvit.training.checkpoint import (
    checkpoint_path,
    list_checkpoints,
    prune,
    read_checkpoint,
    read_latest,
    write_checkpoint,
)

TENSORS = {
    "model.a": torch.randn(3, 4),
    "model.half": torch.randn(5).bfloat16(),
    "optimizer.step": torch.tensor(7.0),
    "empty": torch.zeros(0, 3),
    "flags": torch.tensor([True, False]),
}
STATE = {"state": {"step": 3, "loss": 0.1 + 0.2, "best": None, "history": [{"x": 1e-300}]}}


def write(folder, *steps):
    for step in steps:
        write_checkpoint(checkpoint_path(folder, step), TENSORS, {**STATE, "at": step})


def test_round_trip_is_exact(tmp_path):
    write(tmp_path, 3)
    tensors, state = read_checkpoint(checkpoint_path(tmp_path, 3))
    assert state == {**STATE, "at": 3}
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)
    assert os.listdir(tmp_path) == ["step-00000003.safetensors"]


def test_views_and_transposes_are_saved_as_they_look(tmp_path):
    matrix = torch.arange(6.0).view(2, 3)
    write_checkpoint(tmp_path / "x.safetensors", {"t": matrix.mT, "part": matrix.clone()[:, 1]}, {})
    tensors, _ = read_checkpoint(tmp_path / "x.safetensors")
    assert torch.equal(tensors["t"], matrix.mT)
    assert torch.equal(tensors["part"], matrix[:, 1])


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(3072, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.third.weight = self.second.weight
        self.head = nn.Linear(8, 3)

    def forward(self, images):
        return self.head(self.third(self.second(self.first(images.flatten(1))).relu()))


def test_a_model_with_tied_weights_is_trained_and_resumed_to_the_same_bits(recipe, splits, tmp_path):
    whole = train(recipe, tmp_path / "run", splits=splits, model=Tied())
    list_checkpoints(tmp_path / "run" / "checkpoints")[-1].unlink()
    assert read_latest(tmp_path / "run" / "checkpoints", print)[1]["state"]["epoch"] == 1
    resumed = resume(tmp_path / "run", splits=splits, model=Tied())
    assert resumed.test == whole.test
    for result in (whole, resumed):  # of averaged weights
        assert result.model.third.weight is result.model.second.weight
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, resumed.model.state_dict()[name]), name
    best = Tied()
    load_weights(best, tmp_path / "run" / "best" / "model.safetensors")
    assert best.third.weight is best.second.weight
    assert torch.equal(best.third.weight, resumed.model.third.weight)


def test_tensors_that_share_memory_are_saved_one_by_one(tmp_path):
    matrix = torch.arange(6.0).view(2, 3)
    tensors = {"whole": matrix, "row": matrix[1], "same": matrix, "empty": matrix[2:]}
    write_checkpoint(tmp_path / "x.safetensors", tensors, {})
    found, _ = read_checkpoint(tmp_path / "x.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


def test_every_damaged_byte_is_noticed(tmp_path):
    write(tmp_path, 1)
    path = checkpoint_path(tmp_path, 1)
    good = path.read_bytes()
    for position in range(0, len(good), 7):
        path.write_bytes(good[:position] + bytes([good[position] ^ 0x10]) + good[position + 1 :])
        with pytest.raises(ValueError, match="is damaged"):
            read_checkpoint(path)
    for length in (0, 4, len(good) // 2, len(good) - 1):
        path.write_bytes(good[:length])
        with pytest.raises(ValueError, match="is damaged"):
            read_checkpoint(path)


def test_a_damaged_last_one_falls_back_and_says_so(tmp_path):
    write(tmp_path, 10, 20, 30)
    checkpoint_path(tmp_path, 30).write_bytes(b"not much")
    said: list[str] = []
    _, state = read_latest(tmp_path, said.append)
    assert state["at"] == 20
    assert len(said) == 1
    assert "step-00000030.safetensors is damaged" in said[0]
    assert "using the previous one" in said[0]
    assert [path.name for path in list_checkpoints(tmp_path)] == [f"step-000000{n}.safetensors" for n in (10, 20)]


def test_all_damaged_is_said(tmp_path):
    write(tmp_path, 10)
    checkpoint_path(tmp_path, 10).write_bytes(b"not much")
    said: list[str] = []
    assert read_latest(tmp_path, said.append) is None
    assert said[0].endswith("renamed to *.damaged; no other is left")


def test_none_left_is_none(tmp_path):
    assert read_latest(tmp_path, print) is None


def test_prune_keeps_the_newest(tmp_path):
    write(tmp_path, 9, 10, 100, 99)
    prune(tmp_path, 2)
    assert [path.name for path in list_checkpoints(tmp_path)] == [
        "step-00000099.safetensors",
        "step-00000100.safetensors",
    ]


def test_a_file_too_large_for_the_disk_leaves_the_old_one(tmp_path):
    """The kernel refuses to write beyond the limit, as a full disk would."""
    path = tmp_path / "x.safetensors"
    write_checkpoint(path, {"a": torch.zeros(10)}, {})
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        with pytest.raises(OSError, match="could not be written"):
            write_checkpoint(path, {"a": torch.zeros(100_000)}, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["x.safetensors"]


def test_a_pickle_is_not_opened(tmp_path):
    """torch.save writes pickles; reading one as a checkpoint fails without running it."""
    torch.save({"a": torch.zeros(1)}, tmp_path / "step-00000001.safetensors")
    with pytest.raises(ValueError, match="is damaged"):
        read_checkpoint(tmp_path / "step-00000001.safetensors")
