"""Counts of the service in the text format of Prometheus."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)  # the upper ends of the classes of time


class Metrics:
    """Requests by status, images, batches, and how long answers took.

    >>> metrics = Metrics(waiting=lambda: 0)
    >>> metrics.answered(200, 0.02); metrics.batch(3)
    >>> "tcpvit_images_total 3" in metrics.text()
    True
    """

    def __init__(self, waiting: Callable[[], int]):
        self.waiting, self.lock = waiting, threading.Lock()
        self.statuses: Counter[int] = Counter()
        self.images = self.batches = 0
        self.times, self.seconds = [0] * (len(SECONDS) + 1), 0.0

    def answered(self, status: int, seconds: float) -> None:
        """A request was answered."""
        with self.lock:
            self.statuses[status] += 1
            self.times[bisect_left(SECONDS, seconds)] += 1
            self.seconds += seconds

    def batch(self, images: int) -> None:
        """A batch is computed."""
        with self.lock:
            self.batches += 1
            self.images += images

    def text(self) -> str:
        """Everything, as Prometheus reads it."""
        with self.lock:
            lines = ["# TYPE tcpvit_requests_total counter"]
            lines += [f'tcpvit_requests_total{{status="{status}"}} {n}' for status, n in sorted(self.statuses.items())]
            for name, value in {"images": self.images, "batches": self.batches}.items():
                lines += [f"# TYPE tcpvit_{name}_total counter", f"tcpvit_{name}_total {value}"]
            lines += ["# TYPE tcpvit_waiting_images gauge", f"tcpvit_waiting_images {self.waiting()}"]
            lines.append("# TYPE tcpvit_request_seconds histogram")
            total = 0
            for end, count in zip((*SECONDS, "+Inf"), self.times, strict=True):
                total += count
                lines.append(f'tcpvit_request_seconds_bucket{{le="{end}"}} {total}')
            lines += [f"tcpvit_request_seconds_sum {self.seconds:.6f}", f"tcpvit_request_seconds_count {total}"]
        return "\n".join(lines) + "\n"
