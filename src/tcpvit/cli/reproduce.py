"""`tcpvit reproduce`: the paper's experiments and our own, as studies that anybody can run again."""

from __future__ import annotations

import importlib
import json as json_module
from pathlib import Path

import torch

from tcpvit.cli.progress import display_for
from tcpvit.cli.show import show
from tcpvit.compare.study import Places, Planned, Study, choose, work
from tcpvit.errors import did_you_mean
from tcpvit.tables import Table

STUDIES = {
    "classification": "experiments.classification.plan",
    "conversion": "experiments.conversion.plan",
    "segmentation": "experiments.segmentation.plan",
    "slices": "experiments.slices.plan",
}


def reproduce(
    study: str,
    *,
    only: list[str] = [],  # noqa: B006 (typer copies it)
    seeds: int | None = None,
    epochs: int | None = None,
    resume: bool = True,
    plan: bool = False,
    pages_only: bool = False,
    runs: Path = Path("runs"),
    results: Path = Path("results"),
    pages: Path = Path("docs/results"),
    data_root: Path | None = None,
    threads: int = 1,
    quiet: bool = False,
    json: bool = False,
) -> list[Path]:
    """Run a study of the paper's or our own: training, tables, figures and a page.

    Every run leaves a JSON file in RESULTS/STUDY as it ends, with its command, seed, epochs and commit; the tables,
    figures and pages are written from these files. The same command goes on where it was stopped, and may run several
    times at once: each process takes runs that no other has.

    Args:
        study: classification, segmentation, slices (what each slice sees and learns), or conversion (a ViT of timm is
            projected and distilled).
        only: a run or a part of the study, wildcards allowed, as "gap-*"; may be repeated. See --plan.
        seeds: how many seeds of each, from 0 on, instead of the plan's own.
        epochs: train so long instead of as planned; such runs are kept apart.
        resume: go on with runs that were stopped; --no-resume leaves them alone.
        plan: list the runs and what there is of them, and run nothing.
        pages_only: write the tables, figures and pages from the records, and run nothing.
        runs: the folder of all runs.
        results: the folder of all records.
        pages: the folder of the pages and figures.
        data_root: the folder that holds the sets.
        threads: of each process.
        quiet: show nothing but the result.
        json: print the plan or the written files as JSON on stdout, and the progress on stderr.

    Examples:
        tcpvit reproduce classification --plan
        tcpvit reproduce classification --only gap
        tcpvit reproduce classification --only paper --seeds 1
        tcpvit reproduce classification --only gap-joint-0 --epochs 1
        tcpvit reproduce segmentation --only whole --only subset
        tcpvit reproduce classification --pages-only
    """
    its = find_study(study)
    for name, value in (("seeds", seeds), ("epochs", epochs), ("threads", threads)):
        if value is not None and value < 1:
            raise ValueError(f"--{name} is at least 1, got {value}")
    places = Places.of(study, epochs, runs, results, pages)
    chosen = choose(its.planned(), only, seeds)
    if not resume:
        chosen = [run for run in chosen if not (places.runs / run.key).exists()]
    if plan:
        _show_plan(chosen, places, epochs, json)
        return []
    progress = display_for(quiet=quiet, json=json)
    progress.resume_command = "the same command"  # `tcpvit train` knows no records
    if not pages_only:
        torch.set_num_threads(threads)
        missing = work(its, chosen, places, epochs=epochs, root=data_root, progress=progress)
        if chosen and len(missing) == len(chosen):
            raise FileNotFoundError("none of these runs has its images here; see above where to get them")
    written = its.write(places)
    if json:
        print(json_module.dumps([str(path) for path in written], indent=2))
    else:
        for path in written:
            print(path)
    return written


def find_study(name: str) -> Study:
    """The study of that name."""
    if name not in STUDIES:
        raise ValueError(f"no study is called {name!r}{did_you_mean(name, STUDIES)}")
    study: Study = importlib.import_module(STUDIES[name]).STUDY
    return study


def _show_plan(plan: list[Planned], places: Places, epochs: int | None, json: bool) -> None:
    columns = ["run", "model", "data", "epochs", "state"]
    table = Table("plan", f"{len(plan)} runs, in the order of worth", columns)
    for run in plan:
        recipe = run.resolved(epochs)
        table.add(run.key, recipe.model.name, recipe.data.name, recipe.schedule.epochs, _state(run, places))
    show([table], json=json)


def _state(run: Planned, places: Places) -> str:
    if (places.results / f"{run.key}.json").is_file():
        return "done"
    return "begun" if (places.runs / run.key).exists() else "to do"
