"""Every check says what came, what was expected and what to do, and lets good input through."""

from __future__ import annotations

import re

import pytest
import torch

from tcpvit.algebra.checks import (
    check_batches,
    check_finite,
    check_precision,
    check_same_tube,
    check_tensor,
    matrix_shape,
)

GOOD = torch.ones(2, 4, 5, 3)


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: check_tensor([1.0], "X"), "X should be a torch tensor, got list; use torch.as_tensor"),
        (lambda: check_tensor(GOOD, tube_ndim=0), "tube_ndim counts the tube modes and is at least 1, got 0"),
        (
            lambda: check_tensor(GOOD.bool(), "X"),
            "X should hold floating-point numbers, got torch.bool; convert it with X.float()",
        ),
        (lambda: check_tensor(GOOD[0, 0]), "A should have shape (..., m, n, C), got (5, 3)"),
        (lambda: check_tensor(GOOD, tube_ndim=3), "A should have shape (..., m, n, C1, C2, C3), got (2, 4, 5, 3)"),
        (lambda: check_tensor(GOOD, square=True), "A should have square slices, got 4×5 slices in shape (2, 4, 5, 3)"),
        (
            lambda: check_same_tube(GOOD, GOOD[..., :2], "X"),
            "the tubes differ: A has shape (2, 4, 5, 3), X (2, 4, 5, 2); their last 1 dimension(s) should be equal",
        ),
        (
            lambda: check_same_tube(GOOD, GOOD.half()),
            "the dtypes differ: A is torch.float32, B is torch.float16; convert one of them",
        ),
        (
            lambda: check_same_tube(GOOD, GOOD.to("meta")),
            "the devices differ: A is on cpu, B on meta; move one of them",
        ),
        (
            lambda: check_batches(GOOD, torch.ones(3, 1, 1, 3)),
            "the batch dimensions (2,) of A and (3,) of B do not broadcast: A has shape (2, 4, 5, 3), B (3, 1, 1, 3)",
        ),
        (
            lambda: check_finite(GOOD / 0, "X"),
            "X of shape (2, 4, 5, 3) holds NaN or infinity; a factorisation needs finite numbers",
        ),
        (
            lambda: check_precision(GOOD.bfloat16()),
            "A is torch.bfloat16, in which only products are computed; convert it with A.float()",
        ),
    ],
)
def test_refusals_are_one_sentence(check, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        check()


def test_good_input_passes():
    check_tensor(GOOD)
    check_tensor(GOOD.to(torch.complex64), tube_ndim=2)
    check_tensor(GOOD[:, :, :4], square=True)
    check_same_tube(GOOD, torch.ones(3))
    check_same_tube(GOOD, torch.ones(7, 5, 3), tube_ndim=2)
    check_batches(GOOD, GOOD[0])
    check_batches(GOOD, torch.ones(6, 1, 1, 1, 3))
    check_finite(GOOD)
    check_precision(GOOD.double())


def test_matrix_shape_stands_before_the_tubes():
    assert matrix_shape(GOOD) == (4, 5)
    assert matrix_shape(GOOD, tube_ndim=2) == (2, 4)
