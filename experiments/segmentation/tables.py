"""Tables of the segmentation study from its records, beside the paper's tab:seg_params and tab:seg_performance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import cache
from statistics import fmean

import torch

from experiments.classification.plan import FAST
from experiments.seeds import on_common_seeds
from tcpvit.analysis import count_flops, count_parameters
from tcpvit.compare.intervals import between, interval, leads, seeds_of, signed
from tcpvit.compare.segmentation import NOT_RUN, PAIR, Runs, spread_of
from tcpvit.compare.segmentation import runs_of as runs_of_models
from tcpvit.compare.study import Record
from tcpvit.models import create_model, model_config
from tcpvit.tables import Cell, Ratio, Table, Written, duration

PRESETS = {"std": "std_vit_pet", "tcp": "tcp_vit_pet", "plus": "tcp_vit_pet_plus", "full": "tcp_vit_pet_full"}
# Slices of our own models learn C times as fast, as in the best short runs of the classification study.
OWN = {"plus": FAST, "full": FAST}
LABELS = {"std": "Std-ViT", "tcp": "TCP-ViT", "plus": "TCP-ViT+", "full": "TCP-ViT full"}
STEPS = {  # rows of `step_table`, and what the benchmark calls them
    "a whole training step, with AdamW": "step",
    "training, backbone": "backbone training",
    "training, decoder": "decoder training",
    "training, decoder in channels-first layout": "decoder training, channels first",
    "forward, backbone": "backbone",
    "forward, decoder": "decoder",
    "forward, decoder after fuse_()": "decoder, fused",
}
LEVELS = {"total": 0, "backbone": 1, "encoder": 2, "embeddings and tokens": 2, "decoder": 1}


@cache
def components(preset: str) -> dict[str, int]:
    """The parameters of a segmenter by the rows of tab:seg_params.

    >>> components("tcp_vit_pet")["encoder"]
    402048
    """
    model = create_model(preset)
    backbone, decoder = count_parameters(model.backbone), int(count_parameters(model.decoder))
    embeddings = sum(backbone.components[part] for part in ("patch_embed", "cls_token", "pos_embed"))
    return {
        "total": int(backbone) + decoder,
        "backbone": int(backbone),
        "encoder": int(backbone) - embeddings,
        "embeddings and tokens": embeddings,
        "decoder": decoder,
    }


def parameter_table(presets: Mapping[str, str]) -> Table:
    """tab:seg_params for presets by their label, the first of which is the reference of the ratios."""
    first, *others = presets
    columns = ["component", first, *(column for label in others for column in (label, f"/ {first}"))]
    table = Table("seg_params", "Parameters (tab:seg_params)", columns)
    for part, level in LEVELS.items():
        counts = [components(preset)[part] for preset in presets.values()]
        beside = [cell for count in counts[1:] for cell in (count, Ratio.of(count, counts[0]))]
        table.add(part, counts[0], *beside, level=level, strong=level == 0)
    return table


def runs_of(records: Iterable[Record], group: str) -> Runs:
    """The records of a part of the study by model; models that were not run have none."""
    return runs_of_models(records, group, LABELS)


def shown_group(records: Iterable[Record]) -> str | None:
    """The part of the study that the paper's figures show: the first that has both of the paper's models."""
    records = list(records)
    return next((group for group in ("whole", "subset") if has_pair(runs_of(records, group))), None)


def has_pair(runs: Runs) -> bool:
    """Whether both of the paper's models were run."""
    return all(runs[name] for name in PAIR)


def percents(runs: Iterable[Record], metric: str) -> list[float]:
    """A metric of each run, in per cent."""
    return [100 * run[metric] for run in runs]


def changed_options(name: str, reference: str = "tcp") -> dict[str, str]:
    """What sets a TCP model apart from the paper's: option and value.

    >>> changed_options("full")["decoder.kind"]
    'tcp'
    """
    ours, theirs = (model_config(PRESETS[key]) for key in (name, reference))
    pairs = [(part, asdict(getattr(ours, part)), asdict(getattr(theirs, part))) for part in ("backbone", "decoder")]
    return {
        f"{part}.{key}": ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        for part, mine, other in pairs
        for key, value in mine.items()
        if value != other[key]
    }


def lead(name: str, runs: Runs) -> Written | None:
    """The difference to Std-ViT in points of mIoU, with its 95 % interval if both have several seeds."""
    found = leads(runs[name], runs["std"], "miou")
    if not found:
        return None
    return Written(signed(fmean(found)) + (f" {between(interval(found))}" if len(found) > 1 else ""))


@cache
def work(name: str) -> dict[str, int]:
    """FLOPs of a forward pass of one image by part, counted as the model runs.

    >>> work("full")["decoder"]
    625704960
    """
    count = count_flops(create_model(PRESETS[name]), torch.zeros(1, 3, 128, 128))
    decoder = sum(flops for part, flops in count.components.items() if part.startswith(("stage_", "decoder_")))
    last = count.components["stage_4"]
    return {
        "total": int(count),
        "backbone": int(count) - decoder,
        "decoder": decoder,
        "its last stage, at 128×128": last,
    }


def work_table(groups: Mapping[str, Runs]) -> Table:
    """The work by part, which bounds the gain of a training step, and the time that training took."""
    title = "Work of a forward pass, in millions of FLOPs, and the time of whole trainings"
    table = Table("seg_work", title, ["part", *_model_columns()])
    for part, level in zip(work("std"), (0, 1, 1, 2), strict=True):
        counts = {name: round(work(name)[part] / 1e6) for name in LABELS}
        table.add(part, *_beside_std(counts), level=level, strong=level == 0)
    for label, runs in groups.items():
        spent = {name: [run["cpu_seconds"] for run in runs[name] if run["cpu_seconds"]] for name in LABELS}
        seconds = {name: round(fmean(found)) for name, found in spent.items() if found}
        if "std" in seconds:
            table.add(f"CPU seconds of training, with validation: {label}", *_beside_std(seconds))
    return table


def step_table(bench: Record, precision: str) -> Table:
    """Milliseconds of a batch by part, as benchmarks/segmentation.py measured them."""
    rows = {row["model"]: row for row in bench["rows"] if row["precision"] == precision}
    of = {name: rows[preset] for name, preset in PRESETS.items()}
    title = f"Milliseconds of a batch of {bench['batch']} in {precision}, one thread"
    table = Table(f"seg_steps_{precision}", title, ["part", *_model_columns()])
    for label, key in STEPS.items():
        counts = {name: round(row["ms"][key]) for name, row in of.items() if key in row["ms"]}
        table.add(label, *_beside_std(counts), strong=key == "step")
    bounds = {part: {name: 3 * row["bound_ms"][part] for name, row in of.items()} for part in ("backbone", "decoder")}
    whole = {name: sum(bound[name] for bound in bounds.values()) for name in of}
    for said, bound in {"a whole step": whole, **{f"training, {part}": bounds[part] for part in bounds}}.items():
        table.add(f"bound of {said}", *_beside_std({name: round(ms) for name, ms in bound.items()}))
    return table


def decoder_table(bench: Record) -> Table:
    """What the decoder gains without a change of what it computes: time after against time before."""
    ms = {(row["model"], row["precision"]): row["ms"] for row in bench["rows"]}
    table = Table("seg_decoder", "Time of the decoder after / before", ["change", LABELS["std"], LABELS["full"]])
    for label, after, before in (
        (
            "training, channels last instead of first",
            ("decoder training", "float32"),
            ("decoder training, channels first", "float32"),
        ),
        ("training, bfloat16 instead of float32", ("decoder training", "bfloat16"), ("decoder training", "float32")),
        ("inference, norms folded by fuse_()", ("decoder, fused", "float32"), ("decoder", "float32")),
    ):
        times = [
            [ms[PRESETS[name], precision].get(part) for part, precision in (after, before)] for name in ("std", "full")
        ]
        table.add(label, *(Ratio.of(*pair) for pair in times))
    return table


def seeds_table(name: str, title: str, runs: Runs) -> Table:
    """Every model over its seeds: means, deviations, and the difference to Std-ViT with its interval."""
    columns = ["model", "of Std-ViT's parameters", "mIoU (%)", "Δ mIoU to Std-ViT", "pixel accuracy (%)"]
    table = Table(name, title, [*columns, "boundary IoU (%)", "seeds"])
    whole = components(PRESETS["std"])["total"]
    for model, label in LABELS.items():
        ratio = Ratio(components(PRESETS[model])["total"] / whole)
        if not runs[model]:
            table.add(label, ratio, NOT_RUN, *[None] * 4)
            continue
        delta = None if model == "std" else lead(model, runs)
        means = (spread_of(runs[model], metric) for metric in ("pixel_accuracy", "boundary_iou"))
        table.add(label, ratio, spread_of(runs[model], "miou"), delta, *means, seeds_of(runs[model]))
    return table


def rate_table(subset: Runs, faster: Runs) -> Table:
    """What a model gains or loses, seed by seed, if all of its weights learn C times as fast."""
    table = Table(
        "seg_rate", "mIoU (%) on the subset by learning rate", ["model", "the paper's", "faster", "Δ", "seeds"]
    )
    for name in PAIR:
        both = on_common_seeds({"slow": subset[name], "fast": faster[name]})
        gained = leads(both["fast"], both["slow"], "miou")
        delta = Written(signed(fmean(gained))) if gained else None
        cells = (spread_of(both[key], "miou") for key in ("slow", "fast"))
        table.add(LABELS[name], *cells, delta, seeds_of(both["fast"]))
    return table


def runs_table(records: Iterable[Record]) -> Table:
    """Every run: what came out, what it took, and which commit it ran on."""
    columns = ["run", "model", "images", "epochs", "seed", "mIoU (%)", "of epoch", "last epoch", "time", "CPU time"]
    table = Table("seg_runs", "Every run", [*columns, "commit"])
    for record in records:
        spent = record.get("cpu_seconds")
        table.add(
            record["key"],
            record["model"],
            record["train_images"],
            record["epochs"],
            record["seed"],
            Written(f"{100 * record['miou']:.2f}"),
            record["best_epoch"],
            Written(f"{100 * record['miou_last']:.2f}"),
            Written(duration(record["seconds"])),
            None if spent is None else Written(duration(spent)),
            _short(record["commit"]),
        )
    return table


def _model_columns() -> list[str]:
    """Std-ViT, and each other model with its ratio."""
    return [LABELS["std"], *(column for name in LABELS if name != "std" for column in (LABELS[name], "/ Std"))]


def _beside_std(counts: Mapping[str, int]) -> list[Cell]:
    """The cells of a row for `_model_columns`; a model that has none is left empty."""
    cells: list[Cell] = [counts["std"]]
    for name in LABELS:
        if name != "std":
            cells += [counts.get(name), Ratio.of(counts.get(name), counts["std"])]
    return cells


def _short(commit: str | None) -> str:
    """The first letters of a commit, and whether the source had been changed since.

    >>> _short("0123456789abcdef0123456789abcdef01234567-dirty")
    '012345678-dirty'
    """
    return "–" if commit is None else commit[:9] + commit[40:]
