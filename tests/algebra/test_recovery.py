"""Recovery: the proximal property, exact recovery as theory promises it, gradients, reports, errors, examples."""

import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from slice_cases import FLOAT, Case, cases, close, sizes
from torch.autograd import gradcheck

from tcpvit import algebra
from tcpvit.algebra import complete, cprod, norm, robust_pca, svt
from tcpvit.algebra.transforms import MatrixTransform

few = settings(max_examples=20, deadline=None)
ORTHOGONAL = ["dct", "dft", "dst", "haar", "identity", "random_orthogonal"]


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=FLOAT, generator=torch.Generator().manual_seed(seed))


def rand(*shape, seed=0):
    return torch.rand(*shape, dtype=FLOAT, generator=torch.Generator().manual_seed(seed))


def low_rank(m, n, *tube, rank=2, transform="dct", seed=0):
    A, B = randn(m, rank, *tube, seed=seed), randn(rank, n, *tube, seed=seed + 1)
    return cprod(A, B, transform, tube_ndim=len(tube))


def error(found, truth):
    return float((found - truth).norm() / truth.norm())


# --- singular value thresholding ---


@few
@given(case=cases(orthogonal=True), m=sizes, n=sizes)
def test_svt_is_the_proximal_operator_of_the_nuclear_norm(case: Case, m, n):
    """X = svt(A, τ) if and only if (A − X)/τ is a subgradient of the nuclear norm at X, the dual of the spectral."""
    A, tau = case.randn(m, n), 0.7
    X = svt(A, tau, **case.options)
    G = (A - X) / tau
    assert (norm(G, ord="spectral", **case.options) <= 1 + 1e-10).all()
    inner = algebra.inner(G, X, tube_ndim=len(case.tube))
    close(inner, norm(X, ord="nuclear", **case.options))


def test_svt_is_better_than_its_neighbours():
    A, tau = randn(5, 4, 3), 0.8
    for transform in ("dct", "dft"):
        X = svt(A, tau, transform)

        def objective(Y, transform=transform):
            return tau * norm(Y, transform, ord="nuclear") + (Y - A).square().sum() / 2

        for seed in range(20):
            assert objective(X) < objective(X + 1e-3 * randn(5, 4, 3, seed=seed))


def test_svt_of_one_slice_is_that_of_a_matrix():
    A = randn(5, 4, 1)
    U, S, V = np.linalg.svd(A[..., 0].numpy(), full_matrices=False)
    close(svt(A, 0.5)[..., 0], torch.from_numpy((U * np.maximum(S - 0.5, 0)) @ V))


def test_svt_of_a_batch_with_one_threshold_each():
    A, taus = randn(2, 3, 5, 4, 2), rand(2, 3)
    expected = [svt(a, tau) for a, tau in zip(A.flatten(0, 1), taus.flatten().tolist(), strict=True)]
    close(svt(A, taus), torch.stack(expected).view_as(A))


@pytest.mark.parametrize("transform", ["dct", "dft"])
def test_svt_gradient(transform):
    A, tau = randn(4, 3, 3).requires_grad_(), torch.tensor(0.5, dtype=FLOAT, requires_grad=True)
    assert gradcheck(lambda *x: svt(*x, transform), (A, tau))


# --- completion ---


@pytest.mark.parametrize("transform", ORTHOGONAL)
def test_completion_is_exact(transform):
    A = low_rank(50, 40, 4, transform=transform)
    known = rand(50, 40, 4, seed=5) < 0.6
    found = complete(torch.where(known, A, torch.nan), known, transform, tol=1e-9)
    assert found.converged
    assert not found.x.is_complex()
    assert torch.equal(found.x[known], A[known])
    assert error(found.x, A) < 1e-7


def test_completion_over_two_tube_modes():
    A = low_rank(24, 24, 2, 3, rank=1)
    known = rand(24, 24, 2, 3, seed=5) < 0.5
    found = complete(A, known, tol=1e-9, tube_ndim=2)
    assert error(found.x, A) < 1e-7


def test_completion_of_whole_tubes():
    A = low_rank(40, 40, 3, rank=1)
    known = rand(40, 40, 1, seed=5) < 0.6  # broadcasts along the tube
    assert error(complete(A, known, tol=1e-9).x, A) < 1e-7


def test_completion_cannot_do_with_too_little():
    """A tensor of tubal rank r has r(m + n − r)·C degrees of freedom; with fewer entries nothing can recover it."""
    A = low_rank(20, 20, 3, rank=5)
    known = rand(20, 20, 3, seed=5) < 0.3
    assert known.sum() < 5 * (20 + 20 - 5) * 3
    assert error(complete(A, known, tol=1e-4).x, A) > 0.1


def test_completion_minimises_the_nuclear_norm():
    """Far from exact recovery too: whatever else agrees with A has a larger norm."""
    A, known = randn(8, 8, 2), rand(8, 8, 2, seed=5) < 0.5
    X = complete(A, known, tol=1e-10, max_iterations=20000).x
    assert norm(X, ord="nuclear") < norm(torch.where(known, A, 0.0), ord="nuclear")
    for seed in range(20):
        nearby = X + 1e-3 * torch.where(known, 0.0, randn(8, 8, 2, seed=seed))
        assert norm(nearby, ord="nuclear") > norm(X, ord="nuclear")


# --- robust PCA ---


def corrupt(L, density, seed=7):
    where = rand(*L.shape, seed=seed) < density
    return torch.where(where, 3 * L.std() * randn(*L.shape, seed=seed + 1).sign(), 0.0)


@pytest.mark.parametrize("transform", ORTHOGONAL)
def test_robust_pca_is_exact(transform):
    L = low_rank(50, 40, 4, transform=transform)
    S = corrupt(L, 0.05)
    found = robust_pca(L + S, None, transform, tol=1e-9)
    assert found.converged
    assert not found.low_rank.is_complex()
    assert error(found.low_rank, L) < 1e-7
    assert error(found.sparse, S) < 1e-7
    assert torch.equal(found.sparse != 0, S != 0)
    assert int(algebra.tubal_rank(found.low_rank, transform, rtol=1e-6)) == 2


def test_robust_pca_over_two_tube_modes():
    L = low_rank(30, 30, 2, 3, rank=1)
    S = corrupt(L, 0.05)
    assert error(robust_pca(L + S, tol=1e-9, tube_ndim=2).low_rank, L) < 1e-7


def test_the_scale_of_the_transform_does_not_matter():
    """The default lam follows it; so the DFT's 1/√(C·max(m, n)) and the DCT's 1/√max(m, n) are one rule."""
    A = low_rank(20, 20, 4) + corrupt(randn(20, 20, 4), 0.1)
    twice = MatrixTransform(2 * algebra.get_transform("dct", 4).matrix)
    one, two = robust_pca(A, tol=1e-4), robust_pca(A, None, twice, tol=1e-4)
    assert one.iterations == two.iterations
    close(one.low_rank, two.low_rank)
    one, two = complete(A, A > -1, tol=1e-4), complete(A, A > -1, twice, tol=1e-4)
    assert one.iterations == two.iterations
    close(one.x, two.x)


def test_lam_of_the_dft_is_wrong_for_the_dct():
    L = low_rank(40, 40, 8)
    S = corrupt(L, 0.1)
    assert error(robust_pca(L + S, tol=1e-8).low_rank, L) < 1e-6
    assert error(robust_pca(L + S, 1 / math.sqrt(40 * 8), tol=1e-4).low_rank, L) > 0.05


def test_lam_weighs_the_two_parts():
    A = randn(10, 10, 3)
    assert robust_pca(A, 10.0).sparse.abs().max() < 1e-4  # so dear that nothing is sparse
    assert robust_pca(A, 1e-3).low_rank.abs().max() < 1e-4  # so cheap that everything is


# --- both ---


def test_a_batch_is_recovered_tensor_by_tensor():
    L = torch.stack([low_rank(30, 30, 3, rank=1, seed=s) * 10.0**s for s in (0, 5)])
    known = rand(30, 30, 3, seed=5) < 0.6
    found = complete(L, known, tol=1e-8)
    assert found.residuals.shape == (found.iterations + 1, 2)
    for tensor, truth in zip(found.x, L, strict=True):
        assert error(tensor, truth) < 1e-6
    S = torch.stack([corrupt(tensor, 0.05) for tensor in L])
    for tensor, truth in zip(robust_pca(L + S, tol=1e-8).low_rank, L, strict=True):
        assert error(tensor, truth) < 1e-6


def test_single_precision():
    L = low_rank(30, 30, 3, rank=1).float()
    known = rand(30, 30, 3, seed=5) < 0.6
    found = complete(L.clone().requires_grad_(), known)
    assert found.converged
    assert found.x.dtype == torch.float32
    assert not found.x.requires_grad
    assert error(found.x, L) < 1e-4
    assert robust_pca(L + corrupt(L, 0.05).float()).converged


def test_zero_is_zero():
    zero = torch.zeros(5, 4, 3)
    assert complete(zero, zero == 0).converged
    assert not complete(zero, zero == 0).x.any()
    both = torch.stack([zero, torch.ones(5, 4, 3)])
    found = robust_pca(both)
    assert found.converged
    assert not found.low_rank[0].any()
    assert torch.allclose(found.low_rank + found.sparse, both, atol=1e-4)


def test_too_few_iterations_are_reported():
    A = low_rank(20, 20, 3)
    known = rand(20, 20, 3) < 0.5
    with pytest.warns(RuntimeWarning, match="complete stopped after 2 iterations .* raise max_iterations") as seen:
        found = complete(A, known, max_iterations=2)
    assert seen[0].filename == __file__
    assert not found.converged
    with pytest.warns(RuntimeWarning, match="robust_pca stopped after 3 iterations") as seen:
        found = robust_pca(A, max_iterations=3)
    assert seen[0].filename == __file__
    assert str(found) == f"not converged after 3 iterations, relative residual {found.residuals[-1]:.1e}"
    assert repr(found) == "Decomposition(converged=False, iterations=3)"


A = randn(4, 5, 3)
ALL = torch.ones(4, 5, 3, dtype=torch.bool)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: svt(A, -1.0), r"threshold of at least 0, got tau=-1.0"),
        (
            lambda: svt(A.expand(2, 4, 5, 3), torch.ones(3)),
            r"tau should be a number, .* batch \(2,\), got shape \(3,\)",
        ),
        (lambda: svt(A, 1.0, "cosine_kka"), r"orthogonal transform, which .*cosine_kka.* is not; try 'dct'"),
        (lambda: svt(A * torch.nan, 1.0), r"A of shape \(4, 5, 3\) holds NaN"),
        (lambda: svt(A.long(), 1.0), r"A should hold floating-point numbers, got torch.int64"),
        (lambda: svt(A.half(), 1.0), r"A is torch.float16, in which only products are computed"),
        (lambda: complete(A, ALL.float()), r"mask should be a bool tensor, true where A is known, got torch.float32"),
        (lambda: complete(A, None), r"mask should be a bool tensor, true where A is known, got NoneType"),
        (lambda: complete(A, ALL[:3]), r"mask should have the shape \(4, 5, 3\) of A, .* got \(3, 5, 3\)"),
        (lambda: complete(A, ALL[..., 0].T[:, :3]), r"mask should have the shape \(4, 5, 3\) of A, .* got \(5, 3\)"),
        (lambda: complete(A, ~ALL), r"mask of shape \(4, 5, 3\) is nowhere true"),
        (lambda: complete(A * torch.nan, ALL), r"A of shape \(4, 5, 3\) holds NaN"),
        (lambda: complete(A.long(), ALL), r"A should hold floating-point numbers, got torch.int64"),
        (lambda: complete(A, ALL, "cosine_kka"), r"recovery needs an orthogonal transform"),
        (lambda: complete(A, ALL, tol=0), r"tol is positive, got 0"),
        (lambda: robust_pca(A, 0.0), r"positive lam, got 0.0"),
        (lambda: robust_pca(A, max_iterations=0), r"max_iterations is at least 1, got 0"),
        (lambda: robust_pca(A, None, "cosine_kka"), r"recovery needs an orthogonal transform"),
        (lambda: robust_pca(A[0]), r"A should have shape \(..., m, n, C\), got \(5, 3\)"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# --- the worked examples ---

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", ["svt_denoise", "complete_photo", "robust_pca_photo"])
def test_example_runs_and_the_dct_wins(name, tmp_path):
    run = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py", "--out", tmp_path], capture_output=True, text=True, check=True
    )
    before, by_colour, together = map(float, re.findall(r"([\d.]+) dB", run.stdout))
    assert before + 3 < by_colour
    assert by_colour + 1 < together
    assert 10_000 < (tmp_path / f"{name}.png").stat().st_size < 150_000
