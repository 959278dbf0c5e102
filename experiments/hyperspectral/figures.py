"""Accuracy of W against the number of kept coefficients."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

from experiments.hyperspectral.tables import SPLITS, Runs
from tcpvit.figures.style import FAINT, MODELS, TEXT_WIDTH, house_style

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure

KEPT = (8, 16, 32, 64)


def draw_kept(groups: Mapping[str, Runs]) -> Figure | None:
    """A panel for each split: overall accuracy on test pixels against K, each split a line, their mean in front."""
    if not all(f"kept-{kept}" in runs for runs in groups.values() for kept in KEPT):
        return None
    with house_style() as Figure:
        figure = Figure(figsize=(TEXT_WIDTH, 2.3), layout="constrained")
        panels = figure.subplots(1, len(groups))
        for panel, (kind, runs) in zip(panels, groups.items(), strict=True):
            found = [{run["seed"]: 100 * run["oa"] for run in runs[f"kept-{kept}"]} for kept in KEPT]
            common = sorted(set.intersection(*map(set, found)))
            for seed in common:
                panel.plot(KEPT, [each[seed] for each in found], color=FAINT, zorder=1)
            values = [[each[seed] for seed in common] for each in found]
            panel.plot(KEPT, [fmean(each) for each in values], marker="o", **MODELS[1])
            panel.set_xscale("log", base=2)
            panel.set_xticks(KEPT, [str(kept) for kept in KEPT])
            panel.minorticks_off()
            panel.set_title(f"{SPLITS[kind]}, {len(common)} splits")
            panel.set_xlabel("kept coefficients K")
        panels[0].set_ylabel("overall accuracy (%)")
        return figure
