"""Iterative solvers against the direct ones and SciPy, their convergence, their reports and their errors."""

import warnings

import numpy as np
import pytest
import scipy.sparse.linalg
import torch
from hypothesis import given, settings
from slice_cases import FLOAT, Case, cases, close, sizes

from tcpvit import algebra
from tcpvit.algebra import block_matrix, cg, cprod, gmres, golub_kahan, lstsq, solve

LinAlgError = torch.linalg.LinAlgError
few = settings(max_examples=15, deadline=None)


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=FLOAT, generator=torch.Generator().manual_seed(seed))


def positive(m, tube, transform="dct", seed=0):
    G = randn(m, m, tube, seed=seed)
    gram = cprod(algebra.transpose(G, transform), G, transform)
    return gram / algebra.norm(gram, transform, ord="spectral") + 0.1 * algebra.identity(
        m, tube, transform, dtype=FLOAT
    )


def from_slices(*slices):
    """The tensor with these hat slices."""
    return algebra.from_hat(torch.stack([torch.as_tensor(s, dtype=FLOAT) for s in slices], dim=-1))


# --- the solutions ---


@few
@given(case=cases(), m=sizes, q=sizes)
def test_cg_solves(case: Case, m, q):
    A = case.regular(m)
    A, B = case.star(case.t(A), A), case.randn(m, q)
    found = cg(A, B, tol=1e-12, **case.options)
    assert found.converged
    close(found.x, solve(A, B, **case.options))


@few
@given(case=cases(), m=sizes, q=sizes)
def test_gmres_solves(case: Case, m, q):
    A, B = case.regular(m), case.randn(m, q)
    found = gmres(A, B, tol=1e-12, **case.options)
    assert found.converged
    assert found.iterations <= m + 1  # each slice has its own Krylov space; one more where rounding took a digit
    close(found.x, solve(A, B, **case.options))


@few
@given(case=cases(), m=sizes, n=sizes, q=sizes)
def test_golub_kahan_finds_the_least_squares_solution_of_least_norm(case: Case, m, n, q):
    A = case.regular(4).narrow(len(case.batch), 0, m).narrow(len(case.batch) + 1, 0, n)
    B = case.randn(m, q)
    found = golub_kahan(A, B, tol=1e-12, **case.options)
    assert found.converged
    close(found.x, lstsq(A, B, **case.options))


def test_golub_kahan_takes_any_rank():
    A, B = cprod(randn(8, 3, 4), randn(3, 6, 4)), randn(8, 2, 4)
    for transform in ("dct", "dft"):  # rank 3 in every slice, and in the first only
        found = golub_kahan(A, B, transform, tol=1e-12)
        assert found.converged
        close(found.x, lstsq(A, B, transform), atol=1e-8)


def test_a_batch_is_solved_tensor_by_tensor():
    A, B = randn(3, 1, 6, 6, 4) / 6 + algebra.identity(6, 4, dtype=FLOAT), randn(2, 6, 2, 4)
    for solver in (gmres, golub_kahan):
        found = solver(A, B, tol=1e-10)
        assert found.x.shape == (3, 2, 6, 2, 4)
        assert found.residuals.shape == (found.iterations + 1, 3, 2)
        close(cprod(A, found.x), B.expand_as(found.x), atol=1e-8)


@pytest.mark.parametrize("transform", ["dct", "dft"])
def test_iterations_against_scipy_on_the_dense_matrix(transform):
    """One Krylov space for each slice needs no more iterations than SciPy's one for the whole tensor."""
    A, B = positive(20, 4, transform), randn(20, 1, 4)
    dense, flat = block_matrix(A, transform).numpy(), B.flatten().numpy()
    for ours, theirs in ((cg, scipy.sparse.linalg.cg), (gmres, scipy.sparse.linalg.gmres)):
        count = []
        options = {"restart": 80, "callback_type": "pr_norm"} if ours is gmres else {}
        x, _ = theirs(dense, flat, rtol=1e-10, callback=count.append, **options)
        found = ours(A, B, transform, tol=1e-10, **({"restart": 80} if ours is gmres else {}))
        close(found.x.flatten(), torch.from_numpy(x), atol=1e-7)
        assert found.converged
        assert found.iterations < len(count)


def test_with_one_slice_the_histories_are_those_of_scipy():
    A, B = positive(20, 1), randn(20, 1, 1)
    dense, flat = A[..., 0].numpy(), B.flatten().numpy()
    iterates = []
    scipy.sparse.linalg.cg(dense, flat, rtol=1e-8, callback=lambda x: iterates.append(x.copy()))
    theirs = [np.linalg.norm(flat - dense @ x) / np.linalg.norm(flat) for x in iterates]
    np.testing.assert_allclose(cg(A, B, tol=1e-8).residuals[1:].numpy(), theirs, rtol=1e-4)
    norms = []
    scipy.sparse.linalg.gmres(dense, flat, rtol=1e-8, restart=20, callback=norms.append, callback_type="pr_norm")
    ours = gmres(A, B, tol=1e-8).residuals[1:].numpy()
    np.testing.assert_allclose(ours, norms[: len(ours)], rtol=1e-4)
    expected = scipy.sparse.linalg.lsqr(dense, flat, atol=0, btol=1e-8)
    found = golub_kahan(A, B, tol=1e-8)
    assert abs(found.iterations - expected[2]) <= 1
    close(found.x.flatten(), torch.from_numpy(expected[0]), atol=1e-6)


# --- the history ---


@pytest.mark.parametrize("solver", [cg, gmres, golub_kahan])
@pytest.mark.parametrize("transform", ["dct", "dft"])
def test_the_last_residual_is_the_true_one(solver, transform):
    A, B = positive(12, 5, transform), randn(12, 2, 5)
    found = solver(A, B, transform, tol=1e-6)
    assert found.residuals.shape == (found.iterations + 1,)
    true = (B - cprod(A, found.x, transform)).norm() / B.norm()
    if solver is golub_kahan:
        assert found.residuals[-1] <= 1e-6
        assert true < 1e-5
    else:
        close(found.residuals[0], torch.tensor(1.0, dtype=FLOAT))
        close(found.residuals[-1], true, atol=1e-14)
        assert found.residuals[-1] <= 1e-6 < found.residuals[-2]


@pytest.mark.parametrize("solver", [cg, gmres, golub_kahan])
def test_a_good_start_saves_iterations(solver):
    A, X = positive(30, 3), randn(30, 2, 3)
    B = cprod(A, X)
    cold = solver(A, B, tol=1e-8)
    warm = solver(A, B, tol=1e-8, start=X + 1e-6 * randn(30, 2, 3, seed=1))
    assert 0 < warm.iterations < cold.iterations
    close(warm.x, X, atol=1e-6)
    done = solver(A, B, tol=1e-8, start=X)
    assert done.converged
    assert done.iterations == 0
    close(done.x, X)


@pytest.mark.parametrize("solver", [cg, gmres, golub_kahan])
def test_nothing_on_the_right(solver):
    A, B = positive(5, 3), torch.stack([torch.zeros(5, 2, 3, dtype=FLOAT), randn(5, 2, 3)])
    found = solver(A, B[0], start=randn(5, 2, 3))
    assert found.converged
    assert found.iterations == 0
    assert not found.x.any()
    found = solver(A, B, tol=1e-10)  # beside a tensor that is not zero
    assert found.converged
    assert not found.x[0].any()
    close(found.x[1], solve(A, B[1]), atol=1e-8)


@pytest.mark.parametrize("solver", [cg, gmres, golub_kahan])
def test_single_precision_and_no_gradient(solver):
    A, B = positive(8, 3).float().requires_grad_(), randn(8, 1, 3).float()
    found = solver(A, B)
    assert found.converged
    assert found.x.dtype == torch.float32
    assert not found.x.requires_grad


def test_large_systems_in_single_precision():
    Q1, Q2 = (torch.linalg.qr(randn(2, 300, 300, seed=s))[0] for s in (0, 1))
    A_hat = (Q1 * torch.logspace(0, -1.5, 300, dtype=FLOAT)) @ (Q1.mT + 0.1 * Q2)
    A, B = from_slices(*A_hat).float(), randn(300, 1, 2).float()
    for found in (gmres(A, B), golub_kahan(A, B)):
        assert found.converged
        assert (cprod(A, found.x) - B).norm() < 2e-5 * B.norm()


def test_slices_of_very_different_speed():
    """Slice 0 is solved at once, slice 1 takes its time; the first must stand still meanwhile."""
    slow = torch.diag(torch.logspace(0, -3, 30, dtype=FLOAT))
    A, B = from_slices(torch.eye(30), slow), randn(30, 2, 2)
    for solver in (cg, gmres, golub_kahan):
        found = solver(A, B, tol=1e-9)
        assert found.converged
        close(found.x, solve(A, B), atol=1e-4)


def test_gmres_estimates_do_not_overflow():
    """Each step of slice 0 gains three digits for 30 steps, more than single precision can count."""
    noise = randn(60, 60, seed=1) / 1e4
    slow = torch.diag(torch.linspace(0.01, 1, 60, dtype=FLOAT))
    found = gmres(from_slices(torch.eye(60) + noise, slow).float(), randn(60, 1, 2).float())
    assert found.converged
    assert found.iterations > 30
    assert found.residuals.isfinite().all()


def test_gmres_where_the_first_steps_gain_nothing():
    """A cyclic shift: the residual stays at 1 until the last step (so a minimiser along residuals breaks down)."""
    shift = torch.eye(6, dtype=FLOAT).roll(1, 0)
    A, B = from_slices(shift, shift), torch.zeros(6, 1, 2, dtype=FLOAT)
    B[0] = 1.0
    found = gmres(A, B)
    assert found.converged
    assert found.iterations == 6
    close(found.residuals[:-1], torch.ones(6, dtype=FLOAT))
    close(found.x, solve(A, B))


def test_restarts_count_their_iterations():
    A, B = positive(40, 2), randn(40, 1, 2)
    short, long = gmres(A, B, restart=5, tol=1e-6), gmres(A, B, restart=100, tol=1e-6)
    assert short.converged
    assert short.iterations > long.iterations
    assert (short.residuals[1:] <= short.residuals[:-1] * (1 + 1e-9)).all()


# --- when it does not converge ---


@pytest.mark.parametrize("solver", [cg, gmres, golub_kahan])
def test_too_few_iterations_are_reported(solver):
    A, B = positive(30, 3), randn(30, 1, 3)
    name = solver.__name__
    with pytest.warns(
        RuntimeWarning, match=rf"{name} stopped after 3 iterations .* above .* 1e-10; raise max_it"
    ) as seen:
        found = solver(A, B, tol=1e-10, max_iterations=3)
    assert seen[0].filename == __file__
    assert not found.converged
    assert found.iterations == 3
    assert found.residuals[-1] > 1e-10
    assert str(found) == f"not converged after 3 iterations, relative residual {found.residuals[-1]:.1e}"
    assert repr(found) == "Solution(converged=False, iterations=3)"


def test_success_is_silent_and_says_so():
    A, B = positive(10, 3), randn(10, 1, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = cg(A, B)
    assert str(found).startswith(f"converged after {found.iterations} iterations, relative residual ")


def test_gmres_gives_up_on_a_singular_tensor():
    A = torch.stack([torch.diag(torch.tensor([1.0, 2.0, 0.0])), torch.eye(3)], dim=-1)
    with pytest.warns(RuntimeWarning, match="no more progress: A is singular or badly conditioned"):
        found = gmres(A, torch.ones(3, 1, 2), "identity")
    assert not found.converged
    assert found.iterations < 10
    expected = torch.tensor([[1.0, 1.0], [0.5, 1.0], [0.0, 1.0]])[:, None]
    close(found.x, expected, atol=1e-6)
    close(found.residuals[-1], torch.tensor((1 / 6) ** 0.5), atol=1e-6)  # one of six entries is out of reach


def test_a_tolerance_below_rounding_ends_all_the_same():
    A, B = positive(20, 3), randn(20, 1, 3)
    for solver in (cg, gmres, golub_kahan):
        with pytest.warns(RuntimeWarning, match="no more progress"):
            found = solver(A, B, tol=1e-30)
        assert found.iterations < 1000
        assert 1e-18 < found.residuals[-1] < 1e-12  # the truth, where the recursion goes on to 0


def test_cg_refuses_what_is_not_positive_definite():
    indefinite = from_slices(torch.eye(3), torch.diag(torch.tensor([1.0, 2.0, -1.0])))
    with pytest.raises(LinAlgError, match=r"shape \(3, 3, 2\) is not: slice 1 .* indefinite or singular; use gmres"):
        cg(indefinite, from_slices(torch.ones(3, 1), torch.ones(3, 1)))
    with pytest.raises(ValueError, match=r"A = Aᵀ, but A of shape \(3, 3, 2\) is not f-symmetric; use gmres"):
        cg(randn(3, 3, 2), randn(3, 1, 2))


# --- errors ---

A, B = positive(4, 3), randn(4, 2, 3)


@pytest.mark.parametrize("solver", [cg, gmres, golub_kahan])
@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((A, randn(5, 2, 3)), {}, r"as many rows in A as in B, got shapes \(4, 4, 3\) and \(5, 2, 3\)"),
        ((A, B * torch.nan), {}, r"B of shape \(4, 2, 3\) holds NaN"),
        ((A.long(), B), {}, r"A should hold floating-point numbers, got torch.int64"),
        ((A, B), {"tol": 0}, r"tol is positive, got 0"),
        ((A, B), {"max_iterations": 0}, r"max_iterations is at least 1, got 0"),
        ((A, B), {"start": B[:, :1]}, r"start should have the shape of X, \(4, 2, 3\), got \(4, 1, 3\)"),
        ((A, B), {"start": B.float()}, r"the dtypes differ: A is torch.float64, start is torch.float32"),
        ((A, B), {"start": B / 0}, r"start of shape \(4, 2, 3\) holds NaN or infinity"),
    ],
)
def test_bad_input(solver, arguments, options, message):
    with pytest.raises(ValueError, match=message):
        solver(*arguments, **options)


def test_bad_input_of_one_solver():
    with pytest.raises(ValueError, match="restart is at least 1, got 0"):
        gmres(A, B, restart=0)
    for solver in (cg, gmres):
        with pytest.raises(ValueError, match="square slices, got 4×3"):
            solver(randn(4, 3, 3), B)
