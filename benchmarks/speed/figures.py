"""Figures of the benchmark: speed-up against the FLOPs ratio, time by component, and growth of time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from experiments.figures.names import write_names
from tcpvit.figures.style import BLUE, FAINT, GREEN, INK, MODELS, ORANGE, PINK, SKY, TEXT_WIDTH, YELLOW, house_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHADES = (BLUE, ORANGE, GREEN, YELLOW, PINK, SKY, "#bbbbbb", "#777777", INK)  # of components
POINTS: tuple[dict[str, Any], ...] = (
    {"color": BLUE, "marker": "o"},
    {"color": GREEN, "marker": "^"},
    {"color": "#999999", "marker": "x"},
)
Speedups = Mapping[str, Mapping[str, tuple[float, float]]]  # model -> shape -> (FLOPs ratio, speed-up)
Line = tuple[Sequence[float], Sequence[float], float]  # points, milliseconds, slope


def draw_speedups(panels: Mapping[str, Speedups]) -> Figure:
    """A panel for each title: every model's speed-up over Std-ViT against what the FLOPs promise, the diagonal.

    >>> figure = draw_speedups({"1 thread": {"TCP-ViT": {"cifar": (2.2, 1.4), "pet": (2.0, 1.5)}}})
    >>> [text.get_text() for text in figure.axes[0].texts]
    ['cifar', 'pet']
    """
    values = [v for models in panels.values() for shapes in models.values() for pair in shapes.values() for v in pair]
    if not values:
        raise ValueError("draw_speedups needs at least one speed-up, got none")
    low, high = min(0.8, 0.8 * min(values)), 1.7 * max(values)
    with house_style() as Figure:
        figure = Figure(figsize=(TEXT_WIDTH, 3.3 if len(panels) > 1 else 4.2), layout="constrained")
        axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
        for panel, (title, models) in zip(axes, panels.items(), strict=True):
            panel.plot(
                [low, high], [low, high], color=INK, linewidth=0.8, linestyle=":", label="what the FLOPs promise"
            )
            panel.axhline(1, color=FAINT, linewidth=0.9, zorder=0)
            for style, (model, shapes) in zip(POINTS, models.items(), strict=False):
                x, y = zip(*shapes.values(), strict=True) if shapes else ((), ())
                panel.plot(x, y, linestyle="", markersize=5, label=model, **style)
            _log_axes(panel, "FLOPs of Std-ViT / FLOPs", (low, high))
            panel.set_ylim(low, high)
            panel.set_title(title)
        axes[0].set_ylabel("time of Std-ViT / time")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2, handlelength=2.2)
        figure.draw_without_rendering()  # now it is known what lies where
        for panel, models in zip(axes, panels.values(), strict=True):
            points = [pair for shapes in models.values() for pair in shapes.values()]
            write_names(panel, _lowest(models), points, [(low, low), (high, high)], size=7)
        return figure


def _lowest(models: Speedups) -> dict[str, tuple[float, float]]:
    """The lowest point of each shape."""
    names = dict.fromkeys(shape for shapes in models.values() for shape in shapes)
    return {name: min((s[name] for s in models.values() if name in s), key=lambda point: point[1]) for name in names}


def draw_components(shapes: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Figure:
    """For each shape and model a bar of its milliseconds by component, as shares, with the sum beside it.

    >>> figure = draw_components({"cifar": {"Std-ViT": {"matmul": 3.0, "norm": 1.0}}})
    >>> [round(bar.get_width()) for bar in figure.axes[0].patches], figure.axes[0].texts[0].get_text()
    ([75, 25], '4.0 ms')
    """
    if not shapes:
        raise ValueError("draw_components needs at least one shape, got none")
    bars = [(shape, model, parts) for shape, models in shapes.items() for model, parts in models.items()]
    components = list(dict.fromkeys(part for *_, parts in bars for part in parts))
    with house_style() as Figure:
        figure = Figure(figsize=(TEXT_WIDTH, 0.9 + 0.2 * len(bars) + 0.12 * len(shapes)), layout="constrained")
        layout: Any = figure.get_layout_engine()
        layout.set(w_pad=0.12)  # long names are wider on paper than the layout takes them for
        panel = figure.subplots()
        rows, row = [], 0.0
        for models in shapes.values():
            rows += [row + i for i in range(len(models))]
            row = rows[-1] + 1.6  # a gap between shapes
        left = [0.0] * len(bars)
        for i, component in enumerate(components):
            widths = [100 * parts.get(component, 0.0) / sum(parts.values()) for *_, parts in bars]
            shade = SHADES[i % len(SHADES)]
            panel.barh(rows, widths, 0.82, left=left, color=shade, edgecolor="white", linewidth=0.4, label=component)
            left = [a + b for a, b in zip(left, widths, strict=True)]
        for at, (*_, parts) in zip(rows, bars, strict=True):
            total = f"{_three_digits(sum(parts.values()))} ms"
            panel.annotate(total, (100, at), (4, 0), textcoords="offset points", va="center", fontsize=7)
        first = dict(reversed([(shape, at) for at, (shape, *_) in zip(rows, bars, strict=True)]))
        for shape, at in first.items():
            panel.annotate(shape, (0, at), (0, 7), textcoords="offset points", va="bottom", fontsize=7.5, weight="bold")
        panel.set_yticks(rows, [model for _, model, _ in bars], fontsize=7)
        panel.tick_params(axis="y", length=0)
        panel.set_xlim(0, 100)
        panel.xaxis.set_major_formatter(lambda value, _: f"{value:g} %")
        panel.spines["left"].set_visible(False)
        panel.invert_yaxis()
        panel.set_ylim(rows[-1] + 0.6, -1.1)
        figure.legend(
            loc="outside lower center", ncols=min(len(components), 7), handlelength=0.9, columnspacing=1.0, fontsize=7
        )
        return figure


def draw_growth(panels: Mapping[str, Mapping[str, Line]]) -> Figure:
    """A panel for each axis: milliseconds of each model in logarithms, with the slope beside its line.

    >>> figure = draw_growth({"N": {"Std-ViT": ([16, 64], [1.0, 4.0], 1.0)}})
    >>> figure.axes[0].texts[0].get_text()
    '1.00'
    """
    if not panels:
        raise ValueError("draw_growth needs at least one axis, got none")
    with house_style() as Figure:
        figure = Figure(figsize=(TEXT_WIDTH, 2.2), layout="constrained")
        axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
        for panel, (axis, lines) in zip(axes, panels.items(), strict=True):
            for style, (model, (x, y, slope)) in zip(MODELS, lines.items(), strict=False):
                panel.plot(x, y, marker=".", markersize=4, label=model, **style)
                panel.annotate(
                    f"{slope:.2f}", (x[-1], y[-1]), (3, 0), textcoords="offset points", va="center",
                    color=style["color"], fontsize=7,
                )  # fmt: skip
            points = next(iter(lines.values()))[0]
            _log_axes(panel, f"${axis}$" if len(axis) == 1 else axis, (points[0] / 1.3, points[-1] * 3))
            panel.set_xticks(points if len(points) < 5 else points[::2])
            panel.grid(axis="y", color=FAINT)
        axes[0].set_ylabel("forward+backward, ms")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), handlelength=2.6)
        return figure


def _log_axes(panel: Any, label: str, limits: tuple[float, float]) -> None:
    for axis, scale in ((panel.xaxis, panel.set_xscale), (panel.yaxis, panel.set_yscale)):
        scale("log")
        axis.set_major_formatter(lambda value, _: f"{value:g}")
    panel.minorticks_off()
    panel.set_xlim(*limits)
    panel.set_xlabel(label)


def _three_digits(value: float) -> str:
    """Three digits that count.

    >>> _three_digits(4.0), _three_digits(1234.5)
    ('4.0', '1234')
    """
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"
