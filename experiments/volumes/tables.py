"""Tables of the study of volumes and clips."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, stdev

from tcpvit.compare.study import Record
from tcpvit.tables import Table, Written

LABELS = {
    "digits": {
        "slice": "slices on their own (the paper's form)",
        "joint": "slices that attend together",
        "coupled": "the same, with `shuffle+norm`",
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
# AUC and accuracy on AdrenalMNIST3D as published (Yang et al., 2023, Table 5; 28³), with the size of the network.
PUBLISHED = {
    "ResNet-18 + 3D": (0.827, 0.721),
    "ResNet-18 + ACS": (0.839, 0.754),
    "ResNet-50 + ACS": (0.828, 0.758),
    "auto-sklearn": (0.828, 0.802),
}


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
    columns = ["model", "parameters", "seeds", "AUC", "accuracy", "always the larger class"]
    table = Table("adrenal", "AdrenalMNIST3D", columns)
    for name, label in LABELS["adrenal"].items():
        runs = runs_of(records, "adrenal", name)
        if runs:
            majority = Written(f"{runs[0]['majority']:.3f}")
            area, accuracy = (_spread(runs, key, 3) for key in ("auc", "top1"))
            table.add(label, runs[0]["parameters"], len(runs), area, accuracy, majority)
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
