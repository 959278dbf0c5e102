"""Runs that differ by their seed: named in a sentence, and compared on the seeds that all models have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tcpvit.compare.intervals import Run, seeds_of


def named_seeds(runs: Iterable[Run]) -> str:
    """The seeds of runs, in a sentence.

    >>> named_seeds([{"seed": 0}]), named_seeds([{"seed": 1}, {"seed": 0}])
    ('seed 0', 'seeds 0, 1')
    """
    seeds = seeds_of(runs)
    return f"seed{'s' * (',' in seeds)} {seeds}"


def on_common_seeds(runs: Mapping[str, Sequence[Run]]) -> dict[str, list[Run]]:
    """The runs of the seeds that every model has that was run at all: means over other seeds would not compare.

    >>> runs = {"std": [{"seed": 0}, {"seed": 1}], "tcp": [{"seed": 0}], "full": []}
    >>> on_common_seeds(runs)
    {'std': [{'seed': 0}], 'tcp': [{'seed': 0}], 'full': []}
    """
    seeds = [{run["seed"] for run in of_model} for of_model in runs.values() if of_model]
    common = set.intersection(*seeds) if seeds else set()
    return {name: [run for run in of_model if run["seed"] in common] for name, of_model in runs.items()}
