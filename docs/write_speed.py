"""Write the tables and figures of docs/speed.md from a benchmark that was run.

    python benchmarks/models.py
    tcpvit bench --parts components --out results/bench/components.json    to profile again by itself
    python docs/write_speed.py

Reads models.json, components.json and long_tubes.json of results/bench, writes what stands between markers such as
`<!-- targets -->` and `<!-- /targets -->`, and the figures docs/figures/speed_*.svg and .png.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.speed.page import blocks, draw
from benchmarks.speed.record import Record
from tcpvit.compare.study import write_block
from tcpvit.tables import Table, Written, render

ROOT = Path(__file__).parent.parent
RECORD = ROOT / "results" / "bench" / "models.json"
COMPONENTS = ROOT / "results" / "bench" / "components.json"
LONG_TUBES = ROOT / "results" / "bench" / "long_tubes.json"
PAGE = ROOT / "docs" / "speed.md"
FIGURES = ROOT / "docs" / "figures"


def main() -> None:
    """Write everything."""
    record = load()
    with TemporaryDirectory() as folder:
        for figure in draw(record, Path(folder)):
            shutil.copy(figure, FIGURES / f"speed_{figure.name}")
    PAGE.write_text(page(record), encoding="utf-8")
    if LONG_TUBES.is_file():
        write_block(PAGE, "long tubes", long_tubes(json.loads(LONG_TUBES.read_text(encoding="utf-8"))))


def load() -> Record:
    """The benchmark, with the newer profile if there is one."""
    record = Record.load(RECORD)
    if COMPONENTS.is_file():
        profiled = Record.load(COMPONENTS)
        record.components = profiled.components
        record.facts["profiled"] = profiled.facts
    return record


def long_tubes(bench: dict[str, Any]) -> str:
    """The share of the peak that each way to multiply many small slices reaches."""
    columns = ["product", "rows", "threads", *bench["rows"][0]["share_of_peak"]]
    title = f"Share of the machine's peak, useful FLOPs only, C = {bench['tube']}"
    table = Table("long_tubes", title, columns)
    for row in bench["rows"]:
        shares = [Written(f"{100 * share:.0f} %") for share in row["share_of_peak"].values()]
        table.add(f"{row['layer']}, {row['d_in']} → {row['d_out']}", row["rows"], row["threads"], *shares)
    table.notes.append(f"`{bench['command']}`, {bench['date']}, commit {bench['commit']}, torch {bench['torch']}.")
    return render([table], "markdown")


def page(record: Record) -> str:
    """What the page should say."""
    text = PAGE.read_text(encoding="utf-8")
    of_profile = record.facts.get("profiled", record.facts)
    profile = f"`{of_profile['command']}`, {of_profile['date']}, commit {of_profile['commit']}."
    for name, block in {**blocks(record), "profile": profile}.items():
        between = f"<!-- {name} -->\n{block}\n<!-- /{name} -->"
        text = re.sub(rf"<!-- {name} -->.*<!-- /{name} -->", lambda _, block=between: block, text, flags=re.DOTALL)
    return text


if __name__ == "__main__":
    main()
