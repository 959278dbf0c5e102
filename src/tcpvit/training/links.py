"""What a program writes into a folder stays there: links inside it are not followed."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from tcpvit.training.checkpoint import write_atomically

ADVICE = "put the file or folder itself there, or remove the link"


def refuse_links(home: Path, names: Iterable[str]) -> None:
    """None of these parts of `home`, nor anything below them, is a link; `home` itself may be one."""
    for name in names:
        for path in _with_all_below(home / name):
            if path.is_symlink():
                raise ValueError(f"{path} is a link to {os.readlink(path)}, which is not written through; {ADVICE}")


def write_inside(home: Path, name: str | Path, content: bytes) -> Path:
    """Write home/name, whole or not at all; a link in its place is replaced, one on the way that leaves is refused."""
    path = home / name
    if not path.parent.resolve().is_relative_to(home.resolve()):
        raise ValueError(f"{path.parent} leads through a link to {path.parent.resolve()}, outside of {home}; {ADVICE}")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)
    return path


def open_own(path: Path) -> IO[str]:
    """Open a file for reading and appending, made if need be: never through a link, and only one with a single name."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ValueError(f"{path} is a link, which is not followed; remove it") from error
        raise
    about = os.fstat(descriptor)
    if not stat.S_ISREG(about.st_mode) or about.st_nlink != 1:
        os.close(descriptor)
        raise ValueError(f"{path} is not a file of its own (a pipe, a device, or another name of a file); remove it")
    return os.fdopen(descriptor, "a+")


def _with_all_below(path: Path) -> Iterator[Path]:
    yield path
    for place, folders, files in os.walk(path):  # which does not enter links below `path`
        yield from (Path(place, name) for name in (*folders, *files))
