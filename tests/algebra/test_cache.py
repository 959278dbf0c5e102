"""Cached tensors: made once, free of the caller's modes."""

import pytest
import torch
from torch._subclasses import FakeTensorMode

from tcpvit.algebra import cache
from tcpvit.algebra.cache import cached_tensors, outside_torch_modes, planned


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


def test_a_plan_is_made_once_for_each_kind_of_input():
    calls = []

    @planned
    def plan(transform, A, B, tube_ndim):
        calls.append((transform, A.dtype, tuple(A.shape), tuple(B.shape), tube_ndim))
        return object()

    A, B = torch.ones(2, 3), torch.ones(3)
    first = plan("dct", A, B, tube_ndim=1)
    assert plan("dct", A + 1, torch.nn.Parameter(B), tube_ndim=1) is first
    others = [
        plan("dst", A, B, tube_ndim=1),
        plan("dct", A, B, tube_ndim=2),
        plan("dct", A.double(), B, tube_ndim=1),
        plan("dct", A, A, tube_ndim=1),
        plan("dct", A.to("meta"), B, tube_ndim=1),
    ]
    assert first not in others
    assert len(calls) == len({first, *others}) == 6
    torch.vmap(lambda a: plan("dct", a, B, tube_ndim=1) and a)(A.expand(4, 2, 3))  # the shape that the function sees
    assert len(calls) == 6


def test_what_is_no_plain_tensor_or_name_is_planned_every_time():
    made = planned(lambda transform, A, tube_ndim: object())
    matrix, A = torch.eye(3), torch.ones(2, 3)
    assert made(matrix, A, tube_ndim=1) is not made(matrix, A, tube_ndim=1)
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(A)
        assert made("dct", fake, tube_ndim=1) is not made("dct", fake, tube_ndim=1)
    assert made("dct", [1.0], tube_ndim=1) is not made("dct", [1.0], tube_ndim=1)


def test_plans_that_fail_are_not_kept_and_the_oldest_goes_first(monkeypatch):
    monkeypatch.setattr(cache, "MAX_RESULTS", 1)
    made = planned(lambda transform, A, tube_ndim: _refuse(1) if len(A) == 2 else object())
    for _ in range(2):
        with pytest.raises(ValueError, match="no such key"):
            made("dct", torch.ones(2), tube_ndim=1)
    first = made("dct", torch.ones(3), tube_ndim=1)
    assert made("dct", torch.ones(4), tube_ndim=1) is not first
    assert made("dct", torch.ones(3), tube_ndim=1) is not first
