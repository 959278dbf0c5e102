"""Where a run stands, in plain numbers: what a checkpoint holds besides tensors."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

Row = dict[str, float]


@dataclass
class State:
    """Counts, the sums of the epoch under way, and what was measured so far.

    The learning rate, the data and the random numbers are functions of `epoch`, `batch` and `step`: nothing of them
    needs to be stored.
    """

    epoch: int = 0  # epochs that are complete
    batch: int = 0  # batches of the current epoch that are done
    step: int = 0  # optimiser steps, skipped ones included
    skipped: int = 0  # steps left out because of a non-finite loss
    skipped_in_a_row: int = 0
    seconds: float = 0.0  # of the whole run
    cpu_seconds: float = 0.0  # the same in time of this process, which other programs disturb less
    sums: dict[str, float] = field(default_factory=dict)  # loss, hits, weight, images, seconds of the epoch under way
    best: float | None = None  # the best value of the task's metric
    best_epoch: int = 0
    stale: int = 0  # evaluations since then
    history: list[Row] = field(default_factory=list)
    gradients: list[Row] = field(default_factory=list)  # their norms by slice, where the recipe asks for them

    def add(self, **amounts: float) -> None:
        """Add to the sums of the epoch under way."""
        for name, amount in amounts.items():
            self.sums[name] = self.sums.get(name, 0.0) + amount

    def mean(self, name: str) -> float:
        """A sum divided by the weight: NaN before anything was counted.

        >>> state = State(); state.add(loss=6.0, weight=4.0)
        >>> state.mean("loss")
        1.5
        """
        weight = self.sums.get("weight", 0.0)
        return self.sums.get(name, 0.0) / weight if weight else float("nan")

    @property
    def images_per_second(self) -> float:
        """Of the epoch under way, without evaluation."""
        return self.sums.get("images", 0.0) / max(self.sums.get("seconds", 0.0), 1e-9)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; floats come back to the last bit."""
        return asdict(self)
