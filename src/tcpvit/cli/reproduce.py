"""`tcpvit reproduce`: the paper's experiments, as studies that anybody can run again."""

from __future__ import annotations

import json as json_module
from collections.abc import Sequence
from pathlib import Path

import torch

from tcpvit.cli.show import display_for, show
from tcpvit.compare import classification, hyperspectral, segmentation
from tcpvit.compare.study import Places, Planned, Study, choose, work
from tcpvit.errors import did_you_mean
from tcpvit.files import check_writable
from tcpvit.tables import Table

STUDIES = {study.name: study for study in (classification.STUDY, segmentation.STUDY, hyperspectral.STUDY)}


def reproduce(
    study: str,
    *,
    only: list[str] = [],  # noqa: B006 (typer copies it)
    seeds: int | None = None,
    epochs: int | None = None,
    resume: bool = True,
    plan: bool = False,
    pages_only: bool = False,
    out: Path = Path("reproduced"),
    data_root: Path | None = None,
    threads: int = 1,
    quiet: bool = False,
    json: bool = False,
) -> list[Path]:
    """Run an experiment of the paper: training, its table beside the paper's numbers, and its figures.

    Every run leaves a JSON record in OUT/STUDY/records as it ends, with its command, seed, epochs and commit; table and
    figures are written from the records. The same command resumes what was stopped, and may run several times at once:
    each process takes runs that no other has.

    Args:
        study: classification (CIFAR-10, SVHN, STL-10, full CIFAR-10), segmentation (Oxford-IIIT Pet), or hyperspectral
            (Indian Pines, which is not in the paper).
        only: a run or a part of the study, wildcards allowed, as "paper-*"; may be repeated. See --plan.
        seeds: how many seeds of each, from 0 on, instead of the plan's own.
        epochs: train for so many epochs instead of the planned ones; such runs are kept apart.
        resume: resume runs that were stopped; --no-resume leaves them alone.
        plan: list the runs and their state, and run nothing.
        pages_only: write the table and the figures from the records, and run nothing.
        out: the folder of the runs, records, tables and figures.
        data_root: the folder that holds the data sets.
        threads: threads of each process.
        quiet: show nothing but the result.
        json: print the plan or the written files as JSON on stdout, and the progress on stderr.

    Examples:
        tcpvit reproduce classification --plan
        tcpvit reproduce classification --only paper --seeds 1
        tcpvit reproduce classification --only paper-tcp-0 --epochs 1
        tcpvit reproduce segmentation --seeds 1 --epochs 10
        tcpvit reproduce hyperspectral --only random --seeds 1
        tcpvit reproduce classification --pages-only
    """
    if study not in STUDIES:
        raise ValueError(f"no study is called {study!r}{did_you_mean(study, STUDIES)}")
    home = out / (study if epochs is None else f"{study}-{epochs}-epochs")
    if not plan:
        check_writable(home / "record")
    places = Places(home / "runs", home / "records", home)
    return run_study(
        STUDIES[study], places, only=only, seeds=seeds, epochs=epochs, resume=resume, plan=plan, pages_only=pages_only,
        data_root=data_root, threads=threads, quiet=quiet, json=json,
    )  # fmt: skip


def run_study(
    study: Study,
    places: Places,
    *,
    only: Sequence[str] = (),
    seeds: int | None = None,
    epochs: int | None = None,
    resume: bool = True,
    plan: bool = False,
    pages_only: bool = False,
    data_root: Path | None = None,
    threads: int = 1,
    quiet: bool = False,
    json: bool = False,
) -> list[Path]:
    """Show the plan of a study, or train what it lacks and write its tables and figures."""
    for name, value in (("seeds", seeds), ("epochs", epochs), ("threads", threads)):
        if value is not None and value < 1:
            raise ValueError(f"--{name} is at least 1, got {value}")
    chosen = choose(study.planned(), only, seeds)
    if not resume:
        chosen = [run for run in chosen if not (places.runs / run.key).exists()]
    if plan:
        _show_plan(chosen, places, epochs, json)
        return []
    progress = display_for(quiet=quiet, json=json)
    progress.resume_command = "the same command"  # `tcpvit train` knows no records
    if not pages_only:
        torch.set_num_threads(threads)
        missing = (study.work or work)(study, chosen, places, epochs=epochs, root=data_root, progress=progress)
        if chosen and len(missing) == len(chosen):
            raise FileNotFoundError("none of these runs has its images here; see above where to get them")
    written = study.write(places)
    print(json_module.dumps([str(path) for path in written], indent=2) if json else "\n".join(map(str, written)))
    return written


def _show_plan(plan: list[Planned], places: Places, epochs: int | None, json: bool) -> None:
    table = Table("plan", f"{len(plan)} runs, the most important first", ["run", "model", "data", "epochs", "state"])
    for run in plan:
        table.add(run.key, *run.about(epochs), _state(run, places))
    show([table], json=json)


def _state(run: Planned, places: Places) -> str:
    if (places.results / f"{run.key}.json").is_file():
        return "done"
    return "started" if (places.runs / run.key).exists() else "to do"
