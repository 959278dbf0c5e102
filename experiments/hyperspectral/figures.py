"""Accuracy of W against the number of kept coefficients."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

from experiments.hyperspectral.tables import SPLITS, Runs
from tcpvit.figures.style import COLUMN_WIDTH, FAINT, MODELS, TEXT_WIDTH, house_style

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure

KEPT = (8, 16, 32)


def draw_kept(groups: Mapping[str, Runs]) -> Figure | None:
    """A panel for each split: overall accuracy on test pixels against K, each split a line, their mean in front."""
    groups = {kind: runs for kind, runs in groups.items() if all(f"kept-{kept}" in runs for kept in KEPT)}
    if not groups:
        return None
    with house_style() as Figure:
        figure = Figure(figsize=(TEXT_WIDTH if len(groups) > 1 else COLUMN_WIDTH, 2.3), layout="constrained")
        panels = figure.subplots(1, len(groups), squeeze=False)[0]
        for panel, (kind, runs) in zip(panels, groups.items(), strict=True):
            found = [{run["seed"]: 100 * run["oa"] for run in runs[f"kept-{kept}"]} for kept in KEPT]
            common = sorted(set.intersection(*map(set, found)))
            for seed in common:
                panel.plot(KEPT, [each[seed] for each in found], color=FAINT, zorder=1)
            panel.plot(KEPT, [fmean(each[seed] for seed in common) for each in found], marker="o", **MODELS[1])
            panel.set_xscale("log", base=2)
            panel.set_xticks(KEPT, [str(kept) for kept in KEPT])
            panel.minorticks_off()
            panel.set_title(f"{SPLITS[kind]}, {len(common)} split{'s' * (len(common) > 1)}")
            panel.set_xlabel("kept coefficients K")
        panels[0].set_ylabel("overall accuracy (%)")
        return figure
