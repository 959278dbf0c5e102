"""What the program writes for the study of volumes and clips: tables and figures, none of its sentences."""

from __future__ import annotations

from pathlib import Path

from experiments.pages import Blocks, markdown, write_pages
from experiments.volumes import tables
from tcpvit.compare.study import Places


def write(places: Places) -> list[Path]:
    """Fill the page."""
    return write_pages(places, blocks(places), {})


def blocks(places: Places) -> dict[str, Blocks]:
    """The blocks of the page."""
    records = places.records()
    return {
        "volumes.md": {
            "digits": markdown(tables.digits_table(records)),
            "adrenal": markdown(tables.adrenal_table(records)),
        }
    }
