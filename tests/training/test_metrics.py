"""Metrics against scikit-learn, torchmetrics and scipy, and by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from scipy.ndimage import binary_erosion
from sklearn import metrics as sklearn_metrics

from tcpvit.compat import repair_torchvision
from tcpvit.training.metrics import (
    ClassificationMetrics,
    SegmentationMetrics,
    boundary_counts,
    count_confusion,
    image_mious,
    to_json,
)

repair_torchvision()

from torchmetrics import classification, segmentation  # noqa: E402


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


def made_masks(seed: int, *, ignored: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (5, 3, 24, 32) and masks of blocks, wrong along their edges and in a few places more."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randint(0, 3, (5, 6, 8), generator=generator)
    masks = coarse.repeat_interleave(4, 1).repeat_interleave(4, 2)
    logits = torch.nn.functional.one_hot(masks.roll(1, 2), 3).movedim(-1, 1) + torch.randn(
        5, 3, 24, 32, generator=generator
    )
    if ignored:
        masks[:, :, :3] = 255
    return logits, masks


def measure(logits: torch.Tensor, masks: torch.Tensor, classes: int = 3) -> SegmentationMetrics:
    metrics = SegmentationMetrics(classes)
    for x, y in zip(logits.split(2), masks.split(2), strict=True):
        metrics.update(x, y, torch.nn.functional.cross_entropy(x, y, ignore_index=255, reduction="sum"))
    return metrics


def test_segmentation_is_torchmetrics():
    logits, masks = made_masks(0)
    metrics = measure(logits, masks)
    options = {"num_classes": 3, "ignore_index": 255}
    iou = classification.MulticlassJaccardIndex(**options, average=None)
    dice = classification.MulticlassF1Score(**options, average=None)
    accuracy = classification.MulticlassAccuracy(**options, average="micro")
    for oracle in (iou, dice, accuracy):
        for x, y in zip(logits.split(2), masks.split(2), strict=True):
            oracle.update(x, y)
    assert metrics.by_class()["iou"] == pytest.approx(iou.compute().tolist())
    assert metrics.by_class()["dice"] == pytest.approx(dice.compute().tolist())
    summary = metrics.summary()
    assert summary["miou"] == pytest.approx(iou.compute().mean().item())
    assert summary["mdice"] == pytest.approx(dice.compute().mean().item())
    assert summary["pixel_accuracy"] == pytest.approx(accuracy.compute().item())
    assert summary["loss"] == pytest.approx(torch.nn.functional.cross_entropy(logits, masks, ignore_index=255).item())
    oracle = classification.MulticlassConfusionMatrix(**options)
    assert metrics.confusion.tolist() == oracle(logits, masks).tolist()


def test_the_miou_of_each_image_is_torchmetrics():
    logits, masks = made_masks(1, ignored=False)
    predicted = logits.argmax(1)
    oracle = segmentation.MeanIoU(num_classes=3, input_format="index")
    expected = [oracle(p[None], y[None]).item() for p, y in zip(predicted, masks, strict=True)]
    assert image_mious(predicted, masks, 3).tolist() == pytest.approx(expected)
    assert measure(logits, masks).summary()["image_miou"] == pytest.approx(np.mean(expected))


@pytest.mark.parametrize("ignored", [False, True])
def test_boundary_iou_is_that_of_eroded_masks(ignored):
    logits, masks = made_masks(2, ignored=ignored)
    predicted = torch.where(masks == 255, masks, logits.argmax(1)).numpy()
    reach = 1  # 2 % of a diagonal of 40 pixels
    expected = []
    for label in range(3):
        bands = []
        for labels in (masks.numpy(), predicted):
            inside = [binary_erosion(y == label, np.ones((3, 3)), iterations=reach) for y in labels]
            bands.append((labels == label) & ~np.array(inside))
        expected.append((bands[0] & bands[1]).sum() / (bands[0] | bands[1]).sum())
    assert measure(logits, masks).by_class()["boundary_iou"] == pytest.approx(expected)
    assert measure(logits, masks).summary()["boundary_iou"] == pytest.approx(np.mean(expected))


def test_boundary_iou_worked_by_hand():
    """8×8 with a square of 4×4 in the middle; the prediction is moved to the right by one pixel."""
    truth = torch.zeros(1, 8, 8, dtype=torch.int64)
    truth[:, 2:6, 2:6] = 1
    both, of_truth, of_predicted = boundary_counts(truth.roll(1, 2), truth, 2).tolist()
    assert of_truth[1] == of_predicted[1] == 12  # the rim of the square
    assert both[1] == 6  # three pixels of its upper and three of its lower side
    assert of_truth[0] == 28 + 20  # the frame, and what surrounds the square


def test_the_band_of_a_larger_image_is_two_per_cent_of_its_diagonal():
    truth = torch.zeros(1, 128, 128, dtype=torch.int64)
    assert boundary_counts(truth, truth, 1)[1].item() == 128**2 - 120**2  # 4 pixels along the frame


def test_a_perfect_prediction_measures_1_whatever_it_says_of_ignored_pixels():
    _, masks = made_masks(3)
    said = torch.where(masks == 255, 2, masks)
    summary = measure(torch.nn.functional.one_hot(said, 3).movedim(-1, 1).float(), masks).summary()
    assert {name: value for name, value in summary.items() if name != "loss"} == dict.fromkeys(
        ("miou", "mdice", "pixel_accuracy", "image_miou", "boundary_iou"), 1.0
    )


def test_an_empty_class_counts_as_wrong_once_it_is_predicted():
    """Truth: 4 pixels of class 0. Prediction: 3 of them, and one of class 1, which the truth has nowhere."""
    logits = torch.nn.functional.one_hot(torch.tensor([[[0, 0], [0, 1]]]), 3).movedim(-1, 1).float()
    metrics = measure(logits, torch.zeros(1, 2, 2, dtype=torch.int64))
    assert metrics.by_class()["iou"][:2] == [0.75, 0.0]
    assert metrics.by_class()["dice"][0] == pytest.approx(6 / 7)
    assert np.isnan(metrics.by_class()["iou"][2])
    assert metrics.summary()["miou"] == metrics.summary()["image_miou"] == 0.375


def test_where_everything_is_ignored_nothing_was_measured():
    metrics = measure(torch.randn(2, 3, 4, 4), torch.full((2, 4, 4), 255))
    assert all(np.isnan(value) for value in metrics.summary().values())
    found = to_json(metrics)
    assert found["miou"] is None
    assert found["by_class"]["iou"] == [None] * 3
    json.dumps(found, allow_nan=False)


def test_a_image_that_is_ignored_is_left_out_of_the_mean_over_images():
    masks = torch.tensor([[[0, 1]], [[255, 255]]])
    logits = torch.nn.functional.one_hot(torch.tensor([[[0, 1]], [[1, 1]]]), 2).movedim(-1, 1).float()
    assert image_mious(logits.argmax(1), masks, 2).isnan().tolist() == [False, True]
    assert measure(logits, masks, 2).summary()["image_miou"] == 1.0


def test_a_mask_value_outside_the_classes_is_named():
    with pytest.raises(ValueError, match=r"the targets hold 4, outside the 3 classes 0\.\.2"):
        SegmentationMetrics(3).update(torch.zeros(2, 3, 1, 2), torch.tensor([[[0, 1]], [[4, 255]]]), torch.tensor(0.0))


def test_the_counts_of_processes_add_up_to_those_of_the_whole():
    logits, masks = made_masks(4)
    whole, first, second = measure(logits, masks), measure(logits[:2], masks[:2]), measure(logits[2:], masks[2:])
    for one, other in zip(first.counts(), second.counts(), strict=True):
        one += other
    assert first.summary() == pytest.approx(whole.summary())
