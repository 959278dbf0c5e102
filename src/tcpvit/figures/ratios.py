"""Parameter and FLOPs ratios TCP / Std against C, d and N (paper, Eqs. param_ratio and flops_ratio)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tcpvit.figures.style import matplotlib_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind readers can tell apart; dashes tell the lines apart without colour.
LINES = {
    "parameters": {"color": "#0072B2", "linestyle": "-", "linewidth": 1.8},
    "FLOPs": {"color": "#D55E00", "linestyle": "-.", "linewidth": 1.6},
    "FLOPs, the paper's formula": {"color": "#009E73", "linestyle": "--", "linewidth": 1.4},
    "1/C": {"color": "black", "linestyle": ":", "linewidth": 1.1},  # over the parameters, which come close to it
}
MEANINGS = {"C": "tube length $C$", "d": "slice width $d$", "N": "patches $N$"}


def draw_ratios(curves: Mapping[str, Mapping[str, Sequence[float]]], at: Mapping[str, float]) -> Figure:
    """Three panels, one for each of C, d and N; `curves` is what `analysis.ratio_curves` gives.

    `at` names the point that the panels share (C, d and N); a hairline marks it.
    """
    figure = matplotlib_figure()(figsize=(5.9, 2.5), layout="constrained")  # the text width of the paper
    panels = figure.subplots(1, 3)
    for panel, (axis, lines) in zip(panels, curves.items(), strict=True):
        for name, style in LINES.items():
            panel.plot(lines["x"], lines[name], label=name, **style)
        panel.axvline(at[axis], color="0.8", linewidth=0.8, zorder=0)
        _label(panel, axis, at)
    panels[0].set_ylabel("ratio TCP / Std", fontsize=8)
    handles, labels = panels[0].get_legend_handles_labels()
    labels = [label.replace("1/C", "$1/C$") for label in labels]
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=7.5, frameon=False, columnspacing=1.4)
    return figure


def _label(panel: Any, axis: str, at: Mapping[str, float]) -> None:
    panel.set_title(", ".join(f"${name}={at[name]:g}$" for name in MEANINGS if name != axis), fontsize=8)
    panel.set_xlabel(MEANINGS[axis], fontsize=8)
    panel.set_xscale("log", base=4)
    panel.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    if axis == "C":
        panel.set_yscale("log", base=4)
        panel.yaxis.set_major_formatter(lambda y, _: f"{y:g}" if y >= 1 else f"1/{1 / y:g}")
    else:
        panel.set_ylim(0, 1.03)
    panel.minorticks_off()
    panel.tick_params(labelsize=7)
    panel.spines[["top", "right"]].set_visible(False)
