"""The hyperspectral study: Indian Pines, random 10 % and disjoint fields; ours, dense ViTs and what people would take.

Parts, the most important first: `levers` (what may help between fields, on validation fields), `choose-random` and
`choose-disjoint` (each model's settings, the same number of trials for all, on validation pixels of the training part),
`random` and `disjoint` (each model with the settings that were chosen, on test pixels), and `ablate` (one change at a
time). No setting was chosen by a test pixel of its own split.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from experiments.hyperspectral.cube import Kind, indian_pines
from experiments.hyperspectral.models import ABLATIONS, AS_W, LEVERS, LEVERS_OF_TEN, MODELS, VARIANTS, trials
from experiments.hyperspectral.pages import write
from experiments.hyperspectral.peers import CLASSICAL
from experiments.hyperspectral.runs import Settings, run
from tcpvit.compare.study import Finished, Places, Planned, Record, Study, without_places
from tcpvit.files import write_atomically
from tcpvit.overrides import nested, parse
from tcpvit.progress import Progress
from tcpvit.training.folder import Busy, RunFolder, source_commit

SEEDS: dict[Kind, range] = {"random": range(5), "disjoint": range(10)}
CHOOSE_SEEDS: dict[Kind, range] = {"random": range(1), "disjoint": range(2)}
ABLATE_SEEDS: dict[Kind, range] = {"random": range(1), "disjoint": range(3)}
LEVER_SEEDS = range(3)
MORE_LEVER_SEEDS = range(10)  # of LEVERS_OF_TEN
RECIPE = "hyperspectral"


@dataclass(frozen=True)
class Fit(Planned):
    """A run on one split: `changes` are its settings, and `chosen` says whose trials decide the rest of them."""

    kind: Kind = "disjoint"
    chosen: str | None = None  # a model

    @property
    def validates(self) -> bool:
        """Whether it is measured on validation pixels."""
        return self.group.startswith(("choose", "levers"))

    def about(self, epochs: int | None = None) -> tuple[str, str, int | None]:
        """Model, data and epochs."""
        settings = nested(parse(self.changes))
        return settings["model"], f"indian-pines, {self.kind}", settings.get("epochs")


def planned() -> list[Planned]:
    """Every run of the study."""
    plan = [
        fit("levers", name, words, seed)
        for name, words in LEVERS.items()
        for seed in (MORE_LEVER_SEEDS if name.partition(".")[2] in LEVERS_OF_TEN else LEVER_SEEDS)
    ]
    for kind, seeds in CHOOSE_SEEDS.items():
        plan += [
            fit(f"choose-{kind}", f"{model}.{i}", (*MODELS[model], *words), seed, kind)
            for model in MODELS
            if model not in AS_W
            for i, words in enumerate(trials(model, kind))
            for seed in seeds
        ]
    for kind, seeds in SEEDS.items():
        plan += [
            fit(kind, model, MODELS[model], seed, kind, "tcp_scene" if model in AS_W else model)
            for seed in seeds
            for model in MODELS
        ]
    plan += [
        fit("disjoint", name, (*MODELS[model], *words), seed, "disjoint", model)
        for seed in SEEDS["disjoint"]
        for name, (model, words) in VARIANTS.items()
    ]
    for kind in SEEDS:
        plan += [
            fit(f"ablate-{kind}", name, (*MODELS["tcp_scene"], *words), seed, kind, "tcp_scene")
            for seed in ABLATE_SEEDS[kind]
            for name, words in ABLATIONS.items()
        ]
    return plan


def fit(
    group: str, name: str, words: Iterable[str], seed: int, kind: Kind = "disjoint", chosen: str | None = None
) -> Planned:
    """A run of this study.

    >>> fit("random", "forest", ("model=forest",), 0, "random", "forest").key
    'random-forest-0'
    """
    return Fit(group, name, RECIPE, tuple(words), seed, kind, chosen)


def chosen(records: Iterable[Record], model: str, kind: Kind) -> tuple[str, ...]:
    """The words of the trial that is best on validation pixels; all trials have to be there."""
    by_trial: dict[str, list[Record]] = {}
    for record in records:
        if record["group"] == f"choose-{kind}":
            by_trial.setdefault(record["name"], []).append(record)
    words = trials(model, kind)
    names = [f"{model}.{i}" for i in range(len(words))]
    if lacking := [name for name in names if len(by_trial.get(name, ())) < len(CHOOSE_SEEDS[kind])]:
        raise LookupError(f"its settings are not chosen yet: run --only 'choose-{kind}-{lacking[0]}*' first")
    best = max(names, key=lambda name: fmean(record["oa"] for record in by_trial[name]))
    return words[names.index(best)]


def work(
    study: Study, plan: Sequence[Planned], places: Places, *, epochs: int | None, root: Path | None, progress: Progress
) -> list[Planned]:
    """Run what has no record yet, and write each record as its run ends; returns what could not be run here."""
    missing: list[Planned] = []
    for planned_run in plan:
        assert isinstance(planned_run, Fit)
        file = places.results / f"{planned_run.key}.json"
        if file.is_file():
            continue
        try:
            words = settled(planned_run, places, epochs)
            with RunFolder(places.runs / planned_run.key).locked():
                progress.message(f"{planned_run.key}: {' '.join(words)}")
                record(planned_run, words, file, root)
        except Busy as busy:
            progress.message(f"{busy}; on to the next one")
        except (LookupError, FileNotFoundError) as problem:
            progress.message(f"{planned_run.key}: {problem}")
            missing.append(planned_run)
    return missing


def settled(planned_run: Fit, places: Places, epochs: int | None) -> tuple[str, ...]:
    """All its settings, the chosen ones before those of the run itself, which may change them."""
    first = () if planned_run.chosen is None else chosen(places.records(), planned_run.chosen, planned_run.kind)
    shorter = epochs is not None and planned_run.about()[0] not in CLASSICAL
    return (*first, *planned_run.changes, *((f"epochs={epochs}",) if shorter else ()))


def record(planned_run: Fit, words: Sequence[str], file: Path, root: Path | None) -> Record:
    """Run it and write its JSON file."""
    settings: Settings = nested(parse(words))
    found = run(indian_pines(root), planned_run.kind, planned_run.seed, settings, validate=planned_run.validates)
    content: dict[str, Any] = {
        "study": RECIPE,
        "key": planned_run.key,
        "group": planned_run.group,
        "name": planned_run.name,
        "model": settings["model"],
        "settings": settings,
        "epochs": settings.get("epochs"),
        "seed": planned_run.seed,
        "recipe": RECIPE,
        "changes": list(words),
        "dataset": "indian-pines",
        **found,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "command": shlex.join(["python", "-m", "experiments", *without_places(sys.argv[1:])]),
        "commit": source_commit(),
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, (json.dumps(content) + "\n").encode())
    return content


def measured(finished: Finished) -> Record:
    """Records are written by `work`; there is no run of the training engine to read."""
    raise ValueError(f"{finished.folder} was not trained by this study")


STUDY = Study("hyperspectral", planned, measured, write, work=work)
