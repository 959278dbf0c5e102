"""Parameter bars at the width of a column (paper, fig. seg_params)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tcpvit.figures.bars import Parts, draw_components, shaded_components
from tcpvit.figures.style import COLUMN_WIDTH, MODELS, house_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_parameter_column(parts: Parts) -> Figure:
    """Three panels one below the other, all to one scale: (a) totals, (b) stacked, (c) by component."""
    components, shades = shaded_components(parts)
    with house_style() as Figure:
        rows = [len(parts) + 0.4, len(parts) + 0.4, 1 + 0.9 * len(parts) * len(components)]
        figure = Figure(figsize=(COLUMN_WIDTH, 1.1 + 0.17 * sum(rows)), layout="constrained")
        figure.get_layout_engine().set(w_pad=0.08)
        total, stacked, by_component = figure.subplots(3, 1, height_ratios=rows)
        sums = {model: {"total": sum(counts.values())} for model, counts in parts.items()}
        _draw_rows(total, sums, ["total"], [[style["color"] for style in MODELS[: len(parts)]]])
        _draw_rows(stacked, parts, components, shades)
        draw_components(by_component, parts, components, shades)
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
