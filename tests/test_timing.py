"""Interleaved timing."""

import time

import torch

from tcpvit.timing import interleaved, using_threads


def test_contenders_run_in_turns_and_the_best_time_counts():
    calls, delays = [], iter([0, 0.02, 0.001, 0.02, 0.02, 0.02])

    def first():
        calls.append("first")
        time.sleep(next(delays, 0.02))

    best = interleaved({"first": first, "second": lambda: calls.append("second")}, seconds=0.001)
    assert calls == ["first", "second"] * 4  # one warm-up and three rounds
    assert 0.001 <= best["first"] < 0.02


def test_threads_are_set_back():
    before = torch.get_num_threads()
    with using_threads(1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
