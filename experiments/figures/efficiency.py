"""Parameters against mIoU: what a model gives up for its size (paper, fig. seg_efficiency)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from tcpvit.figures.style import COLUMN_WIDTH, INK, MODELS, house_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEAST_SPAN = 3.0  # points of mIoU
MARKERS = "osD^"  # beside the colours, for readers who see none
Point = tuple[int, Sequence[float]]  # parameters, mIoU in per cent, one for each seed


def draw_efficiency(points: Mapping[str, Point]) -> Figure:
    """A point for each model; a dashed arrow leads from the first, the reference, to each of the others, with its η.

    >>> figure = draw_efficiency({"std": (1_000_000, [80.0]), "tcp": (500_000, [79.0])})
    >>> [text.get_text() for text in figure.legends[0].get_texts()]
    ['std: 80.0 %', 'tcp: 79.0 %, 0.500×, η = 0.020']
    """
    if not points:
        raise ValueError("draw_efficiency needs at least one model, got none")
    with house_style() as Figure:
        figure = Figure(figsize=(COLUMN_WIDTH, 1.9 + 0.17 * len(points)), layout="constrained")
        panel = figure.subplots()
        reference, *_ = points.values()
        for style, marker, (model, point) in zip(MODELS, MARKERS, points.items(), strict=False):
            _draw_point(panel, model, point, reference, style["color"], marker)
        panel.set_xlabel("parameters (million)")
        panel.set_ylabel("mIoU (%)")
        panel.set_xlim(0, 1.12 * max(parameters for parameters, _ in points.values()) / 1e6)
        panel.margins(y=0.15)
        low, high = panel.get_ylim()
        room = max(LEAST_SPAN - (high - low), 0) / 2  # a small difference shall look small
        panel.set_ylim(low - room, high + room)
        panel.grid()
        figure.legend(loc="outside lower center", handlelength=1.2, labelspacing=0.3)
        return figure


def compression_cost(reference: Point, point: Point) -> float:
    """η = ΔmIoU / Δparams (paper, Section 5.2): points of mIoU lost for each per cent of the parameters saved.

    >>> round(compression_cost((1_570_978, [87.8]), (751_586, [86.8])), 3)
    0.019
    """
    (whole, before), (part, after) = reference, point
    return (fmean(before) - fmean(after)) / (100 * (1 - part / whole))


def _draw_point(panel: Any, model: str, point: Point, reference: Point, color: str, marker: str) -> None:
    parameters, mious = point
    x, y = parameters / 1e6, fmean(mious)
    spread = stdev(mious) if len(mious) > 1 else None
    label = f"{model}: {y:.1f}{'' if spread is None else f' ± {spread:.1f}'} %"
    if point is not reference:
        label += f", {parameters / reference[0]:.3f}×, η = {_signed(compression_cost(reference, point))}"
        start = (reference[0] / 1e6, fmean(reference[1]))
        arrow = {"arrowstyle": "->", "linestyle": "--", "color": INK, "linewidth": 0.8, "shrinkA": 6, "shrinkB": 6}
        panel.annotate("", (x, y), start, arrowprops=arrow)
    style = {"linestyle": "none", "markersize": 6, "capsize": 3, "elinewidth": 1}
    panel.errorbar([x], [y], yerr=spread, color=color, marker=marker, label=label, **style)


def _signed(number: float) -> str:
    """Three decimals, with a minus sign as wide as a digit.

    >>> _signed(-0.0123)
    '−0.012'
    """
    return f"{number:.3f}".replace("-", "−")
