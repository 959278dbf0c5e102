"""What training minimises and measures: one object for classification, one for segmentation.

Losses and hits are sums; whoever calls divides by `weight`, so that micro-batches add up to the batch. `metric` is the
one that says which epoch is the best; higher is better.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tcpvit.data import IGNORE, Images
from tcpvit.training.metrics import ClassificationMetrics, RankingMetrics, SceneMetrics, SegmentationMetrics


@dataclass(frozen=True)
class Classification:
    """Logits (B, K) against labels (B,), or against probabilities (B, K) as mixup makes them."""

    classes: int
    metric: str = "top1"

    def loss(self, logits: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """The cross-entropy, summed over the images."""
        return F.cross_entropy(logits.float(), targets, reduction="sum", label_smoothing=smoothing)

    def weight(self, targets: Tensor) -> Tensor:
        """How many images there are."""
        return torch.tensor(len(targets), device=targets.device)

    def hits(self, logits: Tensor, targets: Tensor) -> Tensor:
        """How many images are right; of mixed ones the larger share counts."""
        labels = targets if targets.ndim == 1 else targets.argmax(1)
        return (logits.argmax(1) == labels).sum()

    def metrics(self, device: torch.device | str = "cpu") -> ClassificationMetrics | SceneMetrics:
        """Empty metrics, to be updated batch by batch."""
        kinds: dict[str, type[ClassificationMetrics | SceneMetrics]] = {"oa": SceneMetrics, "auc": RankingMetrics}
        return kinds.get(self.metric, ClassificationMetrics)(self.classes, device)

    def check_logits(self, logits: Tensor, targets: Tensor) -> None:
        """Raise unless logits are (B, K)."""
        _check_shape(logits, (len(targets), self.classes))


@dataclass(frozen=True)
class Segmentation:
    """Logits (B, K, H, W) against masks (B, H, W), of volumes one axis more; 255 counts for nothing."""

    classes: int
    metric: str = "miou"

    def loss(self, logits: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """The cross-entropy, summed over the pixels that count."""
        return F.cross_entropy(logits.float(), targets, ignore_index=IGNORE, reduction="sum", label_smoothing=smoothing)

    def weight(self, targets: Tensor) -> Tensor:
        """How many pixels count."""
        return (targets != IGNORE).sum()

    def hits(self, logits: Tensor, targets: Tensor) -> Tensor:
        """How many pixels are right."""
        return (logits.argmax(1) == targets).sum()

    def metrics(self, device: torch.device | str = "cpu") -> SegmentationMetrics:
        """Empty metrics, to be updated batch by batch."""
        return SegmentationMetrics(self.classes, device)

    def check_logits(self, logits: Tensor, targets: Tensor) -> None:
        """Raise unless logits are (B, K, H, W)."""
        _check_shape(logits, (len(targets), self.classes, *targets.shape[1:]))


Task = Classification | Segmentation


def task_for(data: Images) -> Task:
    """The task of a set, with the metric of its own if it has one."""
    number, own = len(data.classes), {} if data.metric is None else {"metric": data.metric}
    return Classification(number, **own) if data.task == "classification" else Segmentation(number, **own)


def _check_shape(logits: Tensor, expected: tuple[int, ...]) -> None:
    if logits.shape != expected:
        raise ValueError(
            f"the model gives logits of shape {tuple(logits.shape)}, but the data needs {expected}; "
            f"build it with num_classes={expected[1]}, and with a decoder if the data are masks"
        )
