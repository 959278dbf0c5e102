"""Timing on a noisy machine: contenders run in turns, in one run, and the best time of each counts."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import torch

Name = TypeVar("Name", bound=Hashable)


def interleaved(
    contenders: Mapping[Name, Callable[[], object]],
    seconds: float = 2.0,
    clock: Callable[[], float] = time.perf_counter,
    least: int = 3,
) -> dict[Name, float]:
    """The best time of each contender in seconds, all of them called in turns for about `seconds` in all.

    Every contender is called at least `least` times after one call that warms it up. `time.thread_time` as the clock of
    a single thread leaves out what other processes take.

    >>> best = interleaved({"short": lambda: time.sleep(0.001), "long": lambda: time.sleep(0.004)}, seconds=0.05)
    >>> best["short"] < best["long"]
    True
    """
    _settle_allocator()
    for run in contenders.values():
        run()
    best = dict.fromkeys(contenders, float("inf"))
    rounds, end = 0, time.perf_counter() + seconds
    while rounds < least or time.perf_counter() < end:
        for name, run in contenders.items():
            start = clock()
            run()
            best[name] = min(best[name], clock() - start)
        rounds += 1
    return best


def _settle_allocator() -> None:
    """Free one large block, after which glibc keeps freed memory instead of giving it back to the system.

    Any process that works for a while gets there by itself; before, page faults are charged to whoever allocates.
    """
    torch.empty(31 * 2**20, dtype=torch.uint8).fill_(0)


@contextmanager
def using_threads(count: int) -> Iterator[None]:
    """Let torch use that many threads for a while.

    >>> with using_threads(1):
    ...     torch.get_num_threads()
    1
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
