"""`runs/<name>/`: everything a run leaves behind, in one folder that one process at a time may write.

config.yaml (a recipe), environment.json, data.json (which pictures), metrics.csv, gradients.csv (if asked for),
tensorboard/, checkpoints/ (the whole state), best/ and last/ (models for `from_pretrained`), result.json.
"""

from __future__ import annotations

import csv
import io
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path, PureWindowsPath
from typing import IO, Any

import torch

import tcpvit
from tcpvit.training.checkpoint import TEMPORARY, write_atomically
from tcpvit.training.links import open_own, refuse_links
from tcpvit.training.recipe import Recipe, load_recipe
from tcpvit.training.state import Row

CONFIG = "config.yaml"
FILES = (CONFIG, "environment.json", "data.json", "metrics.csv", "gradients.csv", "result.json")
FOLDERS = ("checkpoints", "best", "last", "tensorboard", "figures")
LOCK = ".lock"


class Busy(ValueError):
    """Another process is writing the run."""


class RunFolder:
    """The folder of one run."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"

    def __str__(self) -> str:
        return str(self.path)

    @property
    def exists(self) -> bool:
        """Whether a run was begun here."""
        return (self.path / CONFIG).is_file()

    def check_free(self, overwrite: bool) -> None:
        """A run that is there already is kept unless `overwrite`."""
        self.check_links()
        if self.exists and not overwrite:
            raise ValueError(
                f"{self} holds a run already; go on with it by `tcpvit train --resume {self}`, replace it with "
                f"--overwrite, or choose another --name"
            )

    def check_links(self) -> None:
        """The folder may be a link, to a larger disk perhaps; what a run writes in it may not: it would leave it."""
        refuse_links(self.path, (*FILES, *FOLDERS, LOCK))

    def begin(self, recipe: Recipe, *, overwrite: bool) -> None:
        """Prepare the folder for a new run."""
        self.check_free(overwrite)
        if self.exists:
            self._clear()
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        self.write_recipe(recipe)

    def recipe(self) -> Recipe:
        """The recipe of the run."""
        if not self.exists:
            raise ValueError(f"{self} holds no run (it has no {CONFIG}); begin one with `tcpvit train`")
        return load_recipe(self.path / CONFIG)

    def recipe_to_go_on(self) -> Recipe:
        """The recipe of the run, which may be written."""
        self.check_links()
        return self.recipe()

    def write_recipe(self, recipe: Recipe) -> None:
        """Write config.yaml, which is itself a recipe."""
        self.write(CONFIG, recipe.to_yaml())

    def write(self, name: str, text: str) -> None:
        """Write a file, whole or not at all."""
        write_atomically(self.path / name, text.encode())

    def write_json(self, name: str, content: Any) -> None:
        """Write a JSON file, whole or not at all."""
        self.write(name, json.dumps(content, indent=2) + "\n")

    def read_json(self, name: str) -> Any:
        """What `write_json` wrote."""
        return read_json(self.path / name)

    def keep_data(self, indices: dict[str, Any]) -> None:
        """Write data.json, which a run that goes on must find again: other pictures would mix training and test."""
        if (self.path / "data.json").is_file() and self.read_json("data.json") != indices:
            raise ValueError(
                f"the pictures are not those that {self} began with (its data.json): some were added or removed, so "
                f"that the held-out part is another one; bring them back, or begin a new run"
            )
        self.write_json("data.json", indices)

    def read_metrics(self) -> list[Row]:
        """A row for each epoch, without the columns that it leaves empty."""
        rows = csv.DictReader((self.path / "metrics.csv").read_text(encoding="utf-8").splitlines())
        return [{name: float(text) for name, text in row.items() if text} for row in rows]

    def write_metrics(self, history: list[Row]) -> None:
        """Write metrics.csv anew from the history, so that a resumed run has every epoch once."""
        self.write_rows("metrics.csv", history)

    def write_rows(self, name: str, rows: list[Row]) -> None:
        """Write a CSV file, whole or not at all."""
        columns = list(dict.fromkeys(column for row in rows for column in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        self.write(name, text.getvalue())

    def note_session(self, device: torch.device, step: int, processes: int = 1) -> None:
        """Add this start or resumption to environment.json."""
        path = self.path / "environment.json"
        sessions = read_json(path) if path.is_file() else []
        self.write_json(path.name, [*sessions, {"from_step": step, "processes": processes, **environment(device)}])

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for this process; the lock goes with the process, however that ends."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.check_links()
        with open_own(self.path / LOCK) as file:
            try:
                _lock(file)
            except (BlockingIOError, PermissionError):
                file.seek(0)
                owner = file.read().strip()
                raise Busy(
                    f"{self} is being written by another process{f' ({owner})' if owner else ''}; wait for it, stop "
                    f"it, or choose another --name"
                ) from None
            file.truncate(0)
            file.write(f"process {os.getpid()}")
            file.flush()
            self._remove_leftovers()
            yield

    def _remove_leftovers(self) -> None:
        """What a killed writer left under a temporary name."""
        for folder in (self.path, *(self.path / name for name in FOLDERS)):
            for path in folder.glob(f".*{TEMPORARY}"):
                path.unlink(missing_ok=True)

    def _clear(self) -> None:
        """Remove what a run writes, and nothing else; the config last, so that it is a run until nothing is left."""
        for name in FOLDERS:
            shutil.rmtree(self.path / name, ignore_errors=True)
        for name in reversed(FILES):
            (self.path / name).unlink(missing_ok=True)


def folder_of(runs: Path, name: str) -> Path:
    """The folder of a run or a comparison that the user has named; a name leads nowhere else.

    >>> folder_of(Path("runs"), "short").as_posix()
    'runs/short'
    """
    if PureWindowsPath(name).name != name or name in ("", "..") or not name.isprintable():  # / and \ both
        raise ValueError(
            f'--name is the name of one folder in {runs}, without separators, ".." or control characters, got '
            f"{name!r}; choose another, or another place with --runs"
        )
    return runs / name


def read_json(path: Path) -> Any:
    """The content of a JSON file; one that is damaged is an error that names it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} holds no JSON ({error}); remove it, or bring back what it was") from error


def environment(device: torch.device) -> dict[str, Any]:
    """What a result may depend on besides its recipe."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "tcpvit": tcpvit.__version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "device": f"{device} ({name})",
        "threads": torch.get_num_threads(),
    }


def _commit() -> str | None:
    """The commit of the source this runs from, `-dirty` if changed; None for an installed package."""
    root = Path(tcpvit.__file__).parents[2]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _lock(file: IO[str]) -> None:
    """An exclusive lock that the system drops when the process ends; BlockingIOError if another has it."""
    if os.name == "nt":
        import msvcrt

        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    else:
        import fcntl

        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # not flock: workers of a killed run would inherit that
