"""What a long job tells its caller while it runs. The displays for people are in `cli/progress.py`."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True)
class RunSummary:
    """What the head of a training display says."""

    title: str  # the model on the set
    facts: dict[str, str]
    metric: str
    epochs: int
    batches: int  # in an epoch


class Progress:
    """Shows nothing but messages, through the logger "tcpvit": the default unless the caller gives a display."""

    resume_command = "`tcpvit train --resume {run}`"  # what resumes a run that was stopped

    def start(self, summary: RunSummary, state: Any) -> None:
        """A training run begins or resumes; `state` is its `tcpvit.training.state.State`."""

    def step(self, state: Any) -> None:
        """An optimiser step is done."""

    def epoch(self, row: dict[str, float], is_best: bool) -> None:
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
    """Shows nothing at all: of several processes one speaks for all."""

    def message(self, text: str) -> None:
        """Another process says it."""
