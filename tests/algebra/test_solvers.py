"""Direct solvers against NumPy on the dense block matrix, their gradients and their errors."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from slice_cases import FLOAT, Case, cases, close, sizes
from torch.autograd import gradcheck
from torch.utils._python_dispatch import TorchDispatchMode

from tcpvit import algebra
from tcpvit.algebra import block_matrix, cprod, lstsq, solve, tikhonov

LinAlgError = torch.linalg.LinAlgError
few = settings(max_examples=25, deadline=None)


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=FLOAT, generator=torch.Generator().manual_seed(seed))


def columns(B, tube_ndim):
    """(..., m, q, C…) -> (..., m·C, q), on which `block_matrix` acts."""
    p = tube_ndim
    return B.flatten(-p).movedim(-2, -1).flatten(-3, -2)


def uncolumns(X, n, tube):
    """The inverse of `columns`."""
    return X.unflatten(-2, (n, -1)).movedim(-1, -2).unflatten(-1, tube)


def over_batch(function, *arrays):
    """`function` of the matrices of every batch, with NumPy."""
    batch = torch.broadcast_shapes(*[a.shape[:-2] for a in arrays])
    flat = [a.expand(*batch, *a.shape[-2:]).reshape(-1, *a.shape[-2:]).numpy() for a in arrays]
    results = np.stack([function(*matrices) for matrices in zip(*flat, strict=True)])
    return torch.from_numpy(results).view(*batch, *results.shape[-2:])


def dense_lstsq(A, B, tube, **options):
    """The oracle: NumPy's least-squares solution of least norm with the dense block matrix."""
    p = len(tube)
    X = over_batch(lambda a, b: np.linalg.lstsq(a, b, rcond=1e-12)[0], block_matrix(A, **options), columns(B, p))
    return uncolumns(X, A.shape[-1 - p], tube)


def regular(case: Case, m, n):
    """m×n slices whose singular values lie between 1/2 and 3/2."""
    return case.regular(max(m, n)).narrow(len(case.batch), 0, m).narrow(len(case.batch) + 1, 0, n)


# --- solve ---


@few
@given(case=cases(), m=sizes, q=sizes)
def test_solve_is_the_dense_solution(case: Case, m, q):
    A, B = case.regular(m), case.randn(m, q)
    X = over_batch(np.linalg.solve, block_matrix(A, **case.options), columns(B, len(case.tube)))
    close(solve(A, B, **case.options), uncolumns(X, m, case.tube))


@pytest.mark.parametrize(("batch_a", "batch_b"), [((), (3,)), ((3,), ()), ((2, 1), (3,)), ((2, 1), (2, 3))])
def test_batches_broadcast(batch_a, batch_b):
    A, B = randn(*batch_a, 4, 4, 3), randn(*batch_b, 4, 2, 3)
    X = solve(A, B)
    assert X.shape == (*torch.broadcast_shapes(batch_a, batch_b), 4, 2, 3)
    close(cprod(A, X), B.expand_as(X))
    close(lstsq(A, B), X)
    R = randn(*batch_b, 2, 2, 3, seed=1)
    close(cprod(cprod(A, lstsq(A, B, right=R)), R), B.expand_as(X), atol=1e-8)
    assert tikhonov(A, B, 0.1).shape == X.shape
    close(tikhonov(A, B, 0.1), tikhonov(A.expand(*X.shape[:-3], 4, 4, 3), B.expand_as(X), 0.1))


def test_single_precision_stays_single():
    A, B = randn(4, 4, 3), randn(4, 2, 3)
    X = solve(A.float(), B.float())
    assert X.dtype == torch.float32
    assert torch.allclose(X, solve(A, B).float(), rtol=1e-3, atol=1e-3)
    assert lstsq(A.float(), B.float()).dtype == tikhonov(A.float(), B.float(), 0.1).dtype == torch.float32


def test_complex_tensors():
    A, B = torch.complex(randn(4, 4, 3), randn(4, 4, 3, seed=1)), torch.complex(randn(4, 2, 3), randn(4, 2, 3, seed=1))
    for transform in ("dct", "dft"):
        X = solve(A, B, transform)
        close(cprod(A, X, transform), B)
        close(lstsq(A, B, transform), X)


def test_solve_names_the_singular_slices():
    hat = randn(3, 3, 4)
    hat[0, :, 1] = hat[1, :, 1]
    with pytest.raises(LinAlgError, match=r"shape \(3, 3, 4\) is singular.*slice 1 of its hat domain.*use lstsq"):
        solve(algebra.from_hat(hat), randn(3, 1, 4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("m", [1, 2, 20, 200])
def test_singular_is_told_from_regular(m, dtype):
    for seed in range(400 // (m + 10)):
        regular = randn(m, m, 3, seed=seed).to(dtype)
        solve(regular, regular[:, :1])
        hat = regular.clone()
        hat[..., 1] = (randn(m, m - 1, seed=seed) @ randn(m - 1, m, seed=seed + 1)).to(dtype)
        with pytest.raises(LinAlgError, match="slice 1"):
            solve(algebra.from_hat(hat), regular[:, :1])


def test_a_slice_of_rounding_errors_is_singular():
    A = randn(4, 4, 1).expand(4, 4, 3)  # all contrasts between its slices vanish, up to rounding
    with pytest.raises(LinAlgError, match="slices 1, 2"):
        solve(A, randn(4, 1, 3))
    assert lstsq(A, A).abs().max() < 10


# --- lstsq ---


@few
@given(case=cases(orthogonal=True), m=sizes, n=sizes, q=sizes)
def test_lstsq_is_the_dense_solution(case: Case, m, n, q):
    A, B = regular(case, m, n), case.randn(m, q)
    close(lstsq(A, B, **case.options), dense_lstsq(A, B, case.tube, **case.options))


@few
@given(case=cases(orthogonal=True), q=sizes)
def test_lstsq_of_deficient_rank_has_the_least_norm(case: Case, q):
    A, B = case.star(regular(case, 5, 2), regular(case, 2, 4)), case.randn(5, q)
    close(lstsq(A, B, **case.options), dense_lstsq(A, B, case.tube, **case.options))


def test_lstsq_without_an_orthogonal_transform_minimises_in_the_hat_domain():
    A, B = randn(6, 3, 4), randn(6, 1, 4)
    X = lstsq(A, B, "cosine_kka")
    hats = [algebra.to_hat(T, "cosine_kka").movedim(-1, 0) for T in (A, B, X)]
    close(hats[2], torch.linalg.lstsq(hats[0], hats[1]).solution)
    dense = dense_lstsq(A, B, (4,), transform="cosine_kka")

    def error(solution):
        return (cprod(A, solution, "cosine_kka") - B).norm()

    assert error(dense) < 0.999 * error(X)


@few
@given(case=cases(orthogonal=True), m=sizes, n=sizes, q=sizes)
def test_two_sided_lstsq_is_the_dense_solution(case: Case, m, n, q):
    A, right, B = regular(case, m, n), regular(case, 2, q), case.randn(m, q)
    tube, size = case.tube, n * 2 * torch.Size(case.tube).numel()
    units = torch.eye(size, dtype=FLOAT).view(size, *[1] * len(case.batch), n, 2, *tube)
    images = case.star(case.star(A, units), right)  # (size, ..., m, q, C…)
    matrix = images.flatten(1 + len(case.batch)).movedim(0, -1)  # (..., m·q·C, size)
    target = B.flatten(len(case.batch))[..., None]
    expected = over_batch(lambda a, b: np.linalg.lstsq(a, b, rcond=1e-12)[0], matrix, target)
    close(lstsq(A, B, right=right, **case.options), expected.view(*case.batch, n, 2, *tube))


def test_lstsq_keeps_the_digits_of_an_ill_conditioned_system():
    Q1, Q2 = (torch.linalg.qr(randn(3, 20, 20, seed=s))[0] for s in (0, 1))  # condition number 1e9
    A = algebra.from_hat(((Q1 * torch.logspace(0, -9, 20, dtype=FLOAT)) @ Q2).movedim(0, -1))
    X = randn(20, 1, 3)
    B = cprod(A, X)
    assert (cprod(A, lstsq(A, B)) - B).norm() <= 1e-14 * B.norm()


# --- tikhonov ---


@few
@given(case=cases(orthogonal=True), m=sizes, n=sizes)
def test_tikhonov_is_the_dense_solution(case: Case, m, n):
    A, B, L, mu, p = regular(case, m, n), case.randn(m, 2), regular(case, n + 1, n), 0.3, len(case.tube)
    stacked = torch.cat([block_matrix(A, **case.options), mu**0.5 * block_matrix(L, **case.options)], -2)
    zeros = torch.zeros(*case.batch, (n + 1) * torch.Size(case.tube).numel(), 2, dtype=FLOAT)
    X = over_batch(lambda a, b: np.linalg.lstsq(a, b)[0], stacked, torch.cat([columns(B, p), zeros], -2))
    close(tikhonov(A, B, mu, L, **case.options), uncolumns(X, n, case.tube))


@few
@given(case=cases(), m=sizes, n=sizes)
def test_tikhonov_with_the_identity(case: Case, m, n):
    A, B = case.randn(m, n), case.randn(m, 2)
    X = tikhonov(A, B, 0.5, **case.options)
    close(X, tikhonov(A, B, 0.5, case.eye(n), **case.options))
    normal = case.star(case.t(A), A) + 0.5 * case.eye(n)
    close(case.star(normal, X), case.star(case.t(A), B), atol=1e-9)


def test_tikhonov_with_one_mu_for_each_of_the_batch():
    A, B = randn(3, 5, 4, 2), randn(3, 5, 1, 2)
    X = tikhonov(A, B, torch.tensor([0.1, 1.0, 10.0]))
    close(X, torch.stack([tikhonov(a, b, mu) for a, b, mu in zip(A, B, (0.1, 1.0, 10.0), strict=True)]), atol=1e-6)
    close(tikhonov(A[0], B[:2], torch.tensor([0.1, 1.0]))[1], tikhonov(A[0], B[1], 1.0))


# --- gradients ---


@pytest.mark.parametrize("transform", ["dct", "dft", "cosine_kka"])
def test_gradients(transform):
    A, B = randn(3, 3, 4).requires_grad_(), randn(3, 2, 4).requires_grad_()
    tall, right = randn(4, 3, 4).requires_grad_(), randn(2, 3, 4).requires_grad_()
    target, L, mu = randn(4, 3, 4).requires_grad_(), randn(2, 3, 4).requires_grad_(), torch.tensor(0.3, dtype=FLOAT)
    assert gradcheck(lambda *x: solve(*x, transform), (A, B))
    assert gradcheck(lambda *x: lstsq(*x, transform), (tall, target))
    assert gradcheck(lambda a, b, r: lstsq(a, b, transform, right=r), (tall, target, right))
    assert gradcheck(lambda *x: tikhonov(*x, transform), (tall, target, mu.requires_grad_(), L))


def test_gradient_where_singular_values_repeat():
    A = algebra.identity(3, 2, dtype=FLOAT).requires_grad_()
    assert gradcheck(lstsq, (A, randn(3, 1, 2)))


# --- errors ---

A, B = randn(4, 4, 3), randn(4, 2, 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: solve(randn(4, 3, 3), B), r"square slices, got 4×3 slices in shape \(4, 3, 3\)"),
        (lambda: solve(A, randn(5, 2, 3)), r"as many rows in A as in B, got shapes \(4, 4, 3\) and \(5, 2, 3\)"),
        (lambda: solve(A, randn(4, 2, 5)), r"the tubes differ: A has shape \(4, 4, 3\), B \(4, 2, 5\)"),
        (lambda: solve(A, B.float()), r"the dtypes differ"),
        (lambda: solve(A.long(), B.long()), r"A should hold floating-point numbers, got torch.int64"),
        (lambda: solve(A.half(), B.half()), r"A is torch.float16, in which only products are computed"),
        (lambda: solve(A * torch.nan, B), r"A of shape \(4, 4, 3\) holds NaN or infinity"),
        (lambda: solve(A, B / 0), r"B of shape \(4, 2, 3\) holds NaN or infinity"),
        (lambda: solve(A.expand(2, 4, 4, 3), B.expand(3, 4, 2, 3)), r"batch dimensions \(2,\) of A and \(3,\) of B"),
        (lambda: solve(A, B[..., 0]), r"B should have shape \(..., m, n, C\), got \(4, 2\)"),
        (lambda: lstsq(A, randn(5, 2, 3)), r"as many rows in A as in B"),
        (
            lambda: lstsq(A, B, right=randn(2, 3, 3)),
            r"columns in right as in B, got shapes \(2, 3, 3\) and \(4, 2, 3\)",
        ),
        (lambda: lstsq(A, B, right=randn(2, 2, 4)), r"the tubes differ: A has shape \(4, 4, 3\), right \(2, 2, 4\)"),
        (lambda: lstsq(A, B, right=torch.nan * A), r"right of shape \(4, 4, 3\) holds NaN"),
        (lambda: lstsq(A, B, right=[1]), r"right should be a torch tensor, got list"),
        (lambda: tikhonov(A, B, 0), r"positive mu, got 0; for mu = 0 there is lstsq"),
        (
            lambda: tikhonov(A, B, torch.ones(3)),
            r"mu should be a number, or one for each .* batch \(\), got shape \(3,\)",
        ),
        (lambda: tikhonov(A, B, float("nan")), r"positive mu, got nan"),
        (lambda: tikhonov(A, B, 1.0, randn(2, 3, 3)), r"columns in L as in A, got shapes \(2, 3, 3\) and \(4, 4, 3\)"),
        (lambda: tikhonov(A, B, 1.0, torch.ones(1, 4, 3).long()), r"L should hold floating-point numbers"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("transform", ["dct", "dft"])
def test_no_float64_where_the_input_has_none(transform):
    """Apple's GPUs have none; "meta" stands for them."""
    found = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor) and result.is_meta:
                found.append(result.dtype)
            return result

    A, B = torch.randn(4, 4, 3, device="meta"), torch.randn(4, 2, 3, device="meta")
    with Watch():
        assert solve(A, B, transform).shape == B.shape
    assert torch.float32 in found
    assert not {torch.float64, torch.complex128} & set(found)
