"""The area under the ROC curve."""

import pytest
import torch
from sklearn.metrics import roc_auc_score

from tcpvit.training.metrics import RankingMetrics


@pytest.mark.parametrize("classes", [2, 5])
def test_it_is_that_of_scikit_learn_and_adds_up(classes):
    torch.manual_seed(0)
    targets = torch.randint(0, classes, (600,))
    logits = torch.randn(600, classes) + 0.7 * torch.nn.functional.one_hot(targets, classes)
    metrics, half = RankingMetrics(classes), RankingMetrics(classes)
    metrics.update(logits[:300], targets[:300], torch.tensor(1.0))
    half.update(logits[300:], targets[300:], torch.tensor(1.0))
    for ours, theirs in zip(metrics.counts(), half.counts(), strict=True):
        ours += theirs
    scores = logits.softmax(1)
    if classes == 2:
        expected = roc_auc_score(targets, scores[:, 1])
    else:
        expected = sum(roc_auc_score(targets == k, scores[:, k]) for k in range(classes)) / classes
    assert metrics.summary()["auc"] == pytest.approx(expected, abs=2e-4)
    assert metrics.summary()["majority"] == pytest.approx(targets.bincount().max().item() / 600)


def test_a_class_that_is_not_there_counts_for_nothing():
    metrics = RankingMetrics(3)
    metrics.update(torch.eye(3)[:2], torch.tensor([0, 1]), torch.tensor(0.0))
    assert metrics.summary()["auc"] == 1.0
