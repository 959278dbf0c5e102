"""What the program writes for the hyperspectral study: tables and a figure, none of its sentences."""

from __future__ import annotations

from pathlib import Path

from experiments.hyperspectral.figures import draw_kept
from experiments.hyperspectral.tables import (
    IN_SHORT,
    SPLITS,
    Runs,
    ablation_table,
    ablations,
    choice_table,
    lever_table,
    model_table,
    pair_table,
    scene_table,
)
from experiments.pages import Blocks, figure, markdown, write_pages
from tcpvit.compare.study import Places, Record
from tcpvit.figures.style import save_figure
from tcpvit.files import read_json

STEM = "hyperspectral_kept"
WHOLE = Path("bench/hyperspectral.json")  # beside the records: the whole scene, predicted by each model


def write(places: Places) -> list[Path]:
    """Draw the figure and fill the page."""
    records = places.records()
    drawn = draw_kept({kind: _by_kept(records, kind) for kind in SPLITS})
    files = [] if drawn is None else save_figure(drawn, places.pages / STEM, ["svg"])
    return [*write_pages(places, blocks(places), readme(places)), *files]


def _by_kept(records: list[Record], kind: str) -> Runs:
    """The ablation of K; W as chosen is one of its points."""
    runs = ablations(records, kind)
    chosen = {f"kept-{run['settings']['options']['kept']}": runs["w"] for run in runs["w"]}
    return {**chosen, **runs}


def readme(places: Places) -> Blocks:
    """The block of the README."""
    return {"scenes": markdown(model_table(places.records(), IN_SHORT))}


def blocks(places: Places) -> dict[str, Blocks]:
    """The blocks of the page, and of the page with ablations and settings."""
    records, whole = places.records(), places.results.parent / WHOLE
    return {
        "hyperspectral.md": {
            "pairs": markdown(pair_table(records)),
            "models": markdown(model_table(records)),
            "scene": markdown(scene_table(read_json(whole)["models"] if whole.is_file() else [])),
        },
        "hyperspectral_runs.md": {
            "ablations": markdown(ablation_table(records)),
            "levers": markdown(lever_table(records)),
            "kept": figure(STEM, "W with 8 to 32 coefficients of each spectrum.", places.pages),
            "chosen": markdown(choice_table(records)),
        },
    }
