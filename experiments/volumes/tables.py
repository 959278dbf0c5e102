"""Tables of the study of volumes and clips."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, mean, stdev

from tcpvit.compare.intervals import between, interval, leads, signed
from tcpvit.compare.study import Record
from tcpvit.tables import Bytes, Ratio, Table, Written

LABELS = {
    "digits": {
        "slice": "slices on their own (the paper's form, embedded)",
        "joint": "slices that attend together",
        "coupled": "attention together, `shuffle+norm`, no patch embedding",
        "dense": "dense",
    },
    "adrenal": {
        "dense": "dense, width 64",
        "dense-small": "dense, width 36",
        "depth": "tube along the depth (8)",
        "order-4": "tubes along depth and height (8×8)",
        "slice": "tube along the depth, slices on their own",
    },
}
# AUC on AdrenalMNIST3D at 28³, of the benchmark in Yang et al., "MedMNIST v2", Scientific Data 10:41, 2023
# (doi:10.1038/s41597-022-01721-8): as remembered, not checked against their table.
PUBLISHED = {"ResNet-18 + 3D": 0.827, "ResNet-18 + ACS": 0.839, "auto-sklearn": 0.828}


RECOVERED = {"identity": "frame by frame", "dft": "t-product (DFT)", "dct": "c-product (DCT)", "data": "data-driven"}


def opposite_accuracy(confusion: Sequence[Sequence[int]]) -> float:
    """Of the clips whose axis was found, the share whose direction along it is right: left or right, up or down.

    >>> opposite_accuracy([[3, 1, 0, 0], [1, 3, 0, 0], [0, 0, 2, 2], [4, 0, 2, 2]])
    0.625
    """
    right = sum(confusion[k][k] for k in range(4))
    turned = sum(confusion[k][k ^ 1] for k in range(4))
    return right / (right + turned)


def digits_table(records: Sequence[Record]) -> Table:
    """Which way a digit moves."""
    columns = ["model", "parameters", "seeds", "axis and direction", "direction, given the axis"]
    table = Table("digits", "Which way a digit moves", columns)
    for name, label in LABELS["digits"].items():
        runs = runs_of(records, "digits", name)
        if runs:
            own, opposite = (_spread(runs, key, 3) for key in ("top1", "opposite"))
            table.add(label, runs[0]["parameters"], len(runs), own, opposite)
    return table


def adrenal_table(records: Sequence[Record]) -> Table:
    """AdrenalMNIST3D, AUC first."""
    columns = [
        "model",
        "parameters",
        "rate",
        "seeds",
        "AUC",
        "against dense, hundredths",
        "accuracy",
        "always the larger class",
    ]
    table = Table("adrenal", "AdrenalMNIST3D, test volumes", columns)
    dense = runs_of(records, "adrenal", "dense")
    for name, label in LABELS["adrenal"].items():
        runs = runs_of(records, "adrenal", name)
        if runs:
            majority = Written(f"{runs[0]['majority']:.3f}")
            area, accuracy = (_spread(runs, key, 3) for key in ("auc", "top1"))
            lead = None if name == "dense" else _lead(runs, dense)
            table.add(label, runs[0]["parameters"], runs[0]["lr"], len(runs), area, lead, accuracy, majority)
    return table


def _lead(runs: Sequence[Record], others: Sequence[Record]) -> Written | None:
    """By how many hundredths the AUC is ahead on the same seeds, with the 95 % interval."""
    found = leads(runs, others, "auc")
    return Written(f"{signed(fmean(found))} {between(interval(found))}") if len(found) > 1 else None


def rates_table(records: Sequence[Record]) -> Table:
    """Learning rates, judged on validation volumes."""
    table = Table("rates", "The best AUC on validation volumes, seed 0", ["model", "learning rate", "AUC"])
    for record in sorted(records, key=lambda record: str(record["name"])):
        if record["group"] == "rates":
            kind = str(record["name"]).split("-")[0]
            table.add(LABELS["adrenal"][kind], record["lr"], Written(f"{record['val_auc']:.3f}"))
    return table


def runs_of(records: Sequence[Record], group: str, name: str) -> list[Record]:
    """The runs of a model, by seed."""
    found = [record for record in records if (record["group"], record["name"]) == (group, name)]
    return sorted(found, key=lambda record: int(record["seed"]))


def _spread(runs: Sequence[Record], key: str, digits: int) -> Written:
    """Mean and standard deviation over the seeds."""
    values = [float(run[key]) for run in runs]
    spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return Written(f"{mean(values):.{digits}f}{spread}")


def published_table() -> Table:
    """What others report."""
    table = Table("published", "Published, at 28³", ["model", "AUC"])
    for name, area in PUBLISHED.items():
        table.add(name, Written(f"{area:.3f}"))
    table.notes.append(
        "Yang et al., MedMNIST v2, Scientific Data 10:41 (2023), doi:10.1038/s41597-022-01721-8; quoted from memory "
        "and not checked against its table."
    )
    return table


def recovery_tables(record: Record) -> list[Table]:
    """PSNR by transform and clip, and the time of an SVD beside mprod's."""
    height, width, frames = record["shape"]
    title = f"Recovery of {frames} frames of {height}×{width}, PSNR in dB"
    clips = list(record["clips"])
    columns = ["product", *(f"{clip}, {task}" for clip in clips for task in ("completion", "robust PCA"))]
    table = Table("recovery", title, columns)
    for name, label in RECOVERED.items():
        rows = [record["clips"][clip][name] for clip in clips]
        table.add(label, *(Written(f"{row[task]:.1f}") for row in rows for task in ("completion", "robust_pca")))
    missing, corrupted = (f"{100 * record[key]:.0f} %" for key in ("missing", "corrupted"))
    table.notes.append(f"Completion: {missing} of the pixels are missing. Robust PCA: {corrupted} are black or white.")
    times = Table("svd", "One SVD of the lobby along its DCT, float64", ["library", "milliseconds"])
    for name, milliseconds in record["svd_milliseconds"].items():
        times.add(name, Written(f"{milliseconds:.1f}"))
    return [table, times]


def cost_tables(record: Record) -> list[Table]:
    """Each model at the fewest and the most frames."""
    columns = ["model", "frames", "parameters", "MFLOPs", "forward, ms", "training step, ms", "of dense", "memory"]
    table = Table("cost", "Clips of 32×32 in colour, width 384, 4 blocks", columns)
    lengths = list(record["frames"])
    for frames in (lengths[0], lengths[-1]):
        kinds = record["frames"][frames]
        for kind, row in kinds.items():
            flops, forward, step = (
                Written(f"{row[key]:.{n}f}") for key, n in (("mflops", 0), ("forward", 1), ("step", 1))
            )
            ratio = Ratio(row["step"] / kinds["dense"]["step"])
            memory = Bytes(row["training_memory"])
            table.add(kind, int(frames), row["parameters"], flops, forward, step, ratio, memory)
    return [table]
