"""Write the tables and figures of docs/speed.md from a benchmark that was run.

    python benchmarks/models.py
    python docs/write_speed.py

Reads results/bench/models.json, writes what stands between markers such as `<!-- targets -->` and `<!-- /targets -->`,
and the figures docs/figures/speed_*.svg and .png.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from tcpvit.studies.speed.page import blocks, draw
from tcpvit.studies.speed.record import Record

ROOT = Path(__file__).parent.parent
RECORD = ROOT / "results" / "bench" / "models.json"
PAGE = ROOT / "docs" / "speed.md"
FIGURES = ROOT / "docs" / "figures"


def main() -> None:
    """Write everything."""
    record = Record.load(RECORD)
    with TemporaryDirectory() as folder:
        for figure in draw(record, Path(folder)):
            shutil.copy(figure, FIGURES / f"speed_{figure.name}")
    PAGE.write_text(page(record), encoding="utf-8")


def page(record: Record) -> str:
    """What the page should say."""
    text = PAGE.read_text(encoding="utf-8")
    for name, block in blocks(record).items():
        between = f"<!-- {name} -->\n{block}\n<!-- /{name} -->"
        text = re.sub(rf"<!-- {name} -->.*<!-- /{name} -->", lambda _, block=between: block, text, flags=re.DOTALL)
    return text


if __name__ == "__main__":
    main()
