"""`runs/<name>/`: everything a run leaves behind, in one folder that one process at a time may write.

config.yaml (a recipe), environment.json, data.json (which images), metrics.csv, gradients.csv (if asked for),
tensorboard/, checkpoints/ (the complete state), best/ and last/ (models for `from_pretrained`), result.json.
"""

from __future__ import annotations

import csv
import io
import os
import platform
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path, PureWindowsPath
from typing import IO, Annotated, Any

import torch
from annotated_types import MinLen
from typing_extensions import NotRequired, TypedDict

import tcpvit
from tcpvit.data.image_set import same_images
from tcpvit.errors import Resumable
from tcpvit.files import (
    TEMPORARY,
    open_unlinked,
    refuse_links,
    source_commit,
    write_atomically,
    write_json,
)
from tcpvit.layers.kernels.build import kernels_enabled
from tcpvit.overrides import flat
from tcpvit.progress import Row
from tcpvit.training.recipe import Recipe, load_recipe
from tcpvit.validation import Count, Natural, NonNegative, Text, read_checked

CONFIG = "config.yaml"
DISTILLATION = "distillation.json"  # what the recipe of a distilled model does not hold, such as its teacher
FILES = (CONFIG, "environment.json", "data.json", "metrics.csv", "gradients.csv", "result.json", DISTILLATION)
FOLDERS = ("checkpoints", "best", "last", "tensorboard", "figures")
LOCK = ".lock"
FREE = ("data.root", "data.workers", "data.eval_batch_size")  # keys of a recipe that change no step
MAY_DIFFER = (*FREE, "device")  # what a run may have been trained with and still be the same
ADVICE = "replace it with --overwrite, or choose another --name"
SAME_BITS = ("tcpvit", "torch", "device", "processes", "threads", "kernels")  # of a session: what rounding depends on


class ResultFile(TypedDict):
    """What others read of result.json."""

    recipe: Recipe
    parameters: Natural
    metric: Text
    test: dict[Text, Any]
    seconds: NonNegative
    notes: list[Text]


class Session(TypedDict):
    """What others read of an entry of environment.json."""

    from_step: Natural
    command: Annotated[list[Text], MinLen(1)]
    commit: Text | None
    torch: Text
    threads: Count


class PartFile(TypedDict):
    """A part of a set in data.json."""

    source: Text
    indices: list[int]
    names: NotRequired[Text]


FORMATS: dict[str, Any] = {
    "result.json": ResultFile,
    "environment.json": Annotated[list[Session], MinLen(1)],
    "data.json": dict[Text, PartFile],
    DISTILLATION: dict[Text, Any],
}


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
        """Whether the folder holds a run."""
        return (self.path / CONFIG).is_file()

    def check_free(self, overwrite: bool) -> None:
        """Raise if there is a run already, unless `overwrite`."""
        self.check_links()
        if self.exists and not overwrite:
            raise ValueError(
                f"{self} holds a run already; resume it with `tcpvit train --resume {self}`, replace it with "
                f"--overwrite, or choose another --name"
            )

    def check_links(self) -> None:
        """The folder may be a link, perhaps to a larger disk; a part of it may not: the run would write elsewhere."""
        refuse_links(self.path, (*FILES, *FOLDERS, LOCK))

    def begin(self, recipe: Recipe, *, overwrite: bool, distillation: Mapping[str, Any] | None = None) -> None:
        """Prepare the folder for a new run; config.yaml, which makes it one, is written last."""
        self.check_free(overwrite)
        if self.exists:
            self._clear()
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        if distillation is not None:
            write_json(self.path / DISTILLATION, distillation)
        self.write_recipe(recipe)

    def recipe(self) -> Recipe:
        """The recipe of the run."""
        if not self.exists:
            raise ValueError(f"{self} holds no run (it has no {CONFIG}); start one with `tcpvit train`")
        return load_recipe(self.path / CONFIG)

    def recipe_to_resume(self) -> Recipe:
        """The recipe of a run that may be written."""
        self.check_links()
        return self.recipe()

    def write_recipe(self, recipe: Recipe) -> None:
        """Write config.yaml, which is itself a recipe."""
        self.write(CONFIG, recipe.to_yaml())

    def write(self, name: str, text: str) -> None:
        """Write a text file atomically."""
        write_atomically(self.path / name, text.encode())

    def read_json(self, name: str) -> Any:
        """The content of a JSON file of the run, which is of the format that belongs to its name."""
        return read_checked(self.path / name, FORMATS[name])

    def check_data(self, indices: dict[str, Any]) -> None:
        """Write data.json; a resumed run must find the same images: others would mix training and test sets."""
        path = self.path / "data.json"
        if path.is_file() and not same_images(self.read_json("data.json"), indices):
            raise ValueError(
                f"the images are not those that {self} started with (its data.json): some were added, removed or "
                f"renamed, so the validation and test sets would change; restore the images, or start a new run"
            )
        write_json(path, indices)

    @property
    def has_metrics(self) -> bool:
        """Whether an epoch was completed."""
        return (self.path / "metrics.csv").is_file()

    def read_metrics(self) -> list[Row]:
        """A row for each epoch, without the columns that it leaves empty."""
        rows = csv.DictReader((self.path / "metrics.csv").read_text(encoding="utf-8").splitlines())
        return [{name: float(text) for name, text in row.items() if text} for row in rows]

    def write_rows(self, name: str, rows: list[Row]) -> None:
        """Write a CSV file anew from all rows, so that a resumed run has every epoch once."""
        columns = list(dict.fromkeys(column for row in rows for column in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        self.write(name, text.getvalue())

    def add_session(self, device: torch.device, step: int, processes: int = 1) -> list[str]:
        """Add this start or resumption to environment.json; what changes the last bits since the session before."""
        path = self.path / "environment.json"
        sessions = self.read_json("environment.json") if path.is_file() else []
        session = {"from_step": step, "processes": processes, **environment(device)}
        write_json(path, [*sessions, session])
        before = sessions[-1] if sessions else {}
        changed = [name for name in SAME_BITS if name in before and before[name] != session[name]]
        return [f"{name} {_plain(before[name])} before, {_plain(session[name])} now" for name in changed]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for this process; the lock ends with the process, however that ends.

        If the block is refused before anything is trained, what it made is removed again.
        """
        missing = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        unlocked = not (self.path / LOCK).exists()
        self.path.mkdir(parents=True, exist_ok=True)
        self.check_links()
        with open_unlinked(self.path / LOCK) as file:
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
            self._remove_temporary_files()
            try:
                yield
            except Exception as error:
                if missing and (not self.exists or self._refused(error)):
                    self._clear()
                if unlocked and not self.exists:
                    self._remove_lock(missing)
                raise

    def _remove_temporary_files(self) -> None:
        """Those that a killed process left."""
        for folder in (self.path, *(self.path / name for name in FOLDERS)):
            for path in folder.glob(f".*{TEMPORARY}"):
                path.unlink(missing_ok=True)

    def _clear(self) -> None:
        """Remove what a run writes, and nothing else; config.yaml last, so that it is a run until nothing is left."""
        for name in FOLDERS:
            shutil.rmtree(self.path / name, ignore_errors=True)
        for name in reversed(FILES):
            (self.path / name).unlink(missing_ok=True)

    def _refused(self, error: Exception) -> bool:
        """Whether the error says that there is nothing to resume."""
        trained = self.has_metrics or any(self.checkpoints.glob("*"))
        return isinstance(error, ValueError) and not isinstance(error, Resumable) and not trained

    def _remove_lock(self, folders: Iterable[Path]) -> None:
        """Remove the lock, and these folders as far as they are empty then."""
        with suppress(OSError):
            (self.path / LOCK).unlink(missing_ok=True)
            for folder in folders:
                folder.rmdir()


def check_same(
    recipe: Recipe,
    folder: str | Path,
    *,
    was: Mapping[str, Any] | None = None,
    now: Mapping[str, Any] | None = None,
    advice: str = ADVICE,
) -> None:
    """A run of another recipe in `folder` is an error that names the difference; `was` and `now` hold what else counts.

    What they hold takes the place of keys of the recipes, as {"model": None} for a model that no recipe describes.
    """
    run = RunFolder(folder)
    if not run.exists:
        return
    before, after = flat({**run.recipe().to_dict(), **(was or {})}), flat({**recipe.to_dict(), **(now or {})})
    for key in {**after, **before}:
        if before.get(key) != after.get(key) and key not in MAY_DIFFER:
            raise ValueError(f"{run} was trained with {key}={before.get(key)}, now it is {after.get(key)}; {advice}")


class TensorBoard:
    """Writes each epoch's numbers as scalars, where TensorBoard is installed."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._writer: Any = None

    def add(self, row: Row) -> None:
        """Write the numbers of an epoch."""
        epoch = int(row["epoch"])
        if self._writer is None:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                return
            # What an interrupted session wrote from this epoch on is hidden, not shown twice.
            self._writer = SummaryWriter(str(self.folder), purge_step=epoch)
        for name, value in row.items():
            if name not in ("epoch", "step"):
                self._writer.add_scalar(name.replace("_", "/", 1), value, epoch)
        self._writer.flush()

    def close(self) -> None:
        """Write what is left."""
        if self._writer is not None:
            self._writer.close()


def folder_of(runs: Path, name: str) -> Path:
    """The folder of a run or a comparison that the user has named; a name cannot lead outside of `runs`.

    >>> folder_of(Path("runs"), "short").as_posix()
    'runs/short'
    """
    if PureWindowsPath(name).name != name or name in ("", "..") or not name.isprintable():  # / and \ both
        raise ValueError(
            f'--name is the name of one folder in {runs}, without separators, ".." or control characters, got '
            f"{name!r}; choose another, or another place with --runs"
        )
    return runs / name


def environment(device: torch.device) -> dict[str, Any]:
    """What a result may depend on besides its recipe."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "tcpvit": tcpvit.__version__,
        "commit": source_commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "device": f"{device} ({name})",
        "threads": torch.get_num_threads(),
        "kernels": kernels_enabled(),
    }


def _plain(value: Any) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def _lock(file: IO[str]) -> None:
    """An exclusive lock that the system drops when the process ends; BlockingIOError if another has it."""
    if os.name == "nt":
        import msvcrt

        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    else:
        import fcntl

        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # not flock: workers of a killed run would inherit that
