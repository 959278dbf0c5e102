"""Accuracy against what a model costs: one point for each model, the frontier through those that nothing beats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from experiments.figures.names import write_names
from tcpvit.figures.style import BLUE, FAINT, INK, ORANGE, TEXT_WIDTH, house_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKERS: dict[str, dict[str, Any]] = {  # the few dense models before the many others
    "std": {"color": ORANGE, "marker": "s", "zorder": 4},
    "tcp": {"color": BLUE, "marker": "o", "zorder": 3},
}
LEGEND = {"std": "Std-ViT", "tcp": "TCP-ViT"}


@dataclass(frozen=True)
class Point:
    """A model: its name, std or tcp, its costs by panel, its accuracy in percent; `named` also where others beat it."""

    name: str
    kind: str
    costs: Mapping[str, float]
    accuracy: float
    named: bool = False
    deviation: float = 0.0  # of the accuracy, drawn as a bar

    def at(self, cost: str) -> tuple[float, float]:
        """Its place in a panel."""
        return self.costs[cost], self.accuracy


def draw_frontier(title: str, points: Sequence[Point], panels: Sequence[str]) -> Figure:
    """A panel for each cost; a model without that cost is left out of its panel.

    >>> cheap = Point("a", "tcp", {"parameters": 40_000}, 64.0)
    >>> dear, beaten = Point("b", "std", {"parameters": 119_000}, 70.0), Point("c", "std", {"parameters": 50_000}, 60.0)
    >>> [point.name for point in frontier([dear, cheap, beaten], "parameters")]
    ['a', 'b']
    >>> len(draw_frontier("top-1 (%)", [dear, cheap, beaten], ["parameters"]).axes)
    1
    """
    with house_style() as Figure:
        figure = Figure(figsize=(TEXT_WIDTH, 3.4), layout="constrained")
        axes = figure.subplots(1, len(panels), squeeze=False, sharey="row")[0]
        for panel, cost in zip(axes, panels, strict=True):
            _draw_panel(panel, _with(cost, points), cost)
            panel.set_xlabel(cost)
        axes[0].set_ylabel(title)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
        figure.draw_without_rendering()  # now it is known what lies where
        for panel, cost in zip(axes, panels, strict=True):
            drawn = _with(cost, points)
            unbeaten = frontier(drawn, cost)
            named = {each.name: each.at(cost) for each in drawn if each.name and (each.named or each in unbeaten)}
            write_names(panel, named, [each.at(cost) for each in drawn], [each.at(cost) for each in unbeaten])
        return figure


def _with(cost: str, points: Sequence[Point]) -> list[Point]:
    return [point for point in points if cost in point.costs]


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
        panel.scatter(costs, accuracies, s=22, label=LEGEND[kind], edgecolor="white", linewidth=0.5, **style)
        deviations = [point.deviation for point in chosen]
        if any(deviations):
            panel.errorbar(costs, accuracies, deviations, fmt="none", ecolor=style["color"], elinewidth=0.8, capsize=2)
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
    panel.xaxis.get_major_locator().set_params(nbins=5)
    panel.xaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
    panel.grid(color=FAINT)
    panel.margins(y=0.1)
    span = (high - low) or high
    panel.set_xlim(low - 0.55 * span, high + 0.55 * span)  # room for names
