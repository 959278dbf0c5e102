"""Tables of the segmentation study from its records, beside the paper's tab:seg_params and tab:seg_performance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import cache
from statistics import fmean

import torch

from tcpvit.analysis import count_flops, count_parameters
from tcpvit.compare.intervals import between, interval, leads, on_common_seeds, seeds_of, signed, spread, verdict
from tcpvit.compare.study import FAST, Record
from tcpvit.models import create_model, model_config
from tcpvit.tables import Cell, Ratio, Table, Written, duration

PRESETS = {"std": "std_vit_pet", "tcp": "tcp_vit_pet", "plus": "tcp_vit_pet_plus", "full": "tcp_vit_pet_full"}
# Slices of our own models learn C times as fast, as in the best short runs of the classification study.
OWN = {"plus": FAST, "full": FAST}
PAIR = ("std", "tcp")  # the paper's two
LABELS = {"std": "Std-ViT", "tcp": "TCP-ViT", "plus": "TCP-ViT+", "full": "TCP-ViT full"}
NOT_RUN = Written("not run here")
STEPS = {  # rows of `step_table`, and what the benchmark calls them
    "a whole training step, with AdamW": "step",
    "training, backbone": "backbone training",
    "training, decoder": "decoder training",
    "training, decoder in channels-first layout": "decoder training, channels first",
    "forward, backbone": "backbone",
    "forward, decoder": "decoder",
    "forward, decoder after fuse_()": "decoder, fused",
}

# tab:seg_params of the paper: Std-ViT, TCP-ViT.
PAPER_PARAMETERS = {
    "total": (1_570_978, 751_586),
    "backbone": (1_275_072, 455_680),
    "encoder": (1_188_480, 402_048),
    "embeddings and tokens": (86_592, 53_632),
    "decoder": (295_906, 295_906),
}
LEVELS = {"total": 0, "backbone": 1, "encoder": 2, "embeddings and tokens": 2, "decoder": 1}

# tab:seg_performance of the paper: Std-ViT, TCP-ViT and the difference as it is printed there, from numbers with more
# digits. Its "Background" is our pet, its "Foreground" our background.
PAPER_EPOCHS = 150
PAPER = {
    "miou": (87.8, 86.8, -1.0),
    "mdice": (93.5, 92.9, -0.6),
    "pixel_accuracy": (94.2, 93.6, -0.6),
    "iou_background": (91.7, 90.9, -0.8),
    "iou_pet": (84.0, 82.7, -1.3),
    "dice_background": (95.7, 95.2, -0.4),
    "dice_pet": (91.3, 90.5, -0.8),
}
METRICS = {
    "miou": "mIoU",
    "mdice": "mDice",
    "pixel_accuracy": "pixel accuracy",
    "iou_background": "IoU: background (the paper's \u201cForeground\u201d row)",
    "iou_pet": "IoU: pet (the paper's \u201cBackground\u201d row)",
    "dice_background": "Dice: background (the paper's \u201cForeground\u201d row)",
    "dice_pet": "Dice: pet (the paper's \u201cBackground\u201d row)",
    "image_miou": "mIoU by image, mean",
    "boundary_iou": "boundary IoU, mean of both classes",
}

Runs = dict[str, list[Record]]  # of each model, by seed


def runs_of(records: Iterable[Record], group: str) -> Runs:
    """The records of a part of the study by model; models that were not run have none."""
    found: Runs = {name: [] for name in LABELS}
    for record in sorted(records, key=lambda record: record["seed"]):
        if record["group"] == group:
            found[record["name"]].append(record)
    return found


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


@cache
def components(name: str) -> dict[str, int]:
    """The parameters of a model by the rows of tab:seg_params.

    >>> components("tcp")["encoder"]
    402048
    """
    model = create_model(PRESETS[name])
    backbone, decoder = count_parameters(model.backbone), int(count_parameters(model.decoder))
    embeddings = sum(backbone.components[part] for part in ("patch_embed", "cls_token", "pos_embed"))
    return {
        "total": int(backbone) + decoder,
        "backbone": int(backbone),
        "encoder": int(backbone) - embeddings,
        "embeddings and tokens": embeddings,
        "decoder": decoder,
    }


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


def summary_table(runs: Runs) -> Table:
    """Parameters and mIoU of the paper's two models, ours and the paper's."""
    one = runs["std"][0]
    title = (
        f"Oxford-IIIT Pet, {one['train_images']:,} training and {one['test_images']:,} validation images, "
        f"{one['epochs']} epochs, {len(runs['std'])} seed{'s' * (len(runs['std']) > 1)}"
    )
    columns = ["model", "parameters", "of Std-ViT", "mIoU", f"the paper's, {PAPER_EPOCHS} epochs"]
    table = Table("seg_summary", title, columns)
    for i, name in enumerate(PAIR):
        parameters = runs[name][0]["parameters"]
        found, theirs = Written(f"{spread(percents(runs[name], 'miou'))} %"), Written(f"{PAPER['miou'][i]} %")
        table.add(f"`{PRESETS[name]}`", parameters, Ratio.of(parameters, one["parameters"]), found, theirs)
    table.notes.append("The best epoch counts, chosen on the validation images themselves, as in the paper.")
    return table


def lead_table(subset: Runs, augmented: Runs) -> Table:
    """By how much models lead Std-ViT on the subset, without and with augmentation; those that were run alone."""
    title = "mIoU against Std-ViT in points, with 95 % intervals"
    table = Table("seg_leads", title, ["model", "of Std-ViT's parameters", "not augmented", "augmented"])
    for name in [name for name in LABELS if name != "std"]:
        cells = [_lead(name, runs) for runs in (subset, augmented)]
        if any(cells):
            ratio = Ratio.of(components(name)["total"], components("std")["total"])
            table.add(f"`{PRESETS[name]}`", ratio, *cells)
    if table.rows:
        one = [*subset["std"], *augmented["std"]][0]
        table.notes.append(
            f"{one['train_images']:,} training images, {one['epochs']} epochs, the same images and seeds for all; "
            f"slices of {' and '.join(f'`{PRESETS[name]}`' for name in OWN)} learn at C times the rate."
        )
    return table


def _lead(name: str, runs: Runs) -> Written | None:
    """Over the seeds of both models."""
    found = leads(runs[name], runs["std"], "miou")
    if not found:
        return None
    sure = f" {between(interval(found))}" if len(found) > 1 else ""
    return Written(f"{signed(fmean(found))}{sure}, {len(found)} seed{'s' * (len(found) > 1)}")


def parameter_table() -> Table:
    """tab:seg_params, with our own models beside the paper's two."""
    counts = {name: components(name) for name in LABELS}
    table = Table("seg_params", "Parameters (tab:seg_params)", ["component", *_model_columns()])
    for part, level in LEVELS.items():
        table.add(part, *_beside_std({name: counts[name][part] for name in LABELS}), level=level, strong=level == 0)
    ours = {part: tuple(counts[name][part] for name in PAIR) for part in LEVELS}
    differ = [part for part in LEVELS if ours[part] != PAPER_PARAMETERS[part]]
    same = "Every number of Std-ViT and TCP-ViT is the paper's, to the unit."
    table.notes.append(f"Other than in the paper: {', '.join(differ)}." if differ else same)
    return table


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
    share = work("std")["decoder"] / work("std")["total"]
    table.notes.append(
        f"A training step is about three forward passes. The decoder is {100 * share:.0f} % of Std-ViT's work, so "
        "by FLOPs slices in the encoder alone cannot bring a step below the ratio of the totals."
    )
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
    table.notes.append("Bounds are the FLOPs at the speed of a matrix product, forward and twice that backward.")
    return table


def decoder_words(bench: Record) -> str:
    """What the decoder gains without a change of its results' meaning: time after against time before."""
    ms = {(row["model"], row["precision"]): row["ms"] for row in bench["rows"]}

    def ratios(after: tuple[str, str], before: tuple[str, str]) -> str:
        """Of (part, precision)."""
        found = (
            f"{ms[preset, after[1]][after[0]] / ms[preset, before[1]][before[0]]:.2f}× ({LABELS[name]})"
            for name, preset in PRESETS.items()
            if name in ("std", "full") and before[0] in ms[preset, before[1]]  # what was not measured is not told
        )
        return " and ".join(found)

    training, plain = ("decoder training", "float32"), ("decoder", "float32")
    return (
        "**What can be taken out of the decoder**, time after against time before: in training, channels last instead "
        f"of first makes {ratios(training, ('decoder training, channels first', 'float32'))}, and bfloat16 instead of "
        f"float32 {ratios(('decoder training', 'bfloat16'), training)}; in inference, BatchNorm folded into the "
        f"convolutions by `fuse_()` makes {ratios(('decoder, fused', 'float32'), plain)}. TCP-ViT and TCP-ViT+ have "
        "Std-ViT's decoder."
    )


def performance_table(runs: Runs) -> Table:
    """tab:seg_performance: Std-ViT and TCP-ViT on the whole training part, beside the paper's numbers."""
    columns = ["per cent", "Std-ViT", "TCP-ViT", "Δ", "paper: Std-ViT", "paper: TCP-ViT", "paper: Δ"]
    table = Table("seg_performance", "Performance (tab:seg_performance)", columns)
    for metric, label in METRICS.items():
        cells = [_spread(runs[name], metric) for name in PAIR]
        found = leads(runs["tcp"], runs["std"], metric)
        delta = Written(signed(fmean(found))) if found else None
        paper: list[Cell] = [None] * 3
        if metric in PAPER:
            std, tcp, gap = PAPER[metric]
            paper = [Written(f"{std:.1f}"), Written(f"{tcp:.1f}"), Written(signed(gap))]
        table.add(label, *cells, delta, *paper, strong=metric == "miou")
    counts = PAPER_PARAMETERS["total"]
    ours = [runs[name][0]["parameters"] if runs[name] else None for name in PAIR]
    table.add("parameters", *ours, Ratio.of(ours[1], ours[0]), *counts, Ratio.of(counts[1], counts[0]))
    return table


def seeds_table(name: str, title: str, runs: Runs) -> Table:
    """Every model over its seeds: means, deviations, and intervals of the difference to Std-ViT."""
    columns = ["model", "parameters", "/ Std", "mIoU (%)", "95 % interval", "Δ mIoU to Std-ViT", "its 95 % interval"]
    table = Table(name, title, [*columns, "pixel accuracy (%)", "boundary IoU (%)", "seeds"])
    whole = components("std")["total"]
    for model, label in LABELS.items():
        total = components(model)["total"]
        head = (label, total, Ratio(total / whole))
        if not runs[model]:
            table.add(*head, NOT_RUN, *[None] * 6)
            continue
        mious = percents(runs[model], "miou")
        ends = interval(mious)
        found = [] if model == "std" else leads(runs[model], runs["std"], "miou")
        table.add(
            *head,
            Written(spread(mious)),
            None if ends is None else Written(f"[{ends[0]:.1f}, {ends[1]:.1f}]"),
            Written(signed(fmean(found))) if found else None,
            Written(between(interval(found))) if found else None,
            _spread(runs[model], "pixel_accuracy"),
            _spread(runs[model], "boundary_iou"),
            seeds_of(runs[model]),
        )
    if len({seeds_of(found) for found in runs.values() if found}) > 1:
        table.notes.append(
            "Δ is over the seeds that both models have: where Std-ViT has more, it is no difference of means."
        )
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
        cells = (_spread(both[key], "miou") for key in ("slow", "fast"))
        table.add(LABELS[name], *cells, delta, seeds_of(both["fast"]))
    return table


def goals_table(whole: Runs, subset: Runs, augmented: Runs) -> Table:
    """What was aimed at, what was measured, and whether that is enough."""
    table = Table("seg_goals", "What was to be reached", ["goal", "measured", "95 % interval", "verdict"])
    asked = [("TCP-ViT at most 1 point below Std-ViT, all training images", whole, "tcp", -1.0)]
    for said, runs in (("", subset), (", augmented", augmented)):
        asked.append((f"TCP-ViT+ not below Std-ViT, subset{said}", runs, "plus", 0.0))
        asked.append((f"TCP-ViT full at most 1.5 points below Std-ViT, subset{said}", runs, "full", -1.5))
    for goal, runs, name, least in asked:
        found = leads(runs[name], runs["std"], "miou")
        if found:
            points = f"{signed(fmean(found), 2)} points"
            table.add(goal, Written(points), Written(between(interval(found))), verdict(found, least))
        else:
            table.add(goal, NOT_RUN, None, "open")
    ratio = components("full")["total"] / components("std")["total"]
    table.add(
        "TCP-ViT full has at most 0.36 of the parameters", Ratio(ratio), None, "reached" if ratio <= 0.36 else "missed"
    )
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


def _spread(runs: list[Record], metric: str) -> Written:
    return Written(spread(percents(runs, metric))) if runs else NOT_RUN


def _short(commit: str | None) -> str:
    """The first letters of a commit, and whether the source had been changed since.

    >>> _short("0123456789abcdef0123456789abcdef01234567-dirty")
    '012345678-dirty'
    """
    return "–" if commit is None else commit[:9] + commit[40:]
