"""Ctrl-C and SIGTERM: noted when they come, obeyed between two steps, when everything can be saved."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}


class Interruption:
    """While active, the first signal is remembered in `signal`; a second Ctrl-C interrupts at once."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():  # Python lets no other thread handle signals
            self._before = {number: signal.signal(number, self._note) for number in NAMES}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number

    @property
    def name(self) -> str:
        """What the user did."""
        return NAMES[signal.Signals(self.signal)] if self.signal is not None else ""

    def leave(self) -> None:
        """End as the signal asks: KeyboardInterrupt (exit code 130) or SystemExit(143)."""
        if self.signal == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + int(self.signal or 0))
