"""Training curves: losses and the metric against the epoch, one line for each run (paper, fig. seg_curves)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tcpvit.figures.style import COLUMN_WIDTH, FAINT, MODELS, TEXT_WIDTH, house_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Curve = tuple[Sequence[float], Sequence[float]]  # epochs, values


def draw_curves(panels: Mapping[str, Mapping[str, Sequence[Curve]]], *, in_column: bool = False) -> Figure:
    """A panel for each title; in it the curves of each model, one for each seed.

    Panels stand side by side over the width of the text, or `in_column` one below the other.

    >>> figure = draw_curves({"loss": {"std": [([1, 2], [0.9, 0.5])], "tcp": [([1, 2], [0.8, 0.6])]}})
    >>> [line.get_label() for line in figure.axes[0].lines]
    ['std', 'tcp']
    """
    if not panels:
        raise ValueError("draw_curves needs at least one panel, got none")
    with house_style() as Figure:
        size = (COLUMN_WIDTH, 0.5 + 1.25 * len(panels)) if in_column else (TEXT_WIDTH, 2.3)
        figure = Figure(figsize=size, layout="constrained")
        shape = (len(panels), 1) if in_column else (1, len(panels))
        axes = figure.subplots(*shape, squeeze=False, sharex=in_column).flat
        for panel, (title, models) in zip(axes, panels.items(), strict=True):
            for style, (model, curves) in zip(MODELS, models.items(), strict=False):
                for i, (epochs, values) in enumerate(curves):
                    panel.plot(
                        epochs,
                        values,
                        label=model if i == 0 else None,
                        marker="." if len(epochs) == 1 else "",
                        linewidth=1.6 if len(curves) == 1 else 1.0,
                        **style,
                    )
            panel.set_title(title)
            if panel.get_subplotspec().is_last_row():
                panel.set_xlabel("epoch")
            _number_epochs(panel, [epoch for curves in models.values() for epochs, _ in curves for epoch in epochs])
            panel.grid(axis="y", color=FAINT)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), handlelength=2.6)
        return figure


def _number_epochs(panel: Any, epochs: Sequence[float]) -> None:
    """Whole epochs at the axis; a single one in the middle."""
    if len(set(epochs)) == 1:
        panel.set_xticks([epochs[0]], [f"{epochs[0]:g}"])
        panel.set_xlim(epochs[0] - 1, epochs[0] + 1)
    else:
        panel.xaxis.get_major_locator().set_params(integer=True, nbins=5)
