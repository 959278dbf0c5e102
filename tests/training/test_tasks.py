"""Losses are sums over what counts, so that pieces of a batch add up to the batch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tcpvit.training.tasks import Classification, Segmentation


@pytest.fixture
def labels():
    return torch.tensor([0, 2, 1, 2])


@pytest.fixture
def logits():
    return torch.randn(4, 3, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_classification_is_torchs_cross_entropy(logits, labels, smoothing):
    task = Classification(3)
    expected = F.cross_entropy(logits, labels, label_smoothing=smoothing)
    torch.testing.assert_close(task.loss(logits, labels, smoothing) / task.weight(labels), expected)


def test_soft_labels_are_mixed_losses(logits, labels):
    task = Classification(3)
    soft = 0.7 * F.one_hot(labels, 3) + 0.3 * F.one_hot(labels.flip(0), 3)
    expected = 0.7 * task.loss(logits, labels) + 0.3 * task.loss(logits, labels.flip(0))
    torch.testing.assert_close(task.loss(logits, soft), expected)
    assert task.hits(logits, soft) == task.hits(logits, labels)


def test_segmentation_counts_only_what_is_not_ignored():
    task = Segmentation(2)
    logits = torch.randn(2, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    masks = torch.randint(0, 2, (2, 4, 4), generator=torch.Generator().manual_seed(1))
    masks[0, :3] = 255
    kept = masks != 255
    expected = F.cross_entropy(logits.movedim(1, -1)[kept], masks[kept])
    torch.testing.assert_close(task.loss(logits, masks) / task.weight(masks), expected)
    assert task.hits(logits, masks) == (logits.argmax(1)[kept] == masks[kept]).sum()


def test_nothing_but_border_gives_no_loss_and_no_weight():
    task, masks = Segmentation(2), torch.full((1, 4, 4), 255)
    assert task.loss(torch.randn(1, 2, 4, 4), masks) == 0
    assert task.weight(masks) == 0


@pytest.mark.parametrize(
    ("task", "logits", "targets"),
    [
        (Classification(3), (4, 2), (4,)),
        (Classification(3), (4, 3, 8, 8), (4,)),
        (Segmentation(3), (4, 3), (4, 8, 8)),
        (Segmentation(3), (4, 3, 4, 4), (4, 8, 8)),
    ],
)
def test_a_model_that_gives_something_else_is_refused(task, logits, targets):
    with pytest.raises(ValueError, match=r"the model gives logits of shape .* build it with num_classes=3"):
        task.check_logits(torch.zeros(logits), torch.zeros(targets))
