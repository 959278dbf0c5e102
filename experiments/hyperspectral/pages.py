"""What the program writes for the hyperspectral study: tables and a figure, none of its sentences."""

from __future__ import annotations

from pathlib import Path

from experiments.hyperspectral.figures import draw_kept
from experiments.hyperspectral.tables import (
    SPLITS,
    ablation_table,
    choice_table,
    lever_table,
    model_table,
    of_group,
    pair_table,
    scene_table,
)
from experiments.pages import Blocks, figure, markdown, write_pages
from tcpvit.compare.study import Places
from tcpvit.figures.style import save_figure
from tcpvit.files import read_json

STEM = "hyperspectral_kept"
WHOLE = Path("bench/hyperspectral.json")  # beside the records: the whole scene, predicted by each model


def write(places: Places) -> list[Path]:
    """Draw the figure and fill the page."""
    records = places.records()
    drawn = draw_kept({kind: of_group(records, f"ablate-{kind}") for kind in SPLITS})
    files = [] if drawn is None else save_figure(drawn, places.pages / STEM, ["svg"])
    return [*write_pages(places, blocks(places), {}), *files]


def blocks(places: Places) -> dict[str, Blocks]:
    """The blocks of the page."""
    records, whole = places.records(), places.results.parent / WHOLE
    return {
        "hyperspectral.md": {
            "pairs": markdown(pair_table(records)),
            "models": markdown(model_table(records)),
            "levers": markdown(lever_table(records)),
            "ablations": markdown(ablation_table(records)),
            "kept": figure(STEM, "W with 8 to 64 coefficients of each spectrum; grey: single splits.", places.pages),
            "chosen": markdown(choice_table(records)),
            "scene": markdown(scene_table(read_json(whole)["models"] if whole.is_file() else [])),
        }
    }
