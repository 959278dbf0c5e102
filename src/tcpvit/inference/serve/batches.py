"""Concurrent requests in one forward pass: a bounded queue, and a thread that takes from it what has come."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import Full
from typing import Any


class Batcher:
    """Gives what many callers submit to `run`, which takes a list and returns as many results, `size` at most.

    The first item of a batch waits at most `wait` seconds for others. There are `places` to wait: what does not find
    one raises queue.Full instead of letting the queue grow.

    >>> with Batcher(lambda numbers: [2 * each for each in numbers], size=4, wait=0.001, places=8) as batcher:
    ...     [future.result() for future in batcher.submit_all([1, 2, 3])]
    [2, 4, 6]
    """

    def __init__(
        self,
        run: Callable[[list[Any]], Sequence[Any]],
        *,
        size: int,
        wait: float,
        places: int,
        seen: Callable[[int], None] = lambda items: None,
    ):
        self.run, self.size, self.wait, self.places, self.seen = run, size, wait, places, seen
        self.waiting: deque[tuple[Any, Future[Any]]] = deque()
        self.changed = threading.Condition()
        self.thread: threading.Thread | None = None  # the one that works; another one ends when nothing waits

    def __enter__(self) -> Batcher:
        with self.changed:
            self._start()
        return self

    def __exit__(self, *_: object) -> None:
        with self.changed:
            thread, self.thread = self.thread, None
            self.changed.notify_all()
        if thread is not None:
            thread.join()

    def _start(self) -> None:
        """Start the thread unless it runs; a service that is mounted in another one is never entered."""
        if self.thread is None:
            self.thread = threading.Thread(target=self._work, name="batches", daemon=True)
            self.thread.start()

    def _ends(self) -> bool:
        """Whether the thread that asks is to end."""
        return self.thread is not threading.current_thread()

    def __len__(self) -> int:
        return len(self.waiting)

    def submit_all(self, items: Sequence[Any]) -> list[Future[Any]]:
        """The promise of a result for each item; all of them find a place, or none."""
        futures: list[Future[Any]] = [Future() for _ in items]
        with self.changed:
            if len(self.waiting) + len(items) > self.places:
                raise Full
            self._start()
            self.waiting.extend(zip(items, futures, strict=True))
            self.changed.notify()
        return futures

    def _work(self) -> None:
        while batch := self._collect():
            self.seen(len(batch))
            try:
                results = self.run([item for item, _ in batch])
            except Exception as error:  # the callers get it; the thread lives on
                for _, future in batch:
                    if future.set_running_or_notify_cancel():
                        future.set_exception(error)
                continue
            for (_, future), result in zip(batch, results, strict=True):
                if future.set_running_or_notify_cancel():  # unless whoever asked has gone
                    future.set_result(result)

    def _collect(self) -> list[tuple[Any, Future[Any]]]:
        """The next batch; an empty one when there will be no more."""
        with self.changed:
            self.changed.wait_for(lambda: self.waiting or self._ends())
            until = time.monotonic() + self.wait
            while len(self.waiting) < self.size and not self._ends():
                left = until - time.monotonic()
                if left <= 0 or not self.changed.wait(left):
                    break
            return [self.waiting.popleft() for _ in range(min(self.size, len(self.waiting)))]
