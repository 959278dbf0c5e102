"""Folders of images and their files: links may lead elsewhere, or back to where they came from."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tcpvit.data.decode import EXTENSIONS, is_special
from tcpvit.errors import printable


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


def note_others(folder: Path, below: Callable[[Path], Iterator[Path]]) -> tuple[str, ...]:
    """A line about the files of a folder that are neither an example nor part of one, where there are any."""
    examples, others = set(below(folder)), list[Path]()
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        visible = (Path(place, name) for name in sorted(names) if not name.startswith("."))
        others += [path for path in visible if path not in examples and examples.isdisjoint(path.parents)]
    if not others:
        return ()
    named = ", ".join(str(path.relative_to(folder)) for path in others[:3])
    more = f" and {len(others) - 3:,} more" if len(others) > 3 else ""
    return (printable(f"{len(others):,} other files of {folder} are left out: {named}{more}"),)


def find_examples(
    paths: Sequence[Path],
    below: Callable[[Path], Iterable[Path]],
    what: str,
    read: str,
    leave_out: Sequence[Path] = (),
) -> list[Path]:
    """The files as they are named, and what is `below` the folders, in alphabetical order.

    Folders inside of them that are to be left out are those that we write into; `read` says what was looked for.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            ours = [folder.resolve() for folder in leave_out if path.resolve() in folder.resolve().parents]
            found += [each for each in sorted(below(path)) if not any(map(each.resolve().is_relative_to, ours))]
        elif path.is_file():
            found.append(path)
        else:
            raise ValueError(f"{path} is neither a file nor a folder")
    if not found:
        raise ValueError(f"there are no {what} in {', '.join(map(str, paths))}; looked for {read}")
    return found


def find_images(paths: Sequence[Path], leave_out: Sequence[Path] = ()) -> list[Path]:
    """Image files; of a folder each real one once, and pipes, sockets and devices, to be named as unreadable."""

    def below(folder: Path) -> Iterator[Path]:
        walk = walk_images(folder)
        return map(Path, [*walk.once(), *walk.special])

    return find_examples(paths, below, "images", ", ".join(sorted(EXTENSIONS)), leave_out)


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
