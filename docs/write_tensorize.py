"""Write the tables of docs/tensorize.md: what `tensorize_` makes of each architecture at its full size, and the speed.

    python docs/write_tensorize.py

The models are built on the meta device, without weights or memory, and converted there: counting needs no numbers.
The architectures are those that tests/tensorize converts, runs and brings back at a small size. The speed is that of
results/bench/tensorize.json, which benchmarks/tensorize.py writes.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tcpvit.compare.study import write_block
from tcpvit.compat import repair_torchvision
from tcpvit.tables import Ratio, Table, Written, render
from tcpvit.tensorize import Report, tensorize_

ROOT = Path(__file__).parent.parent
TUBES = {"ViTMAEForPreTraining": 4, "SegformerForSemanticSegmentation": 4}  # 3 divides none of their widths
PAGE = ROOT / "docs" / "tensorize.md"
BENCH = ROOT / "results" / "bench" / "tensorize.json"
Row = dict[str, Any]  # as benchmarks/tensorize.py writes them
sys.path.insert(0, str(ROOT / "tests" / "tensorize"))
repair_torchvision()

from architectures import HUGGING_FACE, TIMM  # noqa: E402


def main() -> None:
    """Write the page's blocks anew."""
    write_block(PAGE, "architectures", render([architectures()], "markdown"))
    if BENCH.is_file():
        write_block(PAGE, "speed", speed(json.loads(BENCH.read_text(encoding="utf-8"))))


def speed(bench: dict[str, Any]) -> str:
    """How it was measured, what was asked for, and the speed-ups of layers and models."""
    versions = ", ".join(f"{name} {version}" for name, version in bench["versions"].items())
    about = (
        f"`{bench['command']}`, {bench['date']}, commit {bench['commit']}; {versions}; {bench['vectors']}. Layers see "
        f"{bench['rows']} rows, models {bench['batch']} images of 224×224, in float32."
    )
    return "\n\n".join([about, render([asked(bench["targets"])], "markdown"), *_by_threads(bench)])


def asked(targets: dict[str, Any]) -> Table:
    """What was to be reached, each with its worst case."""
    table = Table(
        "targets", "Targets, by their worst case, forward or forward+backward", ["", "asked", "worst", "where"]
    )
    for name, outcome in targets.items():
        if outcome["worst"] is None:  # nothing of that kind was measured
            continue
        met = "met" if outcome["met"] else "missed"
        table.add(f"{name}: {met}", Ratio(outcome["target"]), Ratio(outcome["worst"]), outcome["where"])
    return table


def _by_threads(bench: dict[str, Any]) -> Iterator[str]:
    for threads in dict.fromkeys(row["threads"] for row in bench["layers"] + bench["models"]):
        title = f"{threads} thread{'s' if threads > 1 else ''}"
        layers = [row for row in bench["layers"] if row["threads"] == threads]
        models = [row for row in bench["models"] if row["threads"] == threads]
        yield render([layer_speeds(layers, title), model_speeds(models, title)], "markdown")


def layer_speeds(rows: list[Row], title: str) -> Table:
    """A line for each layer and tube, a column for each contender."""
    others = ("drop-in", "block-diagonal", "low rank", "tensorly-torch")
    table = Table("layers", f"Layers, forward / forward+backward against nn.Linear, {title}", ["layer", "C", *others])
    for of, tube in dict.fromkeys((row["of"], row["tube"]) for row in rows):
        found = [row for row in rows if (row["of"], row["tube"]) == (of, tube)]
        table.add(of, tube, *(_best([row for row in found if row["contender"].startswith(name)]) for name in others))
    table.notes.append("tensorly-torch is the fastest of its factorisations, each by itself forward and with backward.")
    return table


def model_speeds(rows: list[Row], title: str) -> Table:
    """A line for each model and way of converting it."""
    columns = ["model", "converted", "forward", "forward+backward", "FLOPs"]
    table = Table("models", f"Models against timm's own, {title}", columns)
    for row in rows:
        if row["contender"] != "dense":
            ratios = (Ratio(row[name]) for name in ("forward_speedup", "training_speedup", "promise"))
            table.add(f"`{row['of']}`", row["contender"], *ratios)
    return table


def _best(rows: list[Row]) -> Written:
    forward, training = (max(row[name] for row in rows) for name in ("forward_speedup", "training_speedup"))
    return Written(f"{forward:.2f} / {training:.2f}")


def architectures() -> Table:
    """One row for each model."""
    columns = ["model", "tube", "convs", "parameters", "after", "ratio", "layers converted", "left as they are"]
    table = Table("architectures", "Architectures as their libraries build them", columns)
    for name, tube, convs, build in models():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            report = convert(build, tube, convs)
        done = sum(row.done for row in report.rows)
        table.add(
            name,
            tube,
            convs,
            report.parameters_before,
            report.parameters_after,
            Ratio(report.ratio),
            f"{done} of {len(report.rows)}",
            left(report),
        )
    table.notes.append("Layers counts the linear layers, and the convolutions where `convs` takes them in.")
    return table


def models() -> Iterator[tuple[str, int, str, Callable[[], nn.Module]]]:
    """Name, tube, convolutions and builder of each."""
    import timm
    import torchvision
    import transformers

    for case in TIMM:
        yield f"timm `{case.name}`", case.tube, case.convs, lambda name=case.name: timm.create_model(name)
    for name in ("vit_b_16", "swin_t"):
        yield f"torchvision `{name}`", 3, "none", lambda name=name: torchvision.models.get_model(name)
    for name in HUGGING_FACE:
        cls = getattr(transformers, name)
        yield f"transformers `{name}`", TUBES.get(name, 3), "none", lambda cls=cls: cls(cls.config_class())


def convert(build: Callable[[], nn.Module], tube: int, convs: str) -> Report:
    """The report of a model that exists only in outline; some compute while they are built and need memory."""
    try:
        with torch.device("meta"):
            model = build()
    except (RuntimeError, NotImplementedError):
        model = build()
    return tensorize_(model, tube=tube, convs=convs, init="fresh", example=False)


def left(report: Report) -> str:
    """How many layers were left for each reason."""
    reasons = Counter(
        "head" if reason.startswith("head") else "tied" if reason.startswith("tied") else reason
        for reason in report.skipped.values()
    )
    widths = Counter({reason: n for reason, n in reasons.items() if "multiple of the tube" in reason})
    found = {reason: n for reason, n in reasons.items() if reason not in widths}
    if widths:
        found["width"] = widths.total()
    return ", ".join(f"{n} {reason}" for reason, n in found.items()) or "none"


if __name__ == "__main__":
    main()
