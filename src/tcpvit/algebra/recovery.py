"""Recovery of tensors of low tubal rank: singular value thresholding, completion, and robust PCA.

The tensor nuclear norm ‖X‖_* is the sum of the singular values of all hat slices divided by s, where M Mᴴ = s·I
(`norm(X, ord="nuclear")`): so it is the dual of the spectral norm, whatever the scale of the transform. The problems
below are convex and live in the Frobenius norm, so they need an orthogonal transform, scaled or not.

`complete` and `robust_pca` are one splitting, A = X + E, by the alternating direction method of multipliers (ADMM)
with a fixed penalty. Growing the penalty, as is often done, makes the constraint hold soon but lets the iteration halt
short of the minimum; here it ends only when the residual of the constraint and that of the dual are both small.
In vmap and torch.compile, where numbers cannot be looked at, it goes on for all of `max_iterations`, and `converged` is
a tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tcpvit.algebra.checks import check_tensor, has_values, matrix_shape
from tcpvit.algebra.domain import Domain, TransformsArg
from tcpvit.algebra.inputs import in_full_precision
from tcpvit.algebra.report import Report, Solution, check_limits, warn_unless_converged
from tcpvit.algebra.scaling import power_of_two
from tcpvit.algebra.solvers import one_for_each


@dataclass(frozen=True, kw_only=True)
class Decomposition(Report):
    """A tensor as the sum of one of low tubal rank and a sparse one, and how the iteration that found it ended."""

    low_rank: Tensor = field(repr=False)
    sparse: Tensor = field(repr=False)


@in_full_precision
def svt(A: Tensor, tau: float | Tensor, transform: TransformsArg = "dct", *, tube_ndim: int = 1) -> Tensor:
    """Singular value thresholding: every singular value of every hat slice shrinks by tau, down to 0 at most.

    This is the proximal operator of the tensor nuclear norm, argmin over X of tau·‖X‖_* + ½‖X − A‖². `tau` is a
    number, or a tensor with one for each tensor of the batch. Differentiable where singular values do not repeat.

    >>> from tcpvit.algebra import norm
    >>> A = torch.randn(5, 4, 3)
    >>> bool(svt(A, norm(A, ord="spectral")).abs().max() < 1e-5)
    True
    """
    domain, _ = _orthogonal_domain(A, transform, tube_ndim)
    threshold = one_for_each(tau, "tau", A.shape[: -2 - tube_ndim], A)
    if has_values(threshold) and not bool((threshold >= 0).all()):
        raise ValueError(f"svt needs a threshold of at least 0, got tau={tau}")
    return _shrink_singular(domain, A, threshold)


@in_full_precision
@torch.no_grad()
def complete(
    A: Tensor,
    mask: Tensor,
    transform: TransformsArg = "dct",
    *,
    tol: float = 1e-5,
    max_iterations: int = 500,
    tube_ndim: int = 1,
) -> Solution:
    """The tensor of least nuclear norm that agrees with A where `mask` is true.

    A is (..., m, n, C), and its entries outside the mask do not matter: they may be NaN. `mask` is a bool tensor of
    that shape, or one that broadcasts to it: (m, n, 1) hides whole tubes. If A has a low tubal rank and enough of its
    entries, in no particular pattern, are known, the others are recovered exactly.

    >>> from tcpvit.algebra import cprod
    >>> _ = torch.manual_seed(0)
    >>> A = cprod(torch.randn(20, 1, 3), torch.randn(1, 20, 3))
    >>> completed = complete(A, torch.rand(20, 20, 3) < 0.6)
    >>> completed.converged, bool((completed.x - A).norm() < 1e-3 * A.norm())
    (True, True)
    """
    check_tensor(A, tube_ndim=tube_ndim)
    known = _check_mask(mask, A, tube_ndim)
    A = torch.where(known, A, 0.0)
    domain, scale = _orthogonal_domain(A, transform, tube_ndim)

    def unknown_part(X: Tensor, step: Tensor) -> Tensor:
        return torch.where(known, 0.0, X)

    found = _admm(domain, scale, A, unknown_part, tol, max_iterations)
    completed = Solution(
        x=torch.where(known, A, found.low_rank),
        converged=found.converged,
        iterations=found.iterations,
        residuals=found.residuals,
    )
    warn_unless_converged(completed, "complete", tol, "raise max_iterations", stacklevel=5)
    return completed


@in_full_precision
@torch.no_grad()
def robust_pca(
    A: Tensor,
    lam: float | None = None,
    transform: TransformsArg = "dct",
    *,
    tol: float = 1e-5,
    max_iterations: int = 500,
    tube_ndim: int = 1,
) -> Decomposition:
    """Tensor robust PCA: the L + S = A that minimises ‖L‖_* + lam·‖S‖₁, L of low tubal rank and S sparse.

    `lam` is by default 1/√(s·max(m, n)), M Mᴴ = s·I. That is 1/√(C·max(m, n)) for the DFT, where s = C, as in the
    literature of the t-product, but 1/√max(m, n) for orthonormal transforms such as the DCT. The reason: S may not
    look like something of low rank, so the spectral norm of its signs must stay below 1/lam; the hat slices of random
    signs have entries of variance s times their density, and so a spectral norm that grows like √(s·max(m, n)).

    If L has a low tubal rank and is not sparse itself, and S is sparse with no pattern, both are recovered exactly.

    >>> from tcpvit.algebra import cprod
    >>> _ = torch.manual_seed(0)
    >>> L = cprod(torch.randn(30, 1, 3), torch.randn(1, 30, 3))
    >>> found = robust_pca(torch.where(torch.rand(30, 30, 3) < 0.05, 10.0, L))
    >>> found.converged, bool((found.low_rank - L).norm() < 1e-3 * L.norm())
    (True, True)
    """
    domain, scale = _orthogonal_domain(A, transform, tube_ndim)
    if lam is None:
        lam = 1 / math.sqrt(scale * max(matrix_shape(A, tube_ndim)))
    elif not lam > 0:
        raise ValueError(f"robust_pca needs a positive lam, got {lam}")

    def sparse_part(X: Tensor, step: Tensor) -> Tensor:
        return X.sgn() * (X.abs() - lam * step).clamp_min(0)

    found = _admm(domain, scale, A, sparse_part, tol, max_iterations)
    warn_unless_converged(found, "robust_pca", tol, "raise max_iterations", stacklevel=5)
    return found


def _admm(
    domain: Domain,
    scale: float,
    A: Tensor,
    prox: Callable[[Tensor, Tensor], Tensor],
    tol: float,
    max_iterations: int,
) -> Decomposition:
    """Minimise ‖X‖_* + f(E) with X + E = A, `prox(·, step)` being the proximal operator of step·f.

    U is the multiplier times the step. The residual is the larger of ‖A − X − E‖ / ‖A‖ (the constraint) and
    ‖E − E_before‖ / ‖U‖ (the dual). The step, 4·√s times the mean of |A|, is that of Candès et al. for matrices.
    """
    check_limits(tol, max_iterations)
    over = tuple(range(-2 - domain.tube_ndim, 0))
    unit = power_of_two(A, over)
    A = A / unit

    def size(X: Tensor) -> Tensor:
        return torch.linalg.vector_norm(X, dim=over)

    step = 4 * math.sqrt(scale) * A.abs().mean(over)
    wide_step = step.view(*step.shape, *[1] * len(over))
    X = E = U = torch.zeros_like(A)
    residuals = [_relative(size(A), size(A))]
    seen = has_values(A)
    while len(residuals) <= max_iterations and not (seen and bool((residuals[-1] <= tol).all())):
        X = _shrink_singular(domain, A - E + U, step)
        E, E_before = prox(A - X + U, wide_step), E
        gap = A - X - E
        U = U + gap
        residuals.append(torch.maximum(_relative(size(gap), size(A)), _relative(size(E - E_before), size(U))))
    converged = (residuals[-1] <= tol).all()
    return Decomposition(
        low_rank=X * unit,
        sparse=E * unit,
        converged=bool(converged) if seen else converged,
        iterations=len(residuals) - 1,
        residuals=torch.stack(residuals),
    )


def _shrink_singular(domain: Domain, A: Tensor, threshold: Tensor) -> Tensor:
    U, S, Vh = torch.linalg.svd(domain.to_hat(A), full_matrices=False)
    shrunk = (S - threshold[..., None]).clamp_min(0)  # (C…, ..., k), the threshold (...)
    return domain.from_hat((U * shrunk[..., None, :]) @ Vh)


def _orthogonal_domain(A: Tensor, transform: TransformsArg, tube_ndim: int) -> tuple[Domain, float]:
    """The hat domain and its scale s, M Mᴴ = s·I."""
    domain = Domain(transform, A, tube_ndim=tube_ndim, finite=True)
    return domain, domain.orthogonal_scale("recovery needs")


def _check_mask(mask: Tensor, A: Tensor, tube_ndim: int) -> Tensor:
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        found = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise ValueError(f"mask should be a bool tensor, true where A is known, got {found}")
    try:
        known = mask.expand(A.shape)
    except RuntimeError:
        known = None
    if known is None or mask.ndim < 2 + tube_ndim:
        raise ValueError(
            f"mask should have the shape {tuple(A.shape)} of A, with 1 where it broadcasts, got {tuple(mask.shape)}"
        )
    if has_values(known) and not known.any():
        raise ValueError(f"mask of shape {tuple(mask.shape)} is nowhere true: nothing of A is known")
    return known


def _relative(size: Tensor, reference: Tensor) -> Tensor:
    """size / reference, and 0 where both are 0."""
    return torch.where(size == 0, 0.0, size / reference)
