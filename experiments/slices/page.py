"""The page of the study of slices: figures, tables and plain words, all from the records."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from experiments.classification.tables import rate_of
from experiments.figures.slices import (
    attention_picture,
    draw_ablation,
    draw_classes,
    draw_energy,
    draw_gradients,
    draw_slice_pictures,
    slice_pictures,
)
from tcpvit.algebra import get_transform
from tcpvit.compare.intervals import signed
from tcpvit.compare.study import Places, Record, figure_block
from tcpvit.figures.style import save_figure
from tcpvit.files import write_atomically
from tcpvit.tables import Ratio, Table, Written, duration, render

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LABELS = {"paper": "the paper's TCP-ViT", "plus": "tcp_vit_cifar_plus"}
WAYS = {"entry": "at the entry", "exit": "at the exit", "new head": "at the exit, with a new head"}
GAIN = 2.0  # contrasts between channels are shown so much stronger than they are
VANISHED, ALIKE = 0.1, 0.5  # a slice whose gradient is below this part of the largest: vanishes, is not alike
LEVEL = 0.01  # shares of the largest gradient that differ by less are not told apart

Records = Mapping[str, Record]  # by the label of the model


def write(places: Places) -> list[Path]:
    """Write `slices.md` and its figures, with the models there are."""
    records: dict[str, Record] = {}
    for record in _in_order(places.records()):
        name: str = record["name"]
        records.setdefault(LABELS.get(name, name), record)  # the first seed
    if not records:
        return []
    page = places.pages / "slices.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    drawn = [save_figure(figure, page.parent / f"slices_{name}") for name, figure in figures(records).items()]
    write_atomically(page, ("\n\n".join(_parts(records)) + "\n").encode())
    return [page, *(file for files in drawn for file in files)]


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
        "pictures": _draw_pictures(records),
        "ablation": draw_ablation(ablation, chance=100 / len(first["classes"])),
        "classes": draw_classes({label: class_changes(one) for label, one in records.items()}, first["classes"]),
        "energy": draw_energy({label: record["energy"] for label, record in records.items()}),
        "gradients": draw_gradients(
            {label: (one["gradients"]["steps"], one["gradients"]["norms"]) for label, one in records.items()}
        ),
    }


def _draw_pictures(records: Records) -> Figure:
    """Some pictures, their slices, and where each model looks."""
    shown = next(iter(records.values()))["pictures"]
    pixels = [_levels(picture["pixels"], 3) for picture in shown]
    matrix = get_transform("dct", 3).matrix.numpy()
    alone = [slice_pictures(each, matrix, GAIN) for each in pixels]
    groups = {
        "picture": {"": pixels},
        "its slices": {str(k): [slices[k] for slices in alone] for k in range(3)},
    }
    for record in records.values():
        maps = [[_levels(text) for text in picture["attention"]] for picture in record["pictures"]]
        columns = [str(k) for k in range(len(maps[0]))] if len(maps[0]) > 1 else ["all"]
        title = "where they look (paper)" if len(maps[0]) > 1 else record["name"]
        groups[title] = {
            column: [attention_picture(each, found[k]) for each, found in zip(pixels, maps, strict=True)]
            for k, column in enumerate(columns)
        }
    return draw_slice_pictures(groups, [picture["label"] for picture in shown])


def _levels(text: str, *channels: int) -> np.ndarray:
    """A square map (H, W), or a square picture (H, W, channels), with values 0..1."""
    levels = np.frombuffer(bytes.fromhex(text), np.uint8) / 255
    side = math.isqrt(len(levels) // math.prod(channels))
    return levels.reshape(side, side, *channels)


def class_changes(record: Record) -> list[list[float]]:
    """How the accuracy of each class changes, in points, without each slice and with a new head: (C, classes)."""
    found = record["ablation"]["new head"]
    whole = found["all"]["by_class"]
    without = [each["by_class"] for name, each in found.items() if name.startswith("without")]
    return [[100 * (one - before) for one, before in zip(each, whole, strict=True)] for each in without]


# ---------------------------------------------------------------------------------------------------- the page


def _parts(records: Records) -> Iterable[str]:
    first = next(iter(records.values()))
    yield "# What the slices see"
    yield (
        "TCP-ViT takes a picture apart along its channels before anything else: three slices, each the size of the "
        "picture. Slice 0 is the mean of red, green and blue, slice 1 is red against blue, slice 2 is green against "
        "both. In the paper's model each slice then has a Transformer of its own, and they meet only in the head. What "
        "does each of them see, and does each of them learn?"
    )
    error = 100 * (0.25 / first["test_images"]) ** 0.5
    yield (
        f"Written by `tcpvit reproduce slices` from the files in `results/slices`. The runs are short on purpose, "
        f"{first['epochs']} epochs of {first['train_images']:,} pictures and one seed: they show what slices do, not "
        f"how good these models become (`tcpvit reproduce classification` is for that). Everything is measured on all "
        f"{first['test_images']:,} test pictures by the weights of the last epoch, in float32 (the runs evaluate "
        f"themselves in {first['precision']}). An accuracy has a standard error of "
        f"up to {error:.1f} points, and with one seed a difference of a point or two should not be read as an effect. "
        "Where the learning rates differ, so do the models for more reasons than their slices."
    )
    yield render([runs_table(records)], "markdown")
    yield "## In the picture"
    yield figure_block("slices_pictures", "Test pictures, their three slices, and where each slice looks.")
    yield _words_on_pictures(first)
    yield "## Take a slice away"
    yield (
        "Slice k is set to zero in all tokens, **at the entry** (what enters the first block: patches, class token and "
        "positions) or **at the exit** (what the head reads). A head that expects three slices is misled when one is "
        "missing; so in a third measurement, **with a new head**, a linear head is fitted by least squares to the "
        f"slices that are left ({first['fitted_images']:,} training pictures, all else as it is). It tells "
        "what they know together. `only k` is the same with the other slices taken away."
    )
    yield figure_block("slices_ablation", "Accuracy with some of the slices.")
    yield render([ablation_table(label, record) for label, record in records.items()], "markdown")
    yield " ".join(_words_on_ablation(label, record) for label, record in records.items())
    yield "## Class by class"
    yield figure_block("slices_classes", "Change of each class's accuracy without each slice, with a new head.")
    yield " ".join(_words_on_classes(label, record) for label, record in records.items())
    yield "## The energy of a slice, from block to block"
    yield figure_block("slices_energy", "Share of each slice in the energy, from the picture to the last block.")
    yield "The mean square of the picture's and the tokens' slices, as shares; the numbers below the bars are blocks."
    yield " ".join(_words_on_energy(label, record) for label, record in records.items())
    yield "## Does every slice learn?"
    yield figure_block("slices_gradients", "Norm of the gradient by slice against the step.")
    yield (
        "The norm of the loss's gradient by the weights of slice k, over all blocks, before it is clipped; faint as "
        "measured, strong the running median. The tables have the median of the second half of the training, block by "
        "block, slice 0 as 1."
    )
    yield render([gradient_table(label, record) for label, record in records.items()], "markdown")
    yield " ".join(words_on_gradients(label, record) for label, record in records.items())
    yield (
        "The paper argues from Parseval's identity: the transform is orthogonal, so that a gradient has the same norm "
        "in both domains. That is a statement on the sum over all slices; it does not say how the sum is divided among "
        "them, and the energy of the picture is divided very unevenly. What evens the slices out is the t-LayerNorm, "
        "which brings every token of every slice to the same size, however faint it is. "
        f"{_words_on_start(records)}"
    )


def runs_table(records: Records) -> Table:
    """Where the numbers come from."""
    columns = ["model", "parameters", "lr", "epochs", "seed", "top-1, last", "CPU time", "commit"]
    table = Table("runs", "The runs", columns)
    for label, record in records.items():
        commit, time = record["commit"] or "–", record["cpu_seconds"]
        table.add(
            label,
            record["parameters"],
            rate_of(record),
            record["epochs"],
            record["seed"],
            _percent(record["top1_last"]),
            Written(duration(time)) if time else None,
            f"`{commit[:10]}`",
        )
        table.notes.append(f"{label}: `{record['command']}`")
    return table


def ablation_table(label: str, record: Record) -> Table:
    """Accuracies by what is left of the slices."""
    table = Table(
        f"ablation_{record['name']}", f"Top-1 of {label} by the slices that are left", ["left", *WAYS.values()]
    )
    for name in record["ablation"]["entry"]:
        cells = [_percent(record["ablation"][way][name]["top1"]) for way in WAYS]
        table.add(name, *cells, strong=name == "all")
    return table


def gradient_table(label: str, record: Record) -> Table:
    """The gradient of each block's slices against that of slice 0."""
    late = record["gradients"]["late_by_block"]
    tube = len(next(iter(late.values())))
    table = Table(f"gradients_{record['name']}", label, ["block", *(f"slice {k}" for k in range(tube))])
    for place, norms in late.items():
        name, _, number = place.partition(".")
        title = f"block {int(number) + 1}" if name == "blocks" else name.replace("_", " ")
        table.add(title, *(Ratio(norm / norms[0]) if norms[0] else None for norm in norms))
    return table


# ---------------------------------------------------------------------------------------------------- words


def _words_on_pictures(record: Record) -> str:
    parts = shares(record["energy"]["picture"])
    said = " and ".join((", ".join(map(_percent, parts[:-1])), _percent(parts[-1])))
    return (
        f"The first test picture of each of the first {len(record['pictures'])} classes, none chosen. Slices 1 and 2 "
        f"are drawn around grey and {GAIN:g} times as strong as they are. Of the energy of the (normalised) test "
        f"pictures the slices hold {said}: to the eye, slice 0 is the picture. On the right, where the class token "
        f"of the last block looks (mean of the heads; yellow is the most of each map): the paper's model has a map for "
        f"each slice, joint attention one for all. {_words_on_likeness(record)}"
    ).strip()


def _words_on_likeness(record: Record) -> str:
    table = np.array(record["likeness"])
    if len(table) < 2:
        return ""
    said = ", ".join(f"{signed(table[i, k], 2)} (slices {i} and {k})" for k in range(len(table)) for i in range(k))
    return f"The maps of the paper's slices correlate by {said}, where 1 would be the same places and 0 is unrelated."


def _words_on_ablation(label: str, record: Record) -> str:
    found = {name: 100 * each["top1"] for name, each in record["ablation"]["new head"].items()}
    slices = range(_tube(record))
    changes = ", ".join(f"slice {k} by {signed(found[f'without {k}'] - found['all'])}" for k in slices)
    alone = ", ".join(f"{found[f'only {k}']:.1f} %" for k in slices)
    return (
        f"In {label} a new head on all slices reaches {found['all']:.1f} %. Taking one away changes that, in points: "
        f"{changes}. Each alone reaches {alone}."
    )


def _words_on_classes(label: str, record: Record) -> str:
    changes, classes = np.array(class_changes(record)), record["classes"]
    worst = [f"{classes[row.argmin()]} without slice {k} ({signed(row.min(), 0)})" for k, row in enumerate(changes)]
    k, best = np.unravel_index(changes.argmax(), changes.shape)
    gain = (
        f" The largest gain: {classes[best]} without slice {k} ({signed(changes.max(), 0)}), where the mean of all "
        f"classes changes by {signed(changes[k].mean(), 0)}."
        if changes.max() > 0
        else ""
    )
    return f"The largest losses in {label}, in points: {', '.join(worst)}.{gain}"


def _words_on_energy(label: str, record: Record) -> str:
    *_, last = record["energy"]
    before, after = shares(record["energy"]["picture"]), shares(record["energy"][last])
    return (
        f"In {label} slice 0 goes from {_percent(before[0])} of the energy in the picture to {_percent(after[0])} "
        f"after the last block, slice {len(after) - 1} from {_percent(before[-1])} to {_percent(after[-1])}."
    )


def words_on_gradients(label: str, record: Record) -> str:
    """Whether a slice's gradient vanishes beside the largest, said with the numbers."""
    norms = np.array(record["gradients"]["norms"])  # (C, steps)
    relative = norms / norms.max(0)
    typical, lowest = np.median(relative, axis=1), relative.min()
    k = int(typical.argmin())
    level = [i for i, share in enumerate(typical) if share < typical[k] + LEVEL]
    several = " and ".join(map(str, level))
    smallest = f"gradient is that of slice {k}" if level == [k] else f"gradients are those of slices {several}"
    if typical[k] < VANISHED:
        verdict = f"the gradient of slice {k} does fall behind"
    elif typical[k] < ALIKE:
        verdict = "none vanishes, but they are not alike either"
    else:
        verdict = "none vanishes, they are much alike"
    return (
        f"In {label} the smallest {smallest}, in the median {_percent(typical[k])} of the largest "
        f"at the same step, and at no step is any below {_percent(lowest)}: {verdict}."
    )


def _words_on_start(records: Records) -> str:
    sentences = []
    for label, record in records.items():
        ratios = {
            what: " : ".join(f"{norm / norms[0]:.2f}" for norm in norms) for what, norms in record["start"].items()
        }
        sentences.append(f"{ratios['with norms']} in {label} ({ratios['without norms']} without its t-LayerNorms)")
    return f"Before the first step the gradients of the slices are as {' and as '.join(sentences)}."


def shares(values: Iterable[float]) -> list[float]:
    """Each as a fraction of their sum.

    >>> shares([3.0, 1.0])
    [0.75, 0.25]
    """
    found = list(values)
    return [value / sum(found) for value in found]


def _tube(record: Record) -> int:
    return len(record["energy"]["picture"])


def _percent(fraction: float) -> Written:
    return Written(f"{100 * fraction:.1f} %")
