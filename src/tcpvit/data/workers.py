"""The worker processes of a loader: they outlive signals that ask the run to stop, and one that is lost is explained.

Slurm, systemd and a terminal send SIGTERM or SIGINT to every process of a run. The main process saves and leaves; if
its workers died of the same signal, it could not finish the step it is in.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from tcpvit.errors import Resumable

STOP = (signal.SIGINT, signal.SIGTERM)
HAS_SENDERS = hasattr(signal, "sigwaitinfo")  # not on Windows and macOS


class LostWorker(Resumable):
    """A worker process of a loader died, mostly because memory ran out."""


@contextmanager
def stop_signals_blocked() -> Iterator[None]:
    """Signals that ask to stop wait until the block ends; processes started in it keep them blocked."""
    if not HAS_SENDERS:
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def begin_worker(worker: int) -> None:
    """In a worker: only the main process, which ends its workers by SIGTERM, can ask it to stop."""
    sys.excepthook = _say_unless_alone
    if HAS_SENDERS:
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP)
        threading.Thread(target=_obey_parent, args=(os.getppid(),), daemon=True).start()
    else:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _say_unless_alone(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """What the thread that hands tensors over calls: if the main process left in the middle, it has said why itself."""
    if not issubclass(kind, ConnectionError | EOFError):
        sys.__excepthook__(kind, error, trace)


def _obey_parent(parent: int) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(0)


@contextmanager
def lost_workers_explained(advice: str) -> Iterator[None]:
    """Turn torch's error about a dead worker, which it raises anywhere in the block, into a sentence with advice."""
    try:
        yield
    except RuntimeError as error:
        if not str(error).startswith("DataLoader worker"):
            raise
        raise LostWorker(
            f"a data worker was killed, perhaps because memory ran out ({str(error).rstrip('. ')}); take fewer with "
            f"--set data.workers=..., {advice}"
        ) from error
