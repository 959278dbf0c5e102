"""The page of the study of conversion: one table, and in plain words whether projecting was worth it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tcpvit.studies.intervals import signed
from tcpvit.studies.study import Places, Record
from tcpvit.tables import Table, Written, render
from tcpvit.training.checkpoint import write_atomically
from tcpvit.training.progress import duration

LABELS = {
    "teacher": "teacher, dense",
    "distilled": "projected at C = 3 and distilled",
    "scratch": "c-products from scratch, within the time of both",
    "scratch-short": "c-products from scratch, within the time of the distillation",
}

Records = Mapping[str, Record]  # by name


def write(places: Places) -> list[Path]:
    """Write `conversion.md` with the runs there are."""
    found = {record["name"]: record for record in places.records() if not record["seed"]}
    records = {name: found[name] for name in LABELS if name in found}
    if not records:
        return []
    page = places.pages / "conversion.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(page, ("\n\n".join(_parts(records)) + "\n").encode())
    return [page]


def _parts(records: Records) -> list[str]:
    first = next(iter(records.values()))
    options = ", ".join(f"{key} {value}" for key, value in first["timm_options"].items())
    about = (
        f"Is a converted model worth its teacher? A ViT of timm (`{first['timm']}` with {options}) is trained on "
        f"{first['dataset']} ({first['train_images']:,} training pictures), projected by `tensorize_` at C = 3 and "
        f"distilled. Beside it the same c-product model is trained from nothing, within the time that teacher and "
        f"distillation took together, and within that of the distillation alone. One seed, {first['threads']} thread, "
        f"{first['precision']}; top-1 of the last epoch on the {first['test_images']:,} test pictures, which chose "
        f"nothing. Times are those of the processor, which other programs may have shared: they are rough."
    )
    again = "`tcpvit reproduce conversion` does it all again; `results/conversion/` holds the records."
    return ["# Converting a trained model", about, render([table(records)], "markdown"), *words(records), again]


def table(records: Records) -> Table:
    """A line for each model; the projected one before it learned, too."""
    found = Table("conversion", "Top-1 on CIFAR-10", ["model", "parameters", "epochs", "time", "top-1 %"])
    for name, record in records.items():
        if "top1_projected" in record:
            projected = Written(f"{100 * record['top1_projected']:.1f}")
            found.add("projected at C = 3", record["parameters"], 0, Written("—"), projected)
        time = Written(duration(record["cpu_seconds"]))
        top1 = Written(f"{100 * record['top1_last']:.1f}")
        found.add(LABELS[name], record["parameters"], record["epochs"], time, top1, strong=name == "distilled")
    return found


def words(records: Records) -> list[str]:
    """What the numbers say, as far as there are any."""
    if "distilled" not in records:
        return []
    distilled = records["distilled"]
    said = [
        f"The projection keeps {100 * distilled['energy_kept']:.1f} % of the energy of the converted weights and "
        f"leaves {100 * distilled['top1_projected']:.1f} % of top-1; {distilled['epochs']} epochs with the teacher "
        f"bring it to {100 * distilled['top1_last']:.1f} %."
    ]
    both = [records[name]["cpu_seconds"] for name in ("distilled", "teacher") if name in records]
    for name, when, time in (
        ("scratch-short", "For whoever has a teacher already", both[0]),
        ("scratch", "With the teacher's own training counted", sum(both)),
    ):
        if name in records:
            lead = 100 * (distilled["top1_last"] - records[name]["top1_last"])
            verdict = "projecting and distilling wins" if lead > 0 else "training from scratch wins"
            said.append(
                f"{when}: {verdict} ({signed(lead)} points against {records[name]['epochs']} epochs from scratch, "
                f"which took {100 * records[name]['cpu_seconds'] / time:.0f} % of the time)."
            )
    return said
