"""Accuracy against what a model costs: one point for each model, the frontier through those that nothing beats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tcpvit.figures.style import BLUE, FAINT, INK, ORANGE, TEXT_WIDTH, house_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKERS = {"std": {"color": ORANGE, "marker": "s"}, "tcp": {"color": BLUE, "marker": "o"}}
LEGEND = {"std": "Std-ViT", "tcp": "TCP-ViT"}


@dataclass(frozen=True)
class Point:
    """A model: its name, std or tcp, its costs by panel, its accuracy in percent; `named` also where others beat it."""

    name: str
    kind: str
    costs: Mapping[str, float]
    accuracy: float
    named: bool = False


def draw_frontier(points: Sequence[Point], panels: Sequence[str]) -> Figure:
    """A panel for each cost; a model without that cost is left out of its panel.

    >>> cheap = Point("a", "tcp", {"parameters": 40_000}, 64.0)
    >>> dear, beaten = Point("b", "std", {"parameters": 119_000}, 70.0), Point("c", "std", {"parameters": 50_000}, 60.0)
    >>> [point.name for point in frontier([dear, cheap, beaten], "parameters")]
    ['a', 'b']
    """
    if not points or not panels:
        raise ValueError("draw_frontier needs at least one point and one panel")
    with house_style() as Figure:
        figure = Figure(figsize=(TEXT_WIDTH, 3.3), layout="constrained")
        axes = figure.subplots(1, len(panels), squeeze=False, sharey=True).flat
        for panel, cost in zip(axes, panels, strict=True):
            _draw_panel(panel, [point for point in points if cost in point.costs], cost)
        axes[0].set_ylabel("top-1, %")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
        return figure


def frontier(points: Sequence[Point], cost: str) -> list[Point]:
    """The models that no other beats in accuracy at the same or a lower cost, cheapest first."""
    best: list[Point] = []
    for point in sorted(points, key=lambda point: (point.costs[cost], -point.accuracy)):
        if not best or point.accuracy > best[-1].accuracy:
            best.append(point)
    return best


def _draw_panel(panel: Any, points: list[Point], cost: str) -> None:
    for kind, style in MARKERS.items():
        chosen = [point for point in points if point.kind == kind]
        costs, accuracies = [point.costs[cost] for point in chosen], [point.accuracy for point in chosen]
        panel.scatter(costs, accuracies, s=22, label=LEGEND[kind], edgecolor="white", linewidth=0.5, zorder=3, **style)
    unbeaten = frontier(points, cost)
    panel.plot(
        [point.costs[cost] for point in unbeaten],
        [point.accuracy for point in unbeaten],
        color=INK,
        linewidth=0.8,
        linestyle=":",
        label="frontier",
    )
    low, high = min(point.costs[cost] for point in points), max(point.costs[cost] for point in points)
    for point in points:
        if point.named or point in unbeaten:
            panel.annotate(
                point.name,
                (point.costs[cost], point.accuracy),
                textcoords="offset points",
                fontsize=6.5,
                **_beside(point in unbeaten, right=point.costs[cost] > (low + high) / 2),
            )
    panel.xaxis.get_major_locator().set_params(nbins=5)
    panel.xaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
    panel.set_xlabel(cost)
    panel.grid(color=FAINT)
    panel.margins(y=0.1)
    span = (high - low) or high
    panel.set_xlim(low - 0.3 * span, high + 0.15 * span)  # room for names


def _beside(unbeaten: bool, right: bool) -> dict[str, Any]:
    """Where a name stands clear of the dotted line: above and left of what nothing beats, else below and inside."""
    if unbeaten:
        return {"xytext": (-4, 2), "ha": "right"}
    return {"xytext": (-3, -11), "ha": "right"} if right else {"xytext": (5, -2), "ha": "left"}
