"""Fields: connected pixels of one class, dealt whole to one side of a split; and which pixels lie near others."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpvit.errors import import_extra

DOMINANT = 0.75  # a field with more of its class than this is cut
Mask = NDArray[np.bool_]


def deal_fields(labels: NDArray[np.int32], share: float, random: np.random.RandomState) -> Mask:
    """(H, W), True for whole fields that together make about `share` of each class.

    Fields come in random order, and one is taken when it brings its class closer to the share. A class that has more
    than 3/4 of its pixels in one field is cut across that field's longer side, at exactly the share. Pixels belong to
    one field when they touch, at a corner too.
    """
    taken = np.zeros(labels.shape, np.bool_)
    for label in np.unique(labels[labels > 0]):
        field, number = _ndimage().label(labels == label, np.ones((3, 3)))
        sizes = np.bincount(field.ravel(), minlength=number + 1)[1:]
        if sizes.max() > DOMINANT * sizes.sum():
            taken |= _cut(field == sizes.argmax() + 1, round(share * sizes.sum()), random)
        else:
            taken |= np.isin(field, 1 + _closest(sizes, share * sizes.sum(), random))
    return taken


def within(mask: Mask, distance: int) -> Mask:
    """The pixels that have one of `mask` within so many rows and columns."""
    return _ndimage().maximum_filter(mask, size=2 * distance + 1, mode="constant", cval=False)


def _closest(sizes: NDArray[np.int64], goal: float, random: np.random.RandomState) -> NDArray[np.int64]:
    """Numbers of fields whose sizes add up to about `goal`: the smallest one where every field is far too large."""
    order, total, taken = random.permutation(len(sizes)), 0, []
    for number in order:
        if abs(total + sizes[number] - goal) < abs(total - goal):
            taken.append(number)
            total += sizes[number]
    return np.array(taken or [sizes.argmin()])


def _cut(field: Mask, number: int, random: np.random.RandomState) -> Mask:
    """`number` pixels (one at least) from one end of the field's longer side."""
    rows, columns = np.nonzero(field)
    along, across = (rows, columns) if np.ptp(rows) >= np.ptp(columns) else (columns, rows)
    first = np.lexsort((across, along if random.randint(2) else -along))[: max(1, number)]
    part = np.zeros_like(field)
    part[rows[first], columns[first]] = True
    return part


def _ndimage() -> Any:
    return import_extra("scipy.ndimage", "splits of a scene are made with SciPy", "scenes")
