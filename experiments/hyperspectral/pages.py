"""What the program writes for the hyperspectral study."""

from __future__ import annotations

from pathlib import Path

from experiments.pages import Blocks, write_pages
from tcpvit.compare.study import Places


def write(places: Places) -> list[Path]:
    """Fill the page."""
    return write_pages(places, blocks(places), {})


def blocks(places: Places) -> dict[str, Blocks]:
    """The blocks of the page."""
    return {"hyperspectral.md": {}}
