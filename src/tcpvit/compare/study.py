"""A study: planned training runs, each of which leaves one JSON record; tables and figures come from the records.

A run is a recipe with changes and a seed. It is trained into its own folder by the training engine, so that a study
that was interrupted resumes where it stopped, and several processes may work on one study: each run has a lock.
"""

from __future__ import annotations

import fnmatch
import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tcpvit.compare.compare import check_same, train_once
from tcpvit.data.registry import SOURCES, find_dataset
from tcpvit.errors import did_you_mean
from tcpvit.figures.style import save_figure
from tcpvit.files import read_json, write_atomically
from tcpvit.progress import Progress
from tcpvit.tables import Table, render
from tcpvit.training import Recipe, load_recipe
from tcpvit.training.folder import Busy, RunFolder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Record = dict[str, Any]  # what a JSON file of results holds
OF_EVERY_RECORD = ("key", "group", "name", "model", "parameters", "epochs", "seed", "recipe", "changes", "command")
PLACES = ("--data-root", "--out", "--runs", "--results", "--pages")  # options that name folders of the machine


@dataclass(frozen=True)
class Planned:
    """A run that the study asks for: `changes` are KEY=VALUE words on the recipe."""

    group: str  # the part of the study
    name: str  # of the model within it
    recipe: str
    changes: tuple[str, ...] = ()
    seed: int = 0

    @property
    def key(self) -> str:
        """The name of its folder and of its JSON file.

        >>> Planned("gap", "std", "cifar-classification").key
        'gap-std-0'
        """
        return f"{self.group}-{self.name}-{self.seed}"

    def about(self, epochs: int | None = None) -> tuple[str, str, int | None]:
        """Model, data and epochs, as the plan shows them."""
        recipe = self.resolved(epochs)
        return recipe.model.name, recipe.data.name, recipe.schedule.epochs

    def resolved(self, epochs: int | None = None, root: Path | None = None) -> Recipe:
        """The whole recipe."""
        words = [*self.changes, f"seed={self.seed}"]
        words += [f"schedule.epochs={epochs}"] if epochs is not None else []
        words += [f"data.root={json.dumps(str(root))}"] if root is not None else []
        return load_recipe(self.recipe, words)


@dataclass(frozen=True)
class Finished:
    """What a run that is complete left in its folder."""

    folder: Path
    result: dict[str, Any]
    history: list[dict[str, float]]  # a row for each epoch
    sessions: list[dict[str, Any]]  # where, by which command and from which commit each of them ran
    images: dict[str, int]  # how many images each part has

    @classmethod
    def read(cls, folder: Path) -> Finished:
        """From the files of the run."""
        run = RunFolder(folder)
        result, sessions, parts = (run.read_json(f"{name}.json") for name in ("result", "environment", "data"))
        images = {part: len(about["indices"]) for part, about in parts.items()}
        return cls(folder, result, run.read_metrics(), sessions, images)


@dataclass(frozen=True)
class Study:
    """`planned`, the most important runs first; `measured` turns a finished run into the numbers of its task."""

    name: str
    planned: Callable[[], Sequence[Planned]]
    measured: Callable[[Finished], Record]
    write: Callable[[Places], list[Path]]  # tables and figures from the records
    train: Callable[[Planned, Recipe, Path, Progress], None] | None = None  # None: by the training engine
    work: Callable[..., list[Planned]] | None = None  # None: the function `work`, for runs of the training engine


@dataclass(frozen=True)
class Places:
    """Where a study keeps its runs and records, and where its tables and figures go."""

    runs: Path
    results: Path
    pages: Path

    def records(self) -> list[Record]:
        """All of them, in the order of their names."""
        return [_read_record(file) for file in sorted(self.results.glob("*.json"))]

    def write(self, name: str, table: Table, figures: Mapping[str, Figure]) -> list[Path]:
        """Write the figures, and a page NAME.md with the table that shows them."""
        files = [file for stem, figure in figures.items() for file in save_figure(figure, self.pages / stem)]
        parts = [render([table], "markdown"), *(f"![{stem}]({stem}.svg)" for stem in figures)]
        page = self.pages / f"{name}.md"
        write_atomically(page, ("\n\n".join(parts) + "\n").encode())
        return [page, *files]


def _read_record(file: Path) -> Record:
    """A record of a run; another JSON file among the records is an error that names it."""
    content = read_json(file)
    if lacking := [name for name in OF_EVERY_RECORD if not isinstance(content, dict) or name not in content]:
        raise ValueError(f"{file} is no record of a run: it lacks {', '.join(lacking)}; move it elsewhere")
    return dict(content)


def choose(planned: Iterable[Planned], only: Sequence[str], seeds: int | None) -> list[Planned]:
    """The runs whose key matches one of the wildcards; `seeds` takes the place of the plan's own seeds.

    >>> plan = [Planned("gap", "std", "demo"), Planned("gap", "tcp", "demo"), Planned("gap", "tcp", "demo", seed=1)]
    >>> [run.key for run in choose(plan, ["gap-std*"], seeds=2)]
    ['gap-std-0', 'gap-std-1']
    """
    plan = list(planned)
    if seeds is not None:
        first = dict.fromkeys(replace(run, seed=0) for run in plan)
        plan = [replace(run, seed=seed) for run in first for seed in range(seeds)]
    if not only:
        return plan
    for pattern in only:
        if not any(_matches(run, [pattern]) for run in plan):
            raise ValueError(f"no run of this study matches {pattern!r}{_nearest_run(pattern, plan)}")
    return [run for run in plan if _matches(run, only)]


def _nearest_run(pattern: str, plan: Sequence[Planned]) -> str:
    """The nearest part or run, and the parts: a study may have some hundred runs.

    >>> _nearest_run("gapp", [Planned("gap", "std", "demo"), Planned("final", "std", "demo")])
    "; did you mean 'gap'? Its parts: gap, final; `--plan` shows every run"
    """
    parts = list(dict.fromkeys(run.group for run in plan))
    hint, _, _ = did_you_mean(pattern, [*parts, *(run.key for run in plan)]).partition(" Known: ")
    return f"{hint} Its parts: {', '.join(parts)}; `--plan` shows every run"


def _matches(run: Planned, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatch(text, pattern) for pattern in patterns for text in (run.key, run.group))


def work(
    study: Study, plan: Sequence[Planned], places: Places, *, epochs: int | None, root: Path | None, progress: Progress
) -> list[Planned]:
    """Train what has no record yet, and write each record as its run ends; returns what could not be run here."""
    missing: list[Planned] = []
    absent: dict[str, str] = {}  # sets that are not here, and where to get them
    for run in plan:
        folder, file = places.runs / run.key, places.results / f"{run.key}.json"
        recipe = run.resolved(epochs, root)
        if file.is_file() and _same(_read_record(file), run, recipe):
            continue
        check_same(recipe, folder)
        if _data_is_absent(recipe, absent, progress):
            missing.append(run)
            continue
        progress.message(f"{run.key}: {recipe.model.name}, {recipe.schedule.epochs} epochs")
        try:
            if study.train:
                study.train(run, recipe, folder, progress)
            else:
                train_once(recipe, folder, progress=progress)
        except Busy as busy:
            progress.message(f"{busy}; on to the next one")
            continue
        record(study, run, folder, file)
    return missing


def record(study: Study, run: Planned, folder: Path, file: Path) -> Record:
    """Write the JSON file of a run that is complete."""
    finished = Finished.read(folder)
    content = {"study": study.name, **_common(run, finished), **study.measured(finished)}
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, (json.dumps(content, indent=1) + "\n").encode())
    return content


def _common(run: Planned, finished: Finished) -> Record:
    result, (first, *later) = finished.result, finished.sessions
    recipe = result["recipe"]
    return {
        "key": run.key,
        "group": run.group,
        "name": run.name,
        "model": recipe["model"]["name"],
        "options": recipe["model"]["options"],
        "parameters": result["parameters"],
        "dataset": recipe["data"]["name"],
        "train_images": finished.images["train"],
        "test_images": finished.images.get("test", finished.images["val"]),
        "epochs": recipe["schedule"]["epochs"],
        "seed": recipe["seed"],
        "recipe": run.recipe,
        "changes": list(run.changes),
        "lr": recipe["optimizer"]["lr"],
        "precision": recipe["precision"],
        "seconds": result["seconds"],
        "cpu_seconds": result.get("cpu_seconds"),
        "threads": first["threads"],
        "torch": first["torch"],
        "command": shlex.join([*_program(first["command"][0]).split(), *without_places(first["command"][1:])]),
        "commit": first["commit"],
        "resumed": [{"from_step": session["from_step"], "commit": session["commit"]} for session in later],
    }


def _program(name: str) -> str:
    """How the program of a command is called: `python -m tcpvit` and the like are the same as `tcpvit`.

    >>> _program("__main__.py"), _program("python -m experiments")
    ('tcpvit', 'python -m experiments')
    """
    return name if name.startswith("python -m ") else "tcpvit"


def without_places(words: Sequence[str]) -> list[str]:
    """The words of a command without the folders of the machine that it ran on: they are nobody else's business.

    >>> without_places(["train", "--runs", "/mnt/runs", "--data-root=/mnt/sets", "--set", "data.root=/mnt", "--quiet"])
    ['train', '--quiet']
    """
    kept: list[str] = []
    for word in words:
        before = kept[-1] if kept else ""
        if before in PLACES or (before == "--set" and word.startswith("data.root=")):
            kept.pop()  # the option whose folder this is
        elif word in PLACES or word.partition("=")[0] not in PLACES:
            kept.append(word)
    return kept


def _same(found: Record, run: Planned, recipe: Recipe) -> bool:
    """A record of another recipe under the same name is an error, not a result."""
    asked = {"model": recipe.model.name, "changes": list(run.changes), "epochs": recipe.schedule.epochs}
    asked |= {"recipe": run.recipe, "seed": run.seed}
    for name, value in asked.items():
        if found.get(name) != value:
            raise ValueError(
                f"the record of {run.key} has {name}={found.get(name)}, the plan {value}; remove it to run that again"
            )
    return True


def _data_is_absent(recipe: Recipe, absent: dict[str, str], progress: Progress) -> bool:
    """Whether the set is not here; said once for each set."""
    name = recipe.data.name
    if name not in absent:
        try:
            if name in SOURCES:
                find_dataset(name, recipe.data.root)
            absent[name] = ""
        except FileNotFoundError as error:
            absent[name] = str(error)
            progress.message(absent[name])
    return bool(absent[name])
