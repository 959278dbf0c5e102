"""`python -m experiments NAME`: run a study of this repository, or write its tables and figures again."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import typer

from tcpvit.cli.app import command, help_of
from tcpvit.cli.reproduce import run_study
from tcpvit.compare.study import Places, Study
from tcpvit.errors import did_you_mean

STUDIES = ("classification", "conversion", "hyperspectral", "segmentation", "slices")


def experiment(
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
    """Run a study of this repository: training, records, and the tables and figures of its page.

    Every run leaves a JSON record in RESULTS/STUDY as it ends; the marked blocks of the pages in PAGES are written from
    the records. The same command resumes what was stopped, and may run several times at once.

    Args:
        study: classification, segmentation, slices (what each slice sees and learns), conversion (a ViT of timm is
            projected and distilled), or hyperspectral (Indian Pines).
        only: a run or a part of the study, wildcards allowed, as "gap-*"; may be repeated. See --plan.
        seeds: how many seeds of each, from 0 on, instead of the plan's own.
        epochs: train so long instead of as planned; such runs are kept apart.
        resume: resume runs that were stopped; --no-resume leaves them alone.
        plan: list the runs and their state, and run nothing.
        pages_only: write the tables and figures from the records, and run nothing.
        runs: the folder of all runs.
        results: the folder of all records.
        pages: the folder of the pages and figures.
        data_root: the folder that holds the data sets.
        threads: of each process.
        quiet: show nothing but the result.
        json: print the plan or the written files as JSON on stdout, and the progress on stderr.

    Examples:
        python -m experiments classification --plan
        python -m experiments classification --only gap
        python -m experiments segmentation --only whole --only subset
        python -m experiments classification --pages-only
    """
    places = Places.of(study, epochs, runs, results, pages)
    return run_study(
        find_study(study), places, only=only, seeds=seeds, epochs=epochs, resume=resume, plan=plan,
        pages_only=pages_only, data_root=data_root, threads=threads, quiet=quiet, json=json,
    )  # fmt: skip


def find_study(name: str) -> Study:
    """The study of that name."""
    if name not in STUDIES:
        raise ValueError(f"no study is called {name!r}{did_you_mean(name, STUDIES)}")
    study: Study = importlib.import_module(f"experiments.{name}.plan").STUDY
    return study


if __name__ == "__main__":
    sys.argv[0] = "python -m experiments"  # as records name the command
    app = typer.Typer(add_completion=False, rich_markup_mode="markdown")
    app.command(help=help_of(experiment))(command(experiment))
    try:
        app(prog_name="python -m experiments")
    except (ValueError, OSError, ImportError) as error:
        sys.exit(f"experiments: {error}")
