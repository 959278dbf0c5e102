"""What the program writes for the study of conversion: one table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from experiments.pages import Blocks, markdown, write_pages
from tcpvit.compare.study import Places, Record
from tcpvit.tables import Table, Written, duration

LABELS = {
    "teacher": "teacher, dense",
    "distilled": "projected at C = 3 and distilled",
    "scratch": "c-products from scratch, within the time of both",
    "scratch-short": "c-products from scratch, within the time of the distillation",
}


def write(places: Places) -> list[Path]:
    """Fill the page."""
    return write_pages(places, blocks(places), {})


def blocks(places: Places) -> dict[str, Blocks]:
    """The block of the page, from the runs of the first seed."""
    found = {record["name"]: record for record in places.records() if not record["seed"]}
    return {"conversion.md": {"conversion": markdown(table({name: found[name] for name in LABELS if name in found}))}}


def table(records: Mapping[str, Record]) -> Table:
    """A line for each model; the projected one before it learned, too."""
    columns = ["model", "parameters", "epochs", "CPU time", "weights' energy kept", "top-1"]
    found = Table("conversion", "Top-1 on CIFAR-10, one seed", columns)
    for name, record in records.items():
        if "top1_projected" in record:
            kept, top1 = _percent(record["energy_kept"]), _percent(record["top1_projected"])
            found.add("projected at C = 3", record["parameters"], 0, None, kept, top1)
        time, top1 = Written(duration(record["cpu_seconds"])), _percent(record["top1_last"])
        found.add(LABELS[name], record["parameters"], record["epochs"], time, None, top1, strong=name == "distilled")
    return found


def _percent(fraction: float) -> Written:
    return Written(f"{100 * fraction:.1f} %")
