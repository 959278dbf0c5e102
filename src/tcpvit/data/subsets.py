"""Which images a part holds: disjoint random draws by seed, stratified by class or not.

The paper trains both models on the same 10,000 and tests on the same 2,000 images of each set (Section 5.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from tcpvit.data.image_set import Images, ImageSet

PAPER_TRAIN, PAPER_TEST = 10_000, 2_000
Set = TypeVar("Set", bound=Images)


def draw(total: int, sizes: Sequence[int], *, seed: int, labels: Tensor | None = None) -> list[Tensor]:
    """Disjoint random draws of `sizes` out of `total` images, each in ascending order.

    With `labels` every draw keeps the proportions of the classes, to within one image per class.

    >>> [part.tolist() for part in draw(6, [3, 2], seed=0)]
    [[1, 2, 5], [0, 3]]
    >>> draw(6, [4], seed=0, labels=torch.tensor([0, 0, 0, 1, 1, 1]))[0].tolist()
    [1, 2, 3, 5]
    """
    if any(size < 0 for size in sizes) or sum(sizes) > total:
        asked = " + ".join(f"{size:,}" for size in sizes)
        raise ValueError(f"cannot draw {asked} different images out of {total:,}; ask for fewer")
    random = np.random.RandomState(seed)  # its stream is frozen, so the same seed is the same subset everywhere
    left = random.permutation(total)
    parts = []
    for size in sizes:
        chosen = _first_of_each_class(left, labels, size) if labels is not None else np.arange(len(left)) < size
        parts.append(torch.from_numpy(np.sort(left[chosen])))
        left = left[~chosen]
    return parts


def draw_parts(data: Set, sizes: Sequence[int], *, seed: int, stratified: bool) -> list[Set]:
    """Disjoint parts of a set, of these sizes, drawn as `draw` does."""
    rows = draw(len(data), sizes, seed=seed, labels=data.labels if stratified else None)
    return [data.subset(some) for some in rows]


def paper_subset(train: ImageSet, test: ImageSet, *, seed: int, stratified: bool) -> tuple[ImageSet, ImageSet]:
    """10,000 of the training and 2,000 of the test images."""
    (some,) = draw_parts(train, [PAPER_TRAIN], seed=seed, stratified=stratified)
    (held_out,) = draw_parts(test, [PAPER_TEST], seed=seed, stratified=stratified)
    return some, held_out


def fraction_sizes(total: int, held_out: float) -> tuple[int, int]:
    """How many to keep and how many to hold out; both parts get at least one image.

    >>> fraction_sizes(7349, 0.2)
    (5879, 1470)
    """
    if not 0 < held_out < 1 or total < 2:
        raise ValueError(
            f"a part is held out of at least 2 images by a fraction between 0 and 1, got {held_out} of {total}"
        )
    kept = min(max(int(total * (1 - held_out) + 1e-9), 1), total - 1)
    return kept, total - kept


def _first_of_each_class(order: np.ndarray, labels: Tensor, size: int) -> np.ndarray:
    """Mark the first images of `order` in each class, `size` in all, as many per class as its share."""
    classes = labels.numpy()[order]
    counts = np.bincount(classes)
    share = counts * size / max(len(order), 1)
    quota = np.floor(share).astype(int)
    largest_remainders = np.argsort(quota - share, kind="stable")[: size - quota.sum()]
    quota[largest_remainders] += 1
    chosen = np.zeros(len(order), dtype=bool)
    for label, number in enumerate(quota):
        chosen[np.flatnonzero(classes == label)[:number]] = True
    return chosen
