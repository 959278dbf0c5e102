"""The program as it was called, so that the commands in its messages can be pasted."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path


def program() -> str:
    """`tcpvit` where that is this program, else what was typed: `.venv/bin/tcpvit`, `python -m tcpvit`."""
    called = Path(sys.argv[0])
    if called.parts[-2:] == ("tcpvit", "__main__.py"):
        return f"{_typed(Path(sys.executable))} -m tcpvit"
    return _typed(called) if called.stem == "tcpvit" else "tcpvit"  # else a program that calls `main`, as pytest


def pasteable(text: str) -> str:
    """`text` with the commands in it, written `` `tcpvit …` ``, as they work here."""
    return text.replace("`tcpvit ", f"`{program()} ")


def tell(text: str) -> None:
    """Say something to the user, on stderr, as errors are said."""
    from tcpvit.displays import say  # not above: it imports rich, which `tcpvit --help` does without

    say(pasteable(text))


def _typed(path: Path) -> str:
    """What a shell takes for this program here: its bare name if that is on the PATH, else its path."""
    found = shutil.which(path.stem)
    if found is not None and Path(found).absolute() == path.absolute():  # links of environments lead to one Python
        return path.stem
    inside = path.is_absolute() and path.is_relative_to(Path.cwd())
    return shlex.quote(os.path.relpath(path) if inside else str(path))
