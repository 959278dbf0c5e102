"""What is measured of a classifier or a segmenter: counts that are summed over a whole set, divided at the end.

A confusion matrix holds most of it: rows are the truth, columns the prediction. IoU and Dice are those of the set, not
means over images (paper, Section 5.2). Beside them stand the mean of the images' own mIoU, and the boundary IoU. The
area under the ROC curve, for classes of unequal size, is counted in bins.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tcpvit.data import IGNORE
from tcpvit.training.float64 import float64_device, to_float64

Z = 1.959964  # the 97.5 % quantile of the normal distribution
BAND = 0.02  # of the diagonal: how wide the boundary is, as in Cheng et al.
# How metrics are called in tables.
LABELS = {
    "loss": "loss",
    "top1": "top-1",
    "top5": "top-5",
    "auc": "AUC",
    "majority": "share of the largest class",
    "oa": "overall accuracy",
    "aa": "average accuracy",
    "kappa": "κ",
    "accuracy": "accuracy",
    "miou": "mIoU",
    "mdice": "mDice",
    "pixel_accuracy": "pixel accuracy",
    "image_miou": "mIoU by image",
    "boundary_iou": "boundary IoU",
    "iou": "IoU",
    "dice": "Dice",
}


def count_confusion(predicted: Tensor, truth: Tensor, classes: int, ignore: int | None = None) -> Tensor:
    """(classes, classes) counts: rows the truth, columns the prediction; truths of value `ignore` are left out.

    >>> count_confusion(torch.tensor([0, 1, 1, 0]), torch.tensor([0, 1, 0, 255]), 2, ignore=255)
    tensor([[1, 1],
            [0, 1]])
    """
    return _count_each(predicted.reshape(1, -1), truth.reshape(1, -1), classes, ignore)[0]


def image_mious(predicted: Tensor, truth: Tensor, classes: int) -> Tensor:
    """(B,) the mIoU of each image by itself; NaN if all its pixels are ignored.

    >>> predicted, truth = torch.tensor([[[0, 1]], [[1, 1]]]), torch.tensor([[[0, 1]], [[0, 1]]])
    >>> image_mious(predicted, truth, 2)
    tensor([1.0000, 0.2500], dtype=torch.float64)
    """
    return _ious(_count_each(predicted, truth, classes, IGNORE)).nanmean(1)


def boundary_counts(predicted: Tensor, truth: Tensor, classes: int) -> Tensor:
    """(3, classes) boundary pixels of each class: of truth and prediction both, of the truth, of the prediction.

    The boundary of a class are its pixels within d of a pixel that has another value, or of the image's frame; d is
    2 % of the diagonal, at least 1, in the maximum norm (Cheng et al., "Boundary IoU", 2021). Pixels that the truth
    ignores are taken out of the prediction too, so that what is perfect on all others has a boundary IoU of 1.

    >>> truth = torch.zeros(1, 5, 5, dtype=torch.int64)
    >>> boundary_counts(truth, truth, 2)  # the frame alone
    tensor([[16,  0],
            [16,  0],
            [16,  0]])
    """
    predicted = torch.where(truth == IGNORE, truth, predicted)
    reach = max(round(BAND * math.hypot(*truth.shape[1:])), 1)
    near_truth, near_predicted = (_near_other(labels, reach) & (truth != IGNORE) for labels in (truth, predicted))
    both = near_truth & near_predicted & (truth == predicted)
    pairs = ((truth, both), (truth, near_truth), (predicted, near_predicted))
    return torch.stack([torch.bincount(labels[chosen], minlength=classes) for labels, chosen in pairs])


class Metrics:
    """Sums over a set. `update` adds a batch, `summary` divides; `counts` is all there is to add up over processes.

    What nothing was counted for is NaN. On a device without float64 the counts lie on the CPU.
    """

    def __init__(self, classes: int, device: torch.device | str = "cpu"):
        self.classes, self.device = classes, float64_device(device)
        self.confusion = torch.zeros(classes, classes, dtype=torch.int64, device=self.device)
        self.loss = torch.zeros((), dtype=torch.float64, device=self.device)  # summed

    def counts(self) -> list[Tensor]:
        """The tensors that hold the sums."""
        return [self.confusion, self.loss]

    def update(self, logits: Tensor, targets: Tensor, loss: Tensor) -> None:
        """Add a batch: logits (B, K, ...), its labels (B,) or masks (B, ...), and the sum of its losses."""
        self._add(logits.to(self.device), targets.to(self.device), loss.to(self.device))

    def _add(self, logits: Tensor, targets: Tensor, loss: Tensor) -> None:
        self.confusion += count_confusion(logits.argmax(1), targets, self.classes)
        self.loss += loss

    def recall(self) -> list[float]:
        """The share of each class that is right; NaN where the set has none of it."""
        counts = self.confusion.double()
        return (counts.diagonal() / counts.sum(1)).tolist()

    @property
    def total(self) -> int:
        """How many images or pixels were counted."""
        return int(self.confusion.sum())

    @property
    def accuracy(self) -> float:
        """The share that is right."""
        return _share(self.confusion.diagonal().sum(), self.total)

    @property
    def mean_loss(self) -> float:
        """The mean loss of an image or pixel."""
        return _share(self.loss, self.total)


class ClassificationMetrics(Metrics):
    """Loss, top-1 and, with more than five classes, top-5."""

    def __init__(self, classes: int, device: torch.device | str = "cpu"):
        super().__init__(classes, device)
        self.top5 = torch.zeros((), dtype=torch.int64, device=self.device)  # hits

    def counts(self) -> list[Tensor]:
        """The tensors that hold the sums."""
        return [*super().counts(), self.top5]

    def _add(self, logits: Tensor, targets: Tensor, loss: Tensor) -> None:
        super()._add(logits, targets, loss)
        if self.classes > 5:
            self.top5 += (logits.topk(5, dim=1).indices == targets[:, None]).sum()

    def summary(self) -> dict[str, float]:
        """Fractions, not per cent.

        >>> metrics = ClassificationMetrics(2)
        >>> metrics.update(torch.tensor([[2.0, 1.0], [0.0, 1.0]]), torch.tensor([0, 0]), torch.tensor(3.0))
        >>> metrics.summary()
        {'loss': 1.5, 'top1': 0.5}
        """
        found = {"loss": self.mean_loss, "top1": self.accuracy}
        return found | {"top5": _share(self.top5, self.total)} if self.classes > 5 else found

    def by_class(self) -> dict[str, list[float]]:
        """The recall of each class; NaN where the set has none of it."""
        return {"top1": self.recall()}


class SceneMetrics(Metrics):
    """What is reported of classified pixels: overall accuracy, average accuracy over the classes, Cohen's κ.

    Intervals of 95 % take pixels as independent, which neighbours are not: splits differ by more.
    """

    def summary(self) -> dict[str, float]:
        """Fractions, not per cent; the average accuracy is over the classes that are there.

        >>> metrics = SceneMetrics(3)
        >>> metrics.confusion += torch.tensor([[3, 1, 0], [0, 4, 0], [0, 0, 0]])
        >>> {name: round(value, 4) for name, value in metrics.summary().items()}
        {'loss': 0.0, 'oa': 0.875, 'aa': 0.875, 'kappa': 0.75}
        """
        average = _mean(self.by_class()["accuracy"])
        return {"loss": self.mean_loss, "oa": self.accuracy, "aa": average, "kappa": _kappa(self.confusion)[0]}

    def intervals(self) -> dict[str, tuple[float, float]]:
        """Intervals of the numbers of `summary`: Wilson's for the overall accuracy, normal ones for the others.

        >>> metrics = SceneMetrics(2)
        >>> metrics.confusion += torch.tensor([[45, 5], [10, 40]])
        >>> {name: (round(low, 3), round(high, 3)) for name, (low, high) in metrics.intervals().items()}
        {'oa': (0.767, 0.907), 'aa': (0.781, 0.919), 'kappa': (0.561, 0.839)}
        """
        counts = self.confusion.double()
        sizes = counts.sum(1)
        found = (counts.diagonal() / sizes)[sizes > 0]
        error = (found * (1 - found) / sizes[sizes > 0]).sum().sqrt().item() / max(len(found), 1)
        kappa, kappa_error = _kappa(counts)
        return {
            "oa": wilson(self.accuracy, self.total),
            "aa": _around(self.summary()["aa"], error),
            "kappa": _around(kappa, kappa_error),
        }

    def by_class(self) -> dict[str, list[float]]:
        """The accuracy of each class; NaN where the set has none of it."""
        return {"accuracy": self.recall()}


BINS, LARGEST = 1 << 14, 16.0  # of the log-odds of a class, between -LARGEST and LARGEST


class RankingMetrics(ClassificationMetrics):
    """What a `ClassificationMetrics` has, the AUC before it and the share of the largest class behind it.

    With more than two classes the AUC is the mean over the classes, each against all others, as MedMNIST has it.
    """

    def __init__(self, classes: int, device: torch.device | str = "cpu"):
        super().__init__(classes, device)
        self.scores = torch.zeros(classes, 2, BINS, dtype=torch.int64, device=self.device)  # of others and of its own

    def counts(self) -> list[Tensor]:
        """The tensors that hold the sums."""
        return [*super().counts(), self.scores]

    def _add(self, logits: Tensor, targets: Tensor, loss: Tensor) -> None:
        super()._add(logits, targets, loss)
        odds = torch.special.logit(logits.double().softmax(1), eps=1e-12).clamp(-LARGEST, LARGEST)  # (B, K)
        bins = ((odds + LARGEST) * ((BINS - 1) / (2 * LARGEST))).round().long()
        own = torch.nn.functional.one_hot(targets, self.classes)
        for k in range(self.classes):
            self.scores[k].view(-1).add_(torch.bincount(own[:, k] * BINS + bins[:, k], minlength=2 * BINS))

    def aucs(self) -> Tensor:
        """(K,) the area of each class against the others; NaN where one of the two has no image."""
        others, own = self.scores.double().unbind(1)  # (K, BINS)
        below = others.cumsum(1) - others / 2  # ties count half
        return (own * below).sum(1) / (own.sum(1) * others.sum(1))

    def summary(self) -> dict[str, float]:
        """Fractions, not per cent.

        >>> metrics = RankingMetrics(2)
        >>> logits = torch.tensor([[0.0, 1.0], [0.0, 2.0], [0.0, 3.0]])
        >>> metrics.update(logits, torch.tensor([0, 1, 0]), torch.tensor(3.0))
        >>> metrics.summary()
        {'loss': 1.0, 'auc': 0.5, 'top1': 0.3333333333333333, 'majority': 0.6666666666666666}
        """
        found = super().summary()
        area = (self.aucs()[1] if self.classes == 2 else self.aucs().nanmean()).item()
        majority = int(self.confusion.sum(1).max()) / self.total if self.total else float("nan")
        return {"loss": found.pop("loss"), "auc": area, **found, "majority": majority}

    def by_class(self) -> dict[str, list[float]]:
        """The AUC and the recall of each class."""
        return {"auc": self.aucs().tolist(), **super().by_class()}


class SegmentationMetrics(Metrics):
    """IoU, Dice and boundary IoU with their means, pixel accuracy, loss, and the mean of the images' own mIoU.

    A class that neither truth nor prediction has is left out of a mean.
    """

    def __init__(self, classes: int, device: torch.device | str = "cpu"):
        super().__init__(classes, device)
        self.boundary = torch.zeros(3, classes, dtype=torch.int64, device=self.device)
        self.images = torch.zeros(2, dtype=torch.float64, device=self.device)  # the sum of their mIoUs, how many

    def counts(self) -> list[Tensor]:
        """The tensors that hold the sums."""
        return [*super().counts(), self.boundary, self.images]

    def _add(self, logits: Tensor, targets: Tensor, loss: Tensor) -> None:
        predicted = logits.argmax(1)
        each = _count_each(predicted, targets, self.classes, IGNORE)
        mious = _ious(each).nanmean(1)
        self.confusion += each.sum(0)
        self.loss += loss
        self.boundary += boundary_counts(predicted, targets, self.classes)
        self.images += torch.stack([mious.nansum(), (~mious.isnan()).sum()])

    def summary(self) -> dict[str, float]:
        """Fractions, not per cent."""
        iou, dice, boundary = (_mean(values) for values in self.by_class().values())
        mious, images = self.images
        return {
            "loss": self.mean_loss,
            "miou": iou,
            "mdice": dice,
            "pixel_accuracy": self.accuracy,
            "image_miou": _share(mious, int(images)),
            "boundary_iou": boundary,
        }

    def by_class(self) -> dict[str, list[float]]:
        """IoU, Dice and boundary IoU of each class.

        >>> metrics = SegmentationMetrics(2)
        >>> metrics.confusion += torch.tensor([[3, 1], [0, 2]])
        >>> metrics.by_class()["iou"]
        [0.75, 0.6666666666666666]
        """
        counts, (near_both, *near) = self.confusion.double(), self.boundary.double()
        hits, sizes = counts.diagonal(), counts.sum(0) + counts.sum(1)
        return {
            "iou": _ious(counts).tolist(),
            "dice": (2 * hits / sizes).tolist(),
            "boundary_iou": (near_both / (sum(near) - near_both)).tolist(),
        }


def _count_each(predicted: Tensor, truth: Tensor, classes: int, ignore: int | None) -> Tensor:
    """(B, classes, classes): the confusion matrix of each image (or row) of the batch."""
    number = len(truth)
    image = torch.arange(number, device=truth.device).view(-1, *[1] * (truth.ndim - 1)).expand_as(truth)
    if ignore is not None:
        counted = truth != ignore
        image, truth, predicted = image[counted], truth[counted], predicted[counted]
    if truth.numel() and int(truth.max()) >= classes:
        raise ValueError(f"the targets hold {int(truth.max())}, outside the {classes} classes 0..{classes - 1}")
    cells = ((image * classes + truth) * classes + predicted).flatten()
    return torch.bincount(cells, minlength=number * classes**2).view(number, classes, classes)


def _ious(confusion: Tensor) -> Tensor:
    """(..., K, K) counts to the (..., K) IoU of each class; NaN where neither truth nor prediction has it."""
    counts = to_float64(confusion)
    hits = counts.diagonal(dim1=-2, dim2=-1)
    return hits / (counts.sum(-1) + counts.sum(-2) - hits)


def _near_other(labels: Tensor, reach: int) -> Tensor:
    """(B, H, W) True where a pixel of another value, or the frame, is within `reach`."""
    axes = labels.ndim - 1
    padded = F.pad(labels.to(torch.int16), [reach] * 2 * axes, value=-1)
    side = 2 * reach + 1
    return _over_windows(torch.maximum, padded, side) != _over_windows(torch.minimum, padded, side)


def _over_windows(choose: Callable[[Tensor, Tensor], Tensor], values: Tensor, side: int) -> Tensor:
    """The extreme value of each window, `side` along each axis: windows grow by doubling, faster than pooling."""
    for dim in range(1, values.ndim):
        length = 1
        while length < side:
            step = min(length, side - length)
            left = values.shape[dim] - step
            values = choose(values.narrow(dim, 0, left), values.narrow(dim, step, left))
            length += step
    return values


def wilson(share: float, number: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share of `number` independent draws.

    >>> [round(end, 3) for end in wilson(1.0, 10)]
    [0.722, 1.0]
    """
    if not number:
        return float("nan"), float("nan")
    spread = Z**2 / number
    centre, half = share + spread / 2, Z * math.sqrt(share * (1 - share) / number + spread / (4 * number))
    return (centre - half) / (1 + spread), (centre + half) / (1 + spread)


def _kappa(confusion: Tensor) -> tuple[float, float]:
    """Cohen's κ and its standard error for many draws (Fleiss, Cohen, Everitt, 1969); NaN where nothing was counted.

    With θ1 the observed agreement, θ2 that by chance, θ3 and θ4 their moments: κ = (θ1 − θ2) / (1 − θ2).
    """
    shares = confusion.double() / confusion.sum()
    truth, predicted = shares.sum(1), shares.sum(0)
    one, two = shares.diagonal().sum(), (truth * predicted).sum()
    three = (shares.diagonal() * (truth + predicted)).sum()
    four = (shares * (truth[None, :] + predicted[:, None]).square()).sum()
    rest, chance = 1 - one, 1 - two
    variance = (
        one * rest / chance**2
        + 2 * rest * (2 * one * two - three) / chance**3
        + rest**2 * (four - 4 * two**2) / chance**4
    ) / confusion.sum()
    return ((one - two) / chance).item(), variance.clamp(min=0).sqrt().item()


def _around(centre: float, error: float) -> tuple[float, float]:
    return centre - Z * error, min(centre + Z * error, 1.0)


def _share(part: Tensor, total: int) -> float:
    return float(part) / total if total else float("nan")


def _mean(values: list[float]) -> float:
    return torch.tensor(values, dtype=torch.float64).nanmean().item()


AnyMetrics = ClassificationMetrics | SceneMetrics | SegmentationMetrics  # RankingMetrics are of the first


def to_json(metrics: AnyMetrics) -> dict[str, Any]:
    """Everything that was measured, ready for JSON; what nothing was counted for, as an absent class, is null."""
    summary = {name: or_none(value) for name, value in metrics.summary().items()}
    by_class = {name: list(map(or_none, values)) for name, values in metrics.by_class().items()}
    if isinstance(metrics, SceneMetrics):
        ends = {name: list(map(or_none, pair)) for name, pair in metrics.intervals().items()}
        summary |= {"intervals": ends}  # type: ignore[dict-item]
    return {**summary, "by_class": by_class, "confusion": metrics.confusion.tolist()}


def or_none(value: float) -> float | None:
    """For JSON, which has neither NaN nor infinity."""
    return value if math.isfinite(value) else None
