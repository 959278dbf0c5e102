"""What the program writes for the study of volumes and clips: tables and figures, none of its sentences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.pages import NOTHING, Blocks, figure, markdown, write_pages
from experiments.volumes import tables
from experiments.volumes.figures import draw_signs
from tcpvit.analysis import compare_orders
from tcpvit.compare.study import Places
from tcpvit.figures.style import save_figure
from tcpvit.files import read_json
from tcpvit.models import ViTConfig

VIDEO, COST = Path("bench/video.json"), Path("bench/volumes.json")  # beside the records
SIGNS = (
    "A digit that moves, frame by frame; its hat slices along time (red above zero, blue below); the same backwards."
)
RECOVERY = "The last frame of two surveillance clips, as it is, as it was given, and as each product recovers it."
COLOUR = ViTConfig("std", img_size=(8, 32, 32), patch_size=(4, 8, 8), embed_dim=384, num_heads=2, num_classes=10)


def write(places: Places) -> list[Path]:
    """Draw the figure and fill the page."""
    files = save_figure(draw_signs(), places.pages / "volumes_signs", ["webp"])
    return [*write_pages(places, blocks(places), {}), *files]


def blocks(places: Places) -> dict[str, Blocks]:
    """The blocks of the page."""
    records, beside = places.records(), places.results.parent
    return {
        "volumes.md": {
            "signs": figure("volumes_signs", SIGNS, places.pages, "webp"),
            "digits": markdown(tables.digits_table(records)),
            "adrenal": markdown(tables.adrenal_table(records), tables.published_table()),
            "recovery": _of(beside / VIDEO, tables.recovery_tables),
            "recovery_picture": figure("volumes_recovery", RECOVERY, places.pages, "webp"),
        },
        "volumes_runs.md": {
            "rates": markdown(tables.rates_table(records)),
            "orders": markdown(compare_orders(COLOUR)),
            "cost": _of(beside / COST, tables.cost_tables),
        },
    }


def _of(file: Path, make: Any) -> str:
    if not file.is_file():
        return NOTHING
    record = read_json(file)
    return f"{markdown(*make(record))}\n\n`{record['command']}`, torch {record['torch']}."
