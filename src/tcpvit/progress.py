"""What a long job reports to its caller while it runs. The displays for people are in `displays.py`."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

from annotated_types import Ge

Item = TypeVar("Item")
Row = dict[str, float]  # the numbers of an epoch or of a step, by column
Natural = Annotated[int, Ge(0)]
NonNegative = Annotated[float, Ge(0)]


@dataclass
class State:
    """Where a run stands, in plain numbers: what a checkpoint holds besides tensors.

    The learning rate, the data and the random numbers are functions of `epoch`, `batch` and `step`: nothing of them
    needs to be stored.
    """

    epoch: Natural = 0  # completed epochs
    batch: Natural = 0  # completed batches of the current epoch
    step: Natural = 0  # optimiser steps, skipped ones included
    skipped: Natural = 0  # steps left out because of a non-finite loss
    skipped_in_a_row: Natural = 0
    seconds: NonNegative = 0.0  # of the run, over all sessions
    cpu_seconds: NonNegative = 0.0  # the same in time of this process, which other programs disturb less
    sums: dict[str, float] = field(default_factory=dict)  # loss, hits, weight, images, seconds of the current epoch
    best: float | None = None  # the best value of the task's metric
    best_epoch: Natural = 0
    stale: Natural = 0  # evaluations since then
    history: list[Row] = field(default_factory=list)  # a row for each epoch
    gradients: list[Row] = field(default_factory=list)  # their norms by slice, where the recipe asks for them

    def add(self, **amounts: float) -> None:
        """Add to the sums of the current epoch."""
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
        """The speed of training in the current epoch, without evaluation."""
        return self.sums.get("images", 0.0) / max(self.sums.get("seconds", 0.0), 1e-9)


@dataclass(frozen=True)
class RunSummary:
    """What the head of a training display says."""

    title: str  # the model on the set
    facts: dict[str, str]
    metric: str
    label: str  # of the metric
    epochs: int
    batches: int  # in an epoch


class Progress:
    """Shows nothing but messages, through the logger "tcpvit"; a display overrides what it shows."""

    resume_command = "`tcpvit train --resume {run}`"  # what resumes a run that was stopped

    def start(self, summary: RunSummary, state: State) -> None:
        """A training run begins or resumes."""

    def step(self, state: State) -> None:
        """An optimiser step is done."""

    def epoch(self, row: Row, is_best: bool) -> None:
        """An epoch is complete."""

    def stop(self) -> None:
        """The run ends, for whatever reason."""

    def message(self, text: str) -> None:
        """Something the user must know."""
        logging.getLogger("tcpvit").warning("%s", text)

    def track(self, items: Iterable[Item], description: str, total: int | None = None) -> Iterable[Item]:
        """The items of a long loop, unchanged; a display draws a bar."""
        return items

    def how_to_resume(self, run: object) -> str:
        """The command that resumes a run, for the end of a sentence."""
        return self.resume_command.format(run=shlex.quote(str(run)))


class NoMessages(Progress):
    """Shows nothing at all: of several processes only one shows messages."""

    def message(self, text: str) -> None:
        """Shown by another process."""
