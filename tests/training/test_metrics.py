"""Metrics against scikit-learn and by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn import metrics as sklearn_metrics

from tcpvit.training.metrics import ClassificationMetrics, SegmentationMetrics, count_confusion, to_json


def test_confusion_is_scikit_learns():
    generator = torch.Generator().manual_seed(0)
    truth, predicted = (torch.randint(0, 7, (300,), generator=generator) for _ in range(2))
    expected = sklearn_metrics.confusion_matrix(truth, predicted, labels=range(7))
    assert np.array_equal(count_confusion(predicted, truth, 7).numpy(), expected)


def test_top1_and_top5_over_batches_are_scikit_learns():
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(90, 12, generator=generator)
    labels = torch.randint(0, 12, (90,), generator=generator)
    metrics = ClassificationMetrics(12)
    for x, y in zip(logits.split(40), labels.split(40), strict=True):
        metrics.update(x, y, torch.nn.functional.cross_entropy(x, y, reduction="sum"))
    expected = {
        "loss": sklearn_metrics.log_loss(labels, logits.double().softmax(1), labels=range(12)),
        "top1": sklearn_metrics.accuracy_score(labels, logits.argmax(1)),
        "top5": sklearn_metrics.top_k_accuracy_score(labels, logits, k=5, labels=range(12)),
    }
    assert metrics.summary() == pytest.approx(expected, rel=1e-6)
    recall = sklearn_metrics.recall_score(labels, logits.argmax(1), average=None, labels=range(12))
    assert metrics.by_class()["top1"] == pytest.approx(list(recall))


def test_five_classes_have_no_top5():
    assert set(ClassificationMetrics(5).summary()) == {"loss", "top1"}


def test_segmentation_is_of_the_whole_set_and_ignores_255():
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(6, 3, 8, 8, generator=generator)
    masks = torch.randint(0, 3, (6, 8, 8), generator=generator)
    masks[:, :2] = 255
    metrics = SegmentationMetrics(3)
    for x, y in zip(logits.split(4), masks.split(4), strict=True):
        metrics.update(x, y, torch.tensor(0.0))
    kept = masks != 255
    truth, predicted = masks[kept], logits.argmax(1)[kept]
    assert metrics.by_class()["iou"] == pytest.approx(
        list(sklearn_metrics.jaccard_score(truth, predicted, average=None))
    )
    assert metrics.by_class()["dice"] == pytest.approx(list(sklearn_metrics.f1_score(truth, predicted, average=None)))
    summary = metrics.summary()
    assert summary["miou"] == pytest.approx(sklearn_metrics.jaccard_score(truth, predicted, average="macro"))
    assert summary["mdice"] == pytest.approx(sklearn_metrics.f1_score(truth, predicted, average="macro"))
    assert summary["pixel_accuracy"] == pytest.approx(sklearn_metrics.accuracy_score(truth, predicted))
    assert metrics.total == int(kept.sum())


def test_a_class_that_nobody_has_is_left_out_of_the_mean():
    metrics = SegmentationMetrics(3)
    metrics.confusion += torch.tensor([[3, 1, 0], [0, 2, 0], [0, 0, 0]])
    assert metrics.summary()["miou"] == pytest.approx((3 / 4 + 2 / 3) / 2)
    assert to_json(metrics)["by_class"]["iou"][2] is None


def test_label_255_counts_in_classification():
    metrics = ClassificationMetrics(300)
    metrics.update(torch.eye(300)[[255]], torch.tensor([255]), torch.tensor(0.0))
    assert metrics.summary()["top1"] == 1.0


def test_a_label_outside_the_classes_is_named():
    with pytest.raises(ValueError, match=r"the targets hold 7, outside the 3 classes 0\.\.2"):
        count_confusion(torch.tensor([0, 1]), torch.tensor([0, 7]), 3)
