"""The page of the classification study: tables and figures from the records."""

from __future__ import annotations

from pathlib import Path

from tcpvit.studies.study import Places


def write(places: Places) -> list[Path]:
    """Write the page and its figures."""
    return []
