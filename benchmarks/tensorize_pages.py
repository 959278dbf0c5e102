"""Write the measured tables of docs/tensorize.md and docs/results/tensorize_tables.md.

    python -m benchmarks.tensorize_pages

What `tensorize_` makes of each architecture at its full size is counted on the meta device, without weights or memory.
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

from experiments.pages import DOCS, ROOT, Blocks, fill, markdown
from tcpvit.compat import repair_torchvision
from tcpvit.tables import Ratio, Table, Written, render
from tcpvit.tensorize import Report, tensorize_

TUBES = {"ViTMAEForPreTraining": 4, "SegformerForSemanticSegmentation": 4}  # 3 divides none of their widths
BENCH = ROOT / "results" / "bench" / "tensorize.json"
KNOWN = (  # the architectures of the short table
    *("timm `vit_tiny_patch16_224`", "timm `vit_base_patch16_clip_224`", "timm `vit_small_patch14_dinov2`"),
    *("timm `deit3_small_patch16_224`", "timm `swin_tiny_patch4_window7_224`", "timm `swinv2_tiny_window8_256`"),
    *("timm `beit_base_patch16_224`", "timm `samvit_base_patch16_224`", "timm `mobilevitv2_050`"),
    *("torchvision `vit_b_16`", "transformers `ViTForImageClassification`", "transformers `BertForMaskedLM`"),
    "transformers `GPT2LMHeadModel`",
)
TABLES = DOCS / "results" / "tensorize_tables.md"
Row = dict[str, Any]  # as benchmarks/tensorize.py writes them
sys.path.insert(0, str(ROOT / "tests" / "tensorize"))
repair_torchvision()

from architectures import HUGGING_FACE, TIMM  # noqa: E402


def main() -> None:
    """Fill the blocks of both pages."""
    bench = json.loads(BENCH.read_text(encoding="utf-8"))
    for pages in (pages_of_speed(bench), pages_of_architectures()):
        for page, blocks in pages.items():
            print(fill(page, blocks))


def pages_of_speed(bench: dict[str, Any]) -> dict[Path, Blocks]:
    """The short table, C = 3 on one thread; all tables, and how they were measured."""
    models = [row for row in bench["models"] if row["threads"] == 1 and "C = 3" in row["contender"]]
    layers = [row for row in bench["layers"] if row["threads"] == 1 and row["tube"] == 3]
    return {
        DOCS / "tensorize.md": {"speed": markdown(model_speeds(models, "1 thread"), layer_speeds(layers, "1 thread"))},
        TABLES: {"measured": markdown(about(bench)), "speed": "\n\n".join(_by_threads(bench))},
    }


def pages_of_architectures() -> dict[Path, Blocks]:
    """Some architectures that everybody knows, and all."""
    whole = architectures()
    short = Table(whole.name, whole.title, whole.columns, [row for row in whole.rows if row.cells[0] in KNOWN])
    return {
        DOCS / "tensorize.md": {"architectures": markdown(short)},
        TABLES: {"architectures": markdown(whole)},
    }


def about(bench: dict[str, Any]) -> Table:
    """How it was measured."""
    table = Table("measured", "How it was measured", ["", "value"])
    table.add("command", f"`{bench['command']}`")
    table.add("date and commit", f"{bench['date']}, {bench['commit']}")
    table.add("versions", ", ".join(f"{name} {version}" for name, version in bench["versions"].items()))
    table.add("vectors", bench["vectors"])
    table.add("rows that layers see, images that models see", f"{bench['rows']}, {bench['batch']} of 224×224, float32")
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
