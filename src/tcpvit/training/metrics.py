"""What is measured of a classifier or a segmenter: counts that are summed over a whole set, divided at the end.

A confusion matrix holds most of it: rows are the truth, columns the prediction. IoU and Dice are those of the set, not
means over pictures (paper, Section 5.2).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tcpvit.data import IGNORE

# How metrics are called in tables.
LABELS = {"top1": "top-1", "top5": "top-5", "miou": "mIoU", "mdice": "mDice", "pixel_accuracy": "pixel accuracy"}
LABELS |= {"loss": "loss", "iou": "IoU", "dice": "Dice"}


def count_confusion(predicted: Tensor, truth: Tensor, classes: int, ignore: int | None = None) -> Tensor:
    """(classes, classes) counts: rows the truth, columns the prediction; truths of value `ignore` are left out.

    >>> count_confusion(torch.tensor([0, 1, 1, 0]), torch.tensor([0, 1, 0, 255]), 2, ignore=255)
    tensor([[1, 1],
            [0, 1]])
    """
    if ignore is not None:
        counted = truth != ignore
        truth, predicted = truth[counted], predicted[counted]
    cells = torch.bincount((truth * classes + predicted).flatten(), minlength=classes**2)
    if len(cells) > classes**2:
        raise ValueError(f"the targets hold {int(truth.max())}, outside the {classes} classes 0..{classes - 1}")
    return cells.view(classes, classes)


class Metrics:
    """Sums over a set. `update` adds a batch, `summary` divides; `counts` is all there is to add up over processes."""

    def __init__(self, classes: int, device: torch.device | str = "cpu"):
        self.classes = classes
        self.confusion = torch.zeros(classes, classes, dtype=torch.int64, device=device)
        self.loss = torch.zeros((), dtype=torch.float64, device=device)  # summed
        self.top5 = torch.zeros((), dtype=torch.int64, device=device)  # hits

    def counts(self) -> list[Tensor]:
        """The tensors that hold the sums."""
        return [self.confusion, self.loss, self.top5]

    def update(self, logits: Tensor, targets: Tensor, loss: Tensor) -> None:
        """Add a batch: logits (B, K) or (B, K, H, W), its class ids, and the sum of its losses."""
        ignore = IGNORE if targets.ndim > 1 else None
        self.confusion += count_confusion(logits.argmax(1), targets, self.classes, ignore)
        self.loss += loss
        if logits.ndim == 2 and self.classes > 5:
            self.top5 += (logits.topk(5, dim=1).indices == targets[:, None]).sum()

    @property
    def total(self) -> int:
        """How many pictures or pixels were counted."""
        return int(self.confusion.sum())

    @property
    def accuracy(self) -> float:
        """The share that is right."""
        return float(self.confusion.diagonal().sum()) / max(self.total, 1)


class ClassificationMetrics(Metrics):
    """Loss, top-1 and, with more than five classes, top-5."""

    def summary(self) -> dict[str, float]:
        """Fractions, not per cent.

        >>> metrics = ClassificationMetrics(2)
        >>> metrics.update(torch.tensor([[2.0, 1.0], [0.0, 1.0]]), torch.tensor([0, 0]), torch.tensor(3.0))
        >>> metrics.summary()
        {'loss': 1.5, 'top1': 0.5}
        """
        total = max(self.total, 1)
        found = {"loss": float(self.loss) / total, "top1": self.accuracy}
        return found | {"top5": int(self.top5) / total} if self.classes > 5 else found

    def by_class(self) -> dict[str, list[float]]:
        """The recall of each class; NaN where the set has none of it."""
        counts = self.confusion.double()
        return {"top1": (counts.diagonal() / counts.sum(1)).tolist()}


class SegmentationMetrics(Metrics):
    """Loss, mean IoU, mean Dice and pixel accuracy. A class that neither truth nor prediction has is left out."""

    def summary(self) -> dict[str, float]:
        """Fractions, not per cent."""
        means = {f"m{name}": _mean(values) for name, values in self.by_class().items()}
        return {"loss": float(self.loss) / max(self.total, 1), **means, "pixel_accuracy": self.accuracy}

    def by_class(self) -> dict[str, list[float]]:
        """IoU and Dice of each class.

        >>> metrics = SegmentationMetrics(2)
        >>> metrics.confusion += torch.tensor([[3, 1], [0, 2]])
        >>> metrics.by_class()["iou"]
        [0.75, 0.6666666666666666]
        """
        counts = self.confusion.double()
        hits, both = counts.diagonal(), counts.sum(0) + counts.sum(1)
        return {"iou": (hits / (both - hits)).tolist(), "dice": (2 * hits / both).tolist()}


def _mean(values: list[float]) -> float:
    return torch.tensor(values, dtype=torch.float64).nanmean().item()


AnyMetrics = ClassificationMetrics | SegmentationMetrics


def to_json(metrics: AnyMetrics) -> dict[str, Any]:
    """Everything that was measured, ready for JSON; a class that does not occur has null."""
    by_class = {
        name: [None if value != value else value for value in values] for name, values in metrics.by_class().items()
    }
    return {**metrics.summary(), "by_class": by_class, "confusion": metrics.confusion.tolist()}
