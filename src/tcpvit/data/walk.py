"""Folders of images and their files: links may lead elsewhere, or back to where they came from."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tcpvit.data.decode import EXTENSIONS, is_special


def natural_order(path: Path) -> list[tuple[int, int, str]]:
    """Sorts names as people do: frame 2 before frame 10, and B8 before B8A before B9.

    >>> sorted(map(Path, ["B10", "B8A", "b2", "B8"]), key=natural_order)
    [PosixPath('b2'), PosixPath('B8'), PosixPath('B8A'), PosixPath('B10')]
    """
    parts = re.split(r"(\d+)", path.stem.lower())
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts if part]


def examples_below(folder: Path, endings: tuple[str, ...], is_one: Callable[[Path], bool]) -> Iterator[Path]:
    """Files of these endings, and folders that are one example, as a series of DICOM slices or the frames of a clip.

    Hidden ones are left out, and links to folders are not entered.
    """
    entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    yield from (entry for entry in entries if entry.is_file() and entry.name.lower().endswith(endings))
    if is_one(folder):
        yield folder
    for entry in entries:
        if entry.is_dir() and not entry.is_symlink():
            yield from examples_below(entry, endings, is_one)


def find_examples(paths: Sequence[Path], below: Callable[[Path], Iterator[Path]], what: str, read: str) -> list[Path]:
    """The files as they are, and what is `below` the folders; `read` says what was looked for."""
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise ValueError(f"{path} is neither a file nor a folder")
        found += [path] if path.is_file() else sorted(below(path))
    if not found:
        raise ValueError(f"there are no {what} in {', '.join(map(str, paths))}; looked for {read}")
    return found


class Walk(NamedTuple):
    """What lies below a folder, by the paths that lead there."""

    files: dict[str, str]  # the real path of each; files reached without links first
    special: list[str]  # pipes, sockets and devices, which are not to be read

    def once(self) -> dict[str, str]:
        """The files, each by a single path."""
        by_real = {real: path for path, real in reversed(self.files.items())}
        return {path: real for real, path in by_real.items()}


def walk_images(folder: str | Path) -> Walk:
    """The image files below `folder`, hidden ones left out; linked folders are entered, and each only once."""
    files: dict[str, str] = {}  # strings, not Paths: there may be millions
    linked_files: dict[str, str] = {}
    special: list[str] = []
    entered: set[str] = set()
    folders, linked_folders = [os.fspath(folder)], list[str]()
    while folders or linked_folders:
        place = folders.pop() if folders else linked_folders.pop(0)
        real = os.path.realpath(place)
        if real in entered:
            continue
        entered.add(real)
        with os.scandir(place) as entries:
            visible = sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda e: e.name)
        for entry in visible:
            is_link = entry.is_symlink()
            if os.path.isdir(entry.path) if is_link else entry.is_dir():
                (linked_folders if is_link else folders).append(entry.path)
            elif os.path.splitext(entry.name)[1].lower() not in EXTENSIONS:
                continue
            elif not entry.is_file(follow_symlinks=False) and is_special(entry.path):
                special.append(entry.path)
            elif is_link:
                linked_files[entry.path] = os.path.realpath(entry.path)
            else:
                files[entry.path] = os.path.join(real, entry.name)
    return Walk(files | linked_files, special)
