"""Numbers over seeds: mean, deviation, and an interval that says how far chance alone may reach."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean, stdev
from typing import Any

from tcpvit.tables import Written

Run = dict[str, Any]  # the record of a run
# The 97.5 % quantiles of Student's t with 1, 2, ... degrees of freedom: seeds are few, and scipy is an extra.
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of the mean of several values, by Student's t (that of 10 for more); None for one value.

    >>> [round(end, 2) for end in interval([80.0, 81.0, 82.0])]
    [78.52, 83.48]
    """
    number = len(values)
    if not number:
        raise ValueError("an interval is of at least one value, got none")
    if number == 1:
        return None
    half = STUDENT[min(number, len(STUDENT) + 1) - 2] * stdev(values) / number**0.5
    return fmean(values) - half, fmean(values) + half


def spread(values: Sequence[float], digits: int = 1) -> str:
    """The mean with the deviation over the seeds, if there are several.

    >>> spread([80.04]), spread([80.0, 81.0, 82.0])
    ('80.0', '81.0 ± 1.0')
    """
    beside = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values):.{digits}f}{beside}"


def percent(values: Sequence[float]) -> Written:
    """The mean of fractions in percent, with the deviation if there are several.

    >>> percent([0.5]), percent([0.5, 0.6])
    ('50.0 %', '55.0 ± 7.1 %')
    """
    return Written(f"{spread([100 * value for value in values])} %")


def signed(value: float, digits: int = 1) -> str:
    """A number with its sign, the minus as wide as the plus; what is written as zero has none.

    >>> signed(-1.04), signed(0.5), signed(-0.001), signed(-76080, 0)
    ('−1.0', '+0.5', '0.0', '−76,080')
    """
    text = f"{value:+,.{digits}f}"
    return text.replace("-", "−") if text.strip("+-0.") else text[1:]


def between(ends: tuple[float, float] | None) -> str:
    """An interval as people write it; a dash for none.

    >>> between((-0.46, 1.0)), between(None)
    ('[−0.5, +1.0]', '–')
    """
    return "–" if ends is None else f"[{signed(ends[0])}, {signed(ends[1])}]"


def leads(mine: Sequence[Run], theirs: Sequence[Run], metric: str) -> list[float]:
    """By how many points a model is ahead of another, seed by seed, where both were run.

    >>> leads([{"seed": 0, "miou": 0.5}, {"seed": 1, "miou": 0.5}], [{"seed": 1, "miou": 0.25}], "miou")
    [25.0]
    """
    known = {run["seed"]: run[metric] for run in theirs}
    return [100 * (run[metric] - known[run["seed"]]) for run in mine if run["seed"] in known]


def seeds_of(runs: Iterable[Run]) -> Written:
    """The seeds of runs; none gives a dash.

    >>> seeds_of([{"seed": 1}, {"seed": 0}]), seeds_of([])
    ('0, 1', '–')
    """
    return Written(", ".join(map(str, sorted({run["seed"] for run in runs}))) or "–")
