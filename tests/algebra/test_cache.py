"""Cached tensors: made once, free of the caller's modes."""

import pytest
import torch

from tcpvit.algebra import cache
from tcpvit.algebra.cache import cached_tensors, outside_torch_modes


def test_a_result_is_made_once_for_each_key():
    calls = []

    @cached_tensors
    def ones(size: int) -> torch.Tensor:
        calls.append(size)
        return torch.ones(size)

    assert ones(2) is ones(2)
    assert ones(3).shape == (3,)
    assert calls == [2, 3]


def test_the_oldest_result_goes_first(monkeypatch):
    monkeypatch.setattr(cache, "MAX_RESULTS", 2)
    calls = []

    @cached_tensors
    def remember(key: int) -> int:
        calls.append(key)
        return key

    assert [remember(key) for key in (1, 2, 3, 3, 2, 1)] == [1, 2, 3, 3, 2, 1]
    assert calls == [1, 2, 3, 1]


def test_modes_of_the_caller_stay_outside():
    with torch.inference_mode(), torch.device("meta"):
        made = outside_torch_modes(torch.ones, 3)
    assert not made.is_inference()
    assert made.device.type == "cpu"
    seen = []
    torch.func.grad(lambda x: (seen.append(outside_torch_modes(torch.ones, 3)), x.sum())[1])(torch.ones(3))
    assert seen[0].data_ptr() != 0  # a wrapped tensor has no storage of its own


def test_errors_come_through():
    with pytest.raises(ValueError, match="no such key"):
        cached_tensors(_refuse)(1)


def _refuse(key: int) -> int:
    raise ValueError("no such key")
