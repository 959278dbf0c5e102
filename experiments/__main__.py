"""`python -m experiments NAME`: run a study of this repository, or write its tables and figures again."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from tcpvit.cli.app import command, help_of
from tcpvit.cli.reproduce import reproduce, run_study
from tcpvit.compare.study import Places, Study
from tcpvit.errors import did_you_mean

STUDIES = ("classification", "conversion", "hyperspectral", "segmentation", "slices", "volumes")


def experiment(
    study: str,
    *,
    runs: Path = Path("runs"),
    results: Path = Path("results"),
    pages: Path = Path("docs/results"),
    **options: Any,
) -> list[Path]:
    """Run a study of this repository: training, records, and the tables and figures of its page.

    Every run leaves a JSON record in RESULTS/STUDY as it ends; the marked blocks of the pages in PAGES are written from
    the records. The same command resumes what was stopped, and may run several times at once. The other options are
    those of `tcpvit reproduce`.

    Args:
        study: classification, segmentation, slices (what each slice sees and learns), conversion (a ViT of timm is
            projected and distilled), or hyperspectral (Indian Pines).
        runs: the folder of all runs.
        results: the folder of all records.
        pages: the folder of the pages and figures.

    Examples:
        python -m experiments classification --plan
        python -m experiments classification --only gap
        python -m experiments segmentation --only whole --only subset
        python -m experiments classification --pages-only
    """
    epochs = options.get("epochs")
    name = study if epochs is None else f"{study}-{epochs}-epochs"  # other epochs than planned are another study
    places = Places(runs / name, results / name, pages if epochs is None else pages / name)
    return run_study(find_study(study), places, **options)


def as_command() -> Callable[..., None]:
    """`experiment` as typer takes it, with the options that it shares with `tcpvit reproduce`."""
    run, others = command(experiment), inspect.signature(command(reproduce)).parameters
    own = {name: p for name, p in inspect.signature(run).parameters.items() if name != "options"}
    parameters = {**own, **{name: p for name, p in others.items() if name not in ("study", "out")}}
    run.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
    run.__annotations__ = {name: p.annotation for name, p in parameters.items()}
    return run


def find_study(name: str) -> Study:
    """The study of that name."""
    if name not in STUDIES:
        raise ValueError(f"no study is called {name!r}{did_you_mean(name, STUDIES)}")
    study: Study = importlib.import_module(f"experiments.{name}.plan").STUDY
    return study


if __name__ == "__main__":
    sys.argv[0] = "python -m experiments"  # as records name the command
    app = typer.Typer(add_completion=False, rich_markup_mode="markdown")
    app.command(help=help_of(experiment))(as_command())
    try:
        app(prog_name="python -m experiments")
    except (ValueError, OSError, ImportError) as error:
        sys.exit(f"experiments: {error}")
