"""Files written completely or not at all, and never through links; JSON and the commit of the source."""

from __future__ import annotations

import errno
import json
import os
import platform
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from itertools import count
from pathlib import Path
from typing import IO, Any, TypeVar

T = TypeVar("T")

TEMPORARY = ".tmp"
DAY = 24 * 3600.0
LARGEST = 200_000_000  # bytes of a file of text that is read; data.json of a million images has 8 million
DEEPEST = 50  # lists and mappings in each other
ADVICE = "put the file or folder itself there, or remove the link"


class WriteError(OSError):
    """A file could not be written; what stood there before is untouched."""


def write_atomically(path: Path, content: bytes) -> None:
    """Replace `path` by `content` completely or not at all, also when the machine stops: write, flush, rename."""
    temporary = path.with_name(f".{path.name}{TEMPORARY}")
    try:
        temporary.unlink(missing_ok=True)
        with temporary.open("xb") as file:  # a new file: a link that somebody put there is not written through
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise WriteError(error.errno, f"{path} could not be written ({error.strerror})") from error
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make a rename survive a power cut, where the system can."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file completely or not at all."""
    write_atomically(path, (json.dumps(content, indent=2) + "\n").encode())


def read_json(path: Path) -> Any:
    """The content of a JSON file; a damaged one is an error that names it."""
    text = read_text(path)
    try:
        content = json.loads(text)
        check_depth(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} holds no JSON ({error}); remove it, or restore it from a copy") from error
    return content


def read_text(path: Path, limit: int = LARGEST) -> str:
    """A text file of at most `limit` bytes."""
    if not path.is_file():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    if (size := path.stat().st_size) > limit:
        raise ValueError(f"{path} has {size:,} bytes, and no file of its kind more than {limit:,}; it is another file")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text in UTF-8 ({error}); restore it from a copy") from error


def check_depth(content: Any, depth: int = DEEPEST) -> None:
    """Lists and mappings lie in each other at most `depth` deep: nothing that we write does."""
    if depth < 0:
        raise ValueError(f"lists or keys lie in each other more than {DEEPEST} deep")
    inside = content.values() if isinstance(content, dict) else content if isinstance(content, list) else ()
    for value in inside:
        if isinstance(value, dict | list):
            check_depth(value, depth - 1)


@contextmanager
def temporary_folder(parent: Path, name: str) -> Iterator[Path]:
    """A folder in `parent` that is removed at the end; first those that killed processes have left are."""
    own = f"{name}-{platform.node()}-"
    for left in parent.glob(f"{name}-*"):
        process = left.name.removeprefix(own).partition("-")[0] if left.name.startswith(own) else ""
        if (process.isdecimal() and not _is_running(int(process))) or time.time() - left.stat().st_mtime > DAY:
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f"{own}{os.getpid()}-", dir=parent) as folder:
        yield Path(folder)


def _is_running(process: int) -> bool:
    if os.name == "nt":  # where a signal would end it
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # another user's
    return True


def refuse_links(folder: Path, names: Iterable[str]) -> None:
    """Raise if one of these parts of `folder`, or anything below them, is a link; `folder` itself may be one."""
    for name in names:
        for path in _with_all_below(folder / name):
            if path.is_symlink():
                raise ValueError(f"{path} is a link to {os.readlink(path)}, which is not written through; {ADVICE}")


def _with_all_below(path: Path) -> Iterator[Path]:
    yield path
    for place, folders, files in os.walk(path):  # which does not enter links below `path`
        yield from (Path(place, name) for name in (*folders, *files))


def check_writable(*places: str | Path) -> None:
    """Raise unless files can be written at all of these places: before the work whose results they are to hold."""
    for place in map(Path, places):
        if place.is_dir():
            raise ValueError(f"{place} is a folder; name a file in it")
        above = next(parent for parent in place.absolute().parents if parent.exists() or parent.is_symlink())
        if not above.is_dir():
            raise ValueError(f"{place} cannot be written: {above} is no folder; name another place")
        try:
            with tempfile.TemporaryFile(dir=above):
                pass
        except OSError as error:
            raise WriteError(
                error.errno, f"{place} cannot be written, as nothing can be in {above} ({error.strerror})"
            ) from error


def keep_apart(folders: Iterable[str | Path], searched: Iterable[str | Path]) -> None:
    """Raise if we would write into a folder that is searched: the next call would take our files for the user's."""
    places = {os.path.realpath(place): place for place in searched if os.path.isdir(place)}
    for folder in folders:
        if (place := places.get(os.path.realpath(folder))) is not None:
            raise ValueError(f"what is written into {place} would be read as the next input; name another folder")


def keep_inputs(places: Iterable[str | Path], inputs: Iterable[str | Path]) -> None:
    """Raise if one of the places to write to is a file that is read here, by whatever name it is called."""
    read = {_identity(Path(path)): path for path in inputs}
    for place in places:
        if (found := read.get(_identity(Path(place)))) is not None:
            raise ValueError(f"{place} would be written over {found}, which is read here; name another place")


def _identity(path: Path) -> tuple[int, int] | str:
    try:
        found = path.stat()
    except OSError:
        return os.path.realpath(path)
    return found.st_dev, found.st_ino


def write_inside(folder: Path, name: str | Path, content: bytes) -> Path:
    """Write folder/name atomically; a link in its place is replaced, a parent that leads outside is an error."""
    path = folder / name
    if not path.parent.resolve().is_relative_to(folder.resolve()):
        raise ValueError(
            f"{path.parent} leads through a link to {path.parent.resolve()}, outside of {folder}; {ADVICE}"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)
    return path


def below_common(files: Iterable[str | Path]) -> list[Path]:
    """Where each file lies below the folder that all of them share, as they are named, also where they are links.

    >>> below_common(["scans/day1/a.png", "scans/day2/a.png"])
    [PosixPath('day1/a.png'), PosixPath('day2/a.png')]
    """
    places = [Path(os.path.abspath(file)) for file in files]
    common = os.path.commonpath([place.parent for place in places])
    return [place.relative_to(common) for place in places]


def names_below_common(files: Iterable[str | Path], ending: str) -> list[Path]:
    """A name for each file with this ending, in the folders below their common one; no two are the same.

    >>> names_below_common(["pets/cat.jpg", "pets/cat.png"], ".png")
    [PosixPath('cat.png'), PosixPath('cat.png.png')]
    """

    def name(place: Path, number: int) -> str:
        return str(place.with_suffix(ending) if number == 1 else place.with_name(place.name + ending * (number - 1)))

    return list(map(Path, free_names(below_common(files), name)))


def free_names(items: Iterable[T], name: Callable[[T, int], str]) -> list[str]:
    """A name for each item: the first of name(item, 1), name(item, 2), ... that no item before it has.

    Upper and lower case are taken for the same, as some file systems do.

    >>> free_names(["cat.png", "Cat.jpg"], lambda file, number: f"{file[:3]}-{number}" if number > 1 else file[:3])
    ['cat', 'Cat-2']
    """
    names: dict[str, str] = {}
    for item in items:
        free = next(found for number in count(1) if (found := name(item, number)).lower() not in names)
        names[free.lower()] = free
    return list(names.values())


def open_unlinked(path: Path) -> IO[str]:
    """Open a file for reading and appending, created if need be: never through a link or another name of a file."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ValueError(f"{path} is a link, which is not followed; remove it") from error
        raise
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        os.close(descriptor)
        raise ValueError(f"{path} is not a file of its own (a pipe, a device, or another name of a file); remove it")
    return os.fdopen(descriptor, "a+")


def expand_user(path: str | Path) -> Path:
    """The path with ~ replaced by the home folder."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ValueError(f"{path} begins with ~, and this user has no home folder; write the whole path") from error


@cache
def source_commit() -> str | None:
    """The commit of the source this runs from, `-dirty` if changed; None for an installed package."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
