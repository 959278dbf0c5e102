"""The hat domain: its layout, its half spectra, its product of slices."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from slice_cases import close
from torch import Tensor

from tcpvit.algebra import LearnedTransform, MatrixTransform, expm, get_transform, identity, solve, svd
from tcpvit.algebra.domain import Domain, eye_like, resolve, slice_matmul

FLOAT = torch.float64


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=FLOAT)


def test_slices_come_first_in_their_order():
    A = randn(7, 4, 5, 2, 3)
    domain = Domain(("dct", "haar"), A, tube_ndim=2)
    A_hat = domain.to_hat(A)
    M, N = (t.matrix for t in domain.transforms)
    close(A_hat, torch.einsum("bijcd,xc,yd->xybij", A, M, N))
    close(domain.from_hat(A_hat), A)
    assert domain.tube_shape == (2, 3)
    assert A_hat.is_contiguous()


@pytest.mark.parametrize("C", [1, 2, 5, 6])
def test_dft_of_real_tensors_keeps_half_of_the_slices(C):
    A = randn(4, 5, C)
    halves, full = Domain("dft", A), Domain("dft", A, full=True)
    assert (halves.half, full.half) == (0, None)
    assert halves.to_hat(A).shape == (C // 2 + 1, 4, 5)
    close(halves.to_hat(A), full.to_hat(A)[: C // 2 + 1])
    close(halves.from_hat(halves.to_hat(A)), A)
    assert Domain("dft", A + 0j).half is None


@pytest.mark.parametrize(
    ("transforms", "half", "shape"),
    [
        (("dct", "dft"), 1, (4, 3)),
        (("dft", "dct"), 0, (3, 4)),
        (("dft", "dft"), 1, (4, 3)),
        (("dct", "dct"), None, (4, 4)),
        (("dft", MatrixTransform(torch.eye(4) * 1j)), None, (4, 4)),
        ((MatrixTransform(torch.eye(4) * 1j), "dct"), None, (4, 4)),
    ],
)
def test_the_first_dft_is_halved_if_all_complex_ones_are_dfts(transforms, half, shape):
    A = randn(2, 3, 4, 4)
    domain = Domain(transforms, A, tube_ndim=2)
    assert domain.half == half
    assert domain.to_hat(A).shape == (*shape, 2, 3)
    back = domain.from_hat(domain.to_hat(A))
    close(back.real, A)
    assert back.is_complex() == (half is None and any(t.is_complex for t in domain.transforms))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("transform", "inside"), [("dct", None), ("dft", torch.complex64)])
def test_half_precision_goes_in_and_comes_out(dtype, transform, inside):
    A = torch.randn(4, 5, 3, dtype=dtype)
    domain = Domain(transform, A)
    assert domain.to_hat(A).dtype == (inside or dtype)
    assert domain.from_hat(domain.to_hat(A)).dtype == dtype


def test_autocast_does_not_round_the_algebra():
    A = torch.randn(4, 4, 3) + 4 * identity(4, 3)
    exact = solve(A, A), svd(A).S, expm(A / 8)
    with torch.autocast("cpu", torch.bfloat16):
        for result, same in zip((solve(A, A), svd(A).S, expm(A / 8)), exact, strict=True):
            torch.testing.assert_close(result, same)


def test_resolve_takes_one_transform_or_one_for_each_mode():
    learned = LearnedTransform(4)
    assert resolve("dct", (3,)) == (get_transform("dct", 3),)
    assert resolve(["dct", learned], (3, 4)) == (get_transform("dct", 3), learned)
    assert [t.tube for t in resolve("dft", (3, 4, 5))] == [3, 4, 5]
    with pytest.raises(ValueError, match="got 3 transforms for 2 tube modes; give one, or one for each"):
        resolve(("dct",) * 3, (3, 4))
    with pytest.raises(ValueError, match="transforms tubes of length 4, but the tensor's tube has 3 entries"):
        resolve(learned, (4, 3))


def test_domain_asks_what_it_was_told_to_ask():
    A = torch.ones(4, 5, 3)
    with pytest.raises(ValueError, match="B should have square slices, got 4×5"):
        Domain("dct", torch.ones(2, 2, 3), A, square=True)
    with pytest.raises(ValueError, match=r"A is torch\.float16, in which only products are computed"):
        Domain("dct", A.half(), finite=True)
    with pytest.raises(ValueError, match=r"B of shape \(4, 5, 3\) holds NaN or infinity"):
        Domain("dct", A, A * torch.nan, finite=True)
    with pytest.raises(ValueError, match=r"the tubes differ: A has shape \(4, 5, 3\), C \(4, 5, 2\)"):
        Domain("dct", A, A.clone(), A[..., :2])


@settings(max_examples=60)
@given(
    tubes=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    batches=st.sampled_from(
        [((), ()), ((2,), ()), ((), (2,)), ((2, 3), (3,)), ((3,), (2, 1)), ((2, 1), (1, 3)), ((0,), ())]
    ),
    m=st.integers(0, 3),
    k=st.integers(1, 3),
    n=st.integers(1, 3),
)
def test_slices_are_multiplied_with_broadcast_batches(tubes, batches, m, k, n):
    A, B = randn(*tubes, *batches[0], m, k), randn(*tubes, *batches[1], k, n)
    product = slice_matmul(A, B, len(tubes))
    expected = [a @ b for a, b in zip(A.flatten(0, len(tubes) - 1), B.flatten(0, len(tubes) - 1), strict=True)]
    close(product, torch.stack(expected).unflatten(0, tubes))


def test_eye_like_has_the_slices_of_its_model():
    model = torch.zeros(3, 2, 4, 5, dtype=torch.complex64)
    eye = eye_like(model, 4)
    assert (eye.shape, eye.dtype) == ((3, 2, 4, 4), torch.complex64)
    assert torch.equal(eye[2, 1], torch.eye(4, dtype=torch.complex64))
