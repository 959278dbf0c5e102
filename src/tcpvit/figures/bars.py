"""Parameter bars: totals, stacked by component, and component by component."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tcpvit.figures.style import GREEN, MODELS, PINK, SKY, TEXT_WIDTH, YELLOW, house_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHADES = (SKY, GREEN, YELLOW, PINK, "#999999", "#F0E442", "#333333")  # of components; never the colour of a model
Parts = Mapping[str, Mapping[str, int]]


def draw_parameter_bars(parts: Parts) -> Figure:
    """`parts` has the parameters of each model by component; ratios are to the first model.

    >>> figure = draw_parameter_bars({"std": {"blocks": 90, "head": 10}, "tcp": {"blocks": 30, "head": 10}})
    >>> [text.get_text() for text in figure.axes[0].texts]
    ['100', '40\\n0.400×']
    """
    if not parts:
        raise ValueError("draw_parameter_bars needs at least one model, got none")
    components, shades = shaded_components(parts)
    with house_style() as Figure:
        figure = Figure(figsize=(TEXT_WIDTH, 1.1 + 0.34 * max(len(components), 3)), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(1, 1.7))
        _draw_totals(left, parts, components, shades)
        draw_components(right, parts, components, shades)
        return figure


def shaded_components(parts: Parts) -> tuple[list[str], list[str]]:
    """The components of all models, and a shade for each that is the colour of no model."""
    components = list(dict.fromkeys(name for counts in parts.values() for name in counts))
    taken = {style["color"] for style in MODELS[: len(parts)]}
    free = [shade for shade in SHADES if shade not in taken]
    return components, [free[i % len(free)] for i in range(len(components))]


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


def draw_components(panel: Any, parts: Parts, components: list[str], shades: list[str]) -> None:
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
