"""Parameter bars: totals, stacked by component, and component by component (paper, fig. seg_params)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tcpvit.figures.style import COLUMN_WIDTH, GREEN, MODELS, PINK, SKY, TEXT_WIDTH, YELLOW, house_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHADES = (SKY, GREEN, YELLOW, PINK, "#999999", "#F0E442", "#333333")  # of components; never the colour of a model
Parts = Mapping[str, Mapping[str, int]]


def draw_parameter_bars(parts: Parts, *, in_column: bool = False) -> Figure:
    """`parts` has the parameters of each model by component; ratios are to the first model.

    `in_column` is the paper's figure at the width of a column: (a) totals, (b) stacked, (c) by component.

    >>> figure = draw_parameter_bars({"std": {"blocks": 90, "head": 10}, "tcp": {"blocks": 30, "head": 10}})
    >>> [text.get_text() for text in figure.axes[0].texts]
    ['100', '40\\n0.400×']
    """
    if not parts:
        raise ValueError("draw_parameter_bars needs at least one model, got none")
    components = list(dict.fromkeys(name for counts in parts.values() for name in counts))
    taken = {style["color"] for style in MODELS[: len(parts)]}
    free = [shade for shade in SHADES if shade not in taken]
    shades = [free[i % len(free)] for i in range(len(components))]
    with house_style() as Figure:
        if in_column:
            return _draw_in_column(Figure, parts, components, shades)
        figure = Figure(figsize=(TEXT_WIDTH, 1.1 + 0.34 * max(len(components), 3)), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(1, 1.7))
        _draw_totals(left, parts, components, shades)
        _draw_components(right, parts, components, shades)
        return figure


def _draw_totals(panel: Any, parts: Parts, components: list[str], shades: list[str]) -> None:
    """A bar for each model, stacked in the shades that the other panel explains."""
    totals = [sum(counts.values()) for counts in parts.values()]
    bottom = [0] * len(parts)
    for name, shade in zip(components, shades, strict=True):
        heights = [counts.get(name, 0) for counts in parts.values()]
        panel.bar(list(parts), heights, 0.62, bottom=bottom, color=shade, edgecolor="white", linewidth=0.5)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    for i, total in enumerate(totals):
        ratio = f"\n{total / totals[0]:.3f}×" if i and totals[0] else ""
        panel.annotate(f"{total:,}{ratio}", (i, total), (0, 3), textcoords="offset points", ha="center")
    panel.set_title("parameters")
    panel.set_ylim(0, 1.15 * max(totals))
    panel.set_yticks([])
    panel.spines["left"].set_visible(False)
    panel.tick_params(axis="x", length=0)


def _draw_components(panel: Any, parts: Parts, components: list[str], shades: list[str]) -> None:
    """The models' bars side by side for each component, with numbers and ratios."""
    thickness = 0.8 / len(parts)
    first = next(iter(parts.values()))
    for i, (style, (model, counts)) in enumerate(zip(MODELS, parts.items(), strict=False)):
        rows = [row - 0.4 + thickness * (i + 0.5) for row in range(len(components))]
        values = [counts.get(name, 0) for name in components]
        panel.barh(rows, values, 0.88 * thickness, color=style["color"], label=model)
        for name, row, value in zip(components, rows, values, strict=True):
            ratio = f"  {value / first[name]:.3f}×" if i and value and first.get(name) else ""
            said = f"{value:,}{ratio}" if value else "none"
            panel.annotate(said, (value, row), (3, 0), textcoords="offset points", va="center", fontsize=7)
    for row, shade in enumerate(shades):
        panel.plot(-0.03, row, "s", color=shade, markersize=5.5, transform=panel.get_yaxis_transform(), clip_on=False)
    panel.set_title("by component")
    panel.set_xlim(0, 1.3 * max(value for counts in parts.values() for value in counts.values()))  # room for numbers
    panel.set_xticks([])
    panel.spines["bottom"].set_visible(False)
    panel.set_yticks(range(len(components)), components)
    panel.tick_params(axis="y", length=0, pad=11)
    panel.invert_yaxis()
    panel.legend(loc="lower right", handlelength=1.0)


def _draw_in_column(Figure: Any, parts: Parts, components: list[str], shades: list[str]) -> Figure:
    """Three panels one below the other, all to one scale."""
    rows = [len(parts) + 0.4, len(parts) + 0.4, 1 + 0.9 * len(parts) * len(components)]
    figure = Figure(figsize=(COLUMN_WIDTH, 1.1 + 0.17 * sum(rows)), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.08)
    total, stacked, by_component = figure.subplots(3, 1, height_ratios=rows)
    sums = {model: {"total": sum(counts.values())} for model, counts in parts.items()}
    _draw_rows(total, sums, ["total"], [[style["color"] for style in MODELS[: len(parts)]]])
    _draw_rows(stacked, parts, components, shades)
    _draw_components(by_component, parts, components, shades)
    largest = max(counts["total"] for counts in sums.values())
    first = next(iter(sums.values()))["total"]
    for row, counts in enumerate(sums.values()):
        ratio = f"  {counts['total'] / first:.3f}×" if row and first else ""
        said = f"{counts['total']:,}{ratio}"
        total.annotate(said, (counts["total"], row), (3, 0), textcoords="offset points", va="center", fontsize=7)
    for panel, title in ((total, "(a) total"), (stacked, "(b) stacked"), (by_component, "(c) by component")):
        panel.set_title(title)
        panel.set_xlim(0, 1.3 * largest)
    return figure


def _draw_rows(panel: Any, parts: Parts, components: list[str], shades: Sequence[Any]) -> None:
    """A lying bar for each model, its components one after the other."""
    left = [0] * len(parts)
    for name, shade in zip(components, shades, strict=True):
        widths = [counts.get(name, 0) for counts in parts.values()]
        panel.barh(list(parts), widths, 0.7, left=left, color=shade, edgecolor="white", linewidth=0.5)
        left = [begin + width for begin, width in zip(left, widths, strict=True)]
    panel.set_xticks([])
    panel.spines["bottom"].set_visible(False)
    panel.tick_params(axis="y", length=0)
    panel.invert_yaxis()
