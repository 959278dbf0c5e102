"""What the program writes for the study of slices: figures and tables, none of its sentences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from experiments.classification.tables import rate_of
from experiments.figures.slices import (
    attention_image,
    draw_ablation,
    draw_classes,
    draw_energy,
    draw_gradients,
    draw_slice_images,
    slice_images,
)
from experiments.pages import Blocks, figure, markdown, write_pages
from tcpvit.algebra import get_transform
from tcpvit.compare.intervals import signed
from tcpvit.compare.study import Places, Record
from tcpvit.figures.style import save_figure
from tcpvit.tables import Ratio, Table, Written, duration

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LABELS = {"paper": "the paper's TCP-ViT", "plus": "tcp_vit_cifar_plus"}
SHORT = ("entry", "exit", "new head")
WAYS = {"entry": "at the entry", "exit": "at the exit", "new head": "at the exit, with a new head"}
GAIN = 2.0  # contrasts between channels are shown so much stronger than they are

Records = Mapping[str, Record]  # by the label of the model


def write(places: Places) -> list[Path]:
    """Draw the figures and fill the page, with the models there are."""
    records = _by_label(places)
    if not records:
        return []
    files = [
        file
        for name, drawn in figures(records).items()
        for file in save_figure(drawn, places.pages / f"slices_{name}", ["webp" if name == "images" else "svg"])
    ]
    return [*write_pages(places, blocks(places), {}), *files]


def _by_label(places: Places) -> dict[str, Record]:
    """The first seed of each model, the paper's first."""
    records: dict[str, Record] = {}
    for record in _in_order(places.records()):
        name: str = record["name"]
        records.setdefault(LABELS.get(name, name), record)
    return records


def blocks(places: Places) -> dict[str, Blocks]:
    """The blocks of the page."""
    records = _by_label(places)

    def drawing(name: str, caption: str) -> str:
        return figure(f"slices_{name}", caption, places.pages, "webp" if name == "images" else "svg")

    return {
        "slices.md": {
            "images": drawing("images", "Test images, their three slices, and where each slice looks."),
            "ablation figure": drawing("ablation", "Accuracy with some of the slices."),
            "ablation": markdown(ablation_table(records)),
            "classes": drawing("classes", "Change of each class's accuracy without each slice, with a new head."),
            "shares": markdown(share_table(records)),
            "energy": drawing("energy", "Share of each slice in the energy, from the image to the last block."),
            "gradients figure": drawing("gradients", "Norm of the gradient by slice against the step."),
            "gradients": markdown(gradient_table(records)),
            "likeness": markdown(likeness_table(records)),
        },
        "slices_runs.md": {"blocks": markdown(block_table(records)), "runs": markdown(runs_table(records))},
    }


def _in_order(records: Iterable[Record]) -> list[Record]:
    """The paper's model first."""
    return sorted(records, key=lambda record: list(LABELS).index(record["name"]) if record["name"] in LABELS else 99)


# ---------------------------------------------------------------------------------------------------- figures


def figures(records: Records) -> dict[str, Figure]:
    """Every figure of the page by its name."""
    ablation = {
        label: {
            WAYS[way]: {name: 100 * each["top1"] for name, each in found.items()}
            for way, found in record["ablation"].items()
        }
        for label, record in records.items()
    }
    first = next(iter(records.values()))
    return {
        "images": _draw_images(records),
        "ablation": draw_ablation(ablation, chance=100 / len(first["classes"])),
        "classes": draw_classes({label: class_changes(one) for label, one in records.items()}, first["classes"]),
        "energy": draw_energy({label: _places(record) for label, record in records.items()}),
        "gradients": draw_gradients(
            {label: (one["gradients"]["steps"], one["gradients"]["norms"]) for label, one in records.items()}
        ),
    }


def _draw_images(records: Records) -> Figure:
    """Some images, their slices, and where each model looks."""
    shown = next(iter(records.values()))["pictures"]
    pixels = [_levels(image["pixels"], 3) for image in shown]
    matrix = get_transform("dct", 3).matrix.numpy()
    alone = [slice_images(each, matrix, GAIN) for each in pixels]
    groups = {
        "image": {"": pixels},
        "its slices": {str(k): [slices[k] for slices in alone] for k in range(3)},
    }
    for record in records.values():
        maps = [[_levels(text) for text in image["attention"]] for image in record["pictures"]]
        columns = [str(k) for k in range(len(maps[0]))] if len(maps[0]) > 1 else ["all"]
        title = "where they look (paper)" if len(maps[0]) > 1 else record["name"]
        groups[title] = {
            column: [attention_image(each, found[k]) for each, found in zip(pixels, maps, strict=True)]
            for k, column in enumerate(columns)
        }
    return draw_slice_images(groups, [image["label"] for image in shown])


def _levels(text: str, *channels: int) -> np.ndarray:
    """A square map (H, W), or a square image (H, W, channels), with values 0..1."""
    levels = np.frombuffer(bytes.fromhex(text), np.uint8) / 255
    side = math.isqrt(len(levels) // math.prod(channels))
    return levels.reshape(side, side, *channels)


def class_changes(record: Record) -> list[list[float]]:
    """How the accuracy of each class changes, in points, without each slice and with a new head: (C, classes)."""
    found = record["ablation"]["new head"]
    whole = found["all"]["by_class"]
    without = [each["by_class"] for name, each in found.items() if name.startswith("without")]
    return [[100 * (one - before) for one, before in zip(each, whole, strict=True)] for each in without]


# ---------------------------------------------------------------------------------------------------- tables


def ablation_table(records: Records) -> Table:
    """Accuracies by what is left of the slices, in each way of taking them away."""
    columns = ["slices left", *(f"{record['name']}: {way}" for record in records.values() for way in SHORT)]
    table = Table("ablation", "Top-1 by the slices that are left", columns)
    for name in next(iter(records.values()))["ablation"]["entry"] if records else ():
        cells = [_percent(record["ablation"][way][name]["top1"]) for record in records.values() for way in WAYS]
        table.add(name, *cells, strong=name == "all")
    return table


def share_table(records: Records) -> Table:
    """How the energy is divided among the slices, before and after."""
    table = Table("shares", "Share of each slice in the energy", ["where", *_slices(records)])
    for i, (label, record) in enumerate(records.items()):
        *_, last = record["energy"]
        if not i:
            table.add("the test images", *map(_percent, shares(record["energy"]["picture"])))
        table.add(f"{label}, after the last block", *map(_percent, shares(record["energy"][last])))
    return table


def gradient_table(records: Records) -> Table:
    """The gradients of the slices before training, and over its steps against the largest."""
    table = Table("gradients", "Norm of the gradient by slice", ["model", "when", *_slices(records)])
    for label, record in records.items():
        for what, norms in record["start"].items():
            table.add(label, f"before training, {what.replace('norms', 't-LayerNorms')}", *_beside_first(norms))
        steps = np.array(record["gradients"]["norms"])  # (C, steps)
        relative = steps / steps.max(0)
        table.add(label, "median of the steps, share of the largest", *map(_percent, np.median(relative, axis=1)))
        table.add(label, "lowest of the steps, share of the largest", *map(_percent, relative.min(1)))
    return table


def block_table(records: Records) -> Table:
    """The gradient of each block's slices against that of slice 0, median of the second half of training."""
    table = Table("blocks", "Norm of the gradient by block, slice 0 as 1", ["model", "block", *_slices(records)])
    for label, record in records.items():
        for place, norms in record["gradients"]["late_by_block"].items():
            name, _, number = place.partition(".")
            block = f"block {int(number) + 1}" if name == "blocks" else name.replace("_", " ")
            table.add(label, block, *_beside_first(norms))
    return table


def _slices(records: Records) -> list[str]:
    tube = max((len(record["energy"]["picture"]) for record in records.values()), default=0)
    return [f"slice {k}" for k in range(tube)]


def likeness_table(records: Records) -> Table:
    """How much the attention maps of slices correlate, where there is one for each."""
    table = Table("likeness", "Correlation of attention maps", ["model", "slices", "correlation"])
    for label, record in records.items():
        found = np.array(record["likeness"])
        for k in range(len(found)):
            for i in range(k):
                table.add(label, f"{i} and {k}", Written(signed(found[i, k], 2)))
    return table


def runs_table(records: Records) -> Table:
    """Where the numbers come from."""
    columns = ["model", "parameters", "lr", "epochs", "seed", "top-1, last", "CPU time", "commit", "command"]
    table = Table("runs", "The runs", columns)
    for label, record in records.items():
        time, commit = record["cpu_seconds"], f"`{(record['commit'] or '–')[:10]}`"
        about = record["parameters"], rate_of(record), record["epochs"], record["seed"], _percent(record["top1_last"])
        spent = Written(duration(time)) if time else None
        table.add(label, *about, spent, commit, f"`{record['command']}`")
    return table


def _beside_first(norms: Sequence[float]) -> list[Ratio | None]:
    return [Ratio.of(norm, norms[0]) for norm in norms]


def _places(record: Record) -> dict[str, list[float]]:
    """The energies by place; records call the image a picture."""
    return {place.replace("picture", "image"): values for place, values in record["energy"].items()}


def shares(values: Iterable[float]) -> list[float]:
    """Each as a fraction of their sum.

    >>> shares([3.0, 1.0])
    [0.75, 0.25]
    """
    found = list(values)
    return [value / sum(found) for value in found]


def _percent(fraction: float) -> Written:
    return Written(f"{100 * fraction:.1f} %")
