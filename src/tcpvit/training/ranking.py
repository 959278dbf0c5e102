"""The area under the ROC curve, for classes of unequal size: counted in bins, so that processes can add theirs up."""

from __future__ import annotations

import torch
from torch import Tensor

from tcpvit.training.metrics import ClassificationMetrics

BINS, LARGEST = 1 << 14, 16.0  # of the log-odds of a class, between -LARGEST and LARGEST


class RankingMetrics(ClassificationMetrics):
    """What a `ClassificationMetrics` has, the AUC before it and the share of the largest class behind it.

    With more than two classes the AUC is the mean over the classes, each against all others, as MedMNIST has it.
    """

    def __init__(self, classes: int, device: torch.device | str = "cpu"):
        super().__init__(classes, device)
        self.scores = torch.zeros(classes, 2, BINS, dtype=torch.int64, device=device)  # of others and of its own

    def counts(self) -> list[Tensor]:
        """The tensors that hold the sums."""
        return [*super().counts(), self.scores]

    def update(self, logits: Tensor, targets: Tensor, loss: Tensor) -> None:
        """Add a batch: logits (B, K), its labels (B,), and the sum of its losses."""
        super().update(logits, targets, loss)
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
