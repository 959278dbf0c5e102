"""Ctrl-C and SIGTERM: remembered when they come, handled between two steps, when everything can be saved."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, NoReturn

NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}


class StopSignal:
    """While active, the first signal is remembered in `number`; a second Ctrl-C interrupts at once."""

    def __init__(self) -> None:
        self.number: int = 0  # none yet
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():  # Python lets no other thread handle signals
            self._handlers = {number: signal.signal(number, self._remember) for number in NAMES}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if self.number and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.number = number

    @property
    def name(self) -> str:
        """As the user knows it."""
        return NAMES[signal.Signals(self.number)]

    def exit(self) -> NoReturn:
        """End as the signal asks: KeyboardInterrupt (exit code 130) or SystemExit(143)."""
        raise KeyboardInterrupt if self.number == signal.SIGINT else SystemExit(128 + self.number)
