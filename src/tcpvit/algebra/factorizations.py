"""Factorisations (paper, Section 2.4): the matrix factorisation of every slice of the hat domain.

The factors come back to the spatial domain in torch's (or SciPy's) order, and are real for real tensors, but for
`eig` and the complex `schur`. Singular values and eigenvalues stand in f-diagonal tensors, S and D, so that every
result is a product: A = U ⋆ S ⋆ Vᵀ. The factors of `svd`, `qr`, `eigh`, `eig` are unique only up to signs or phases:
gradients are those of torch, and exist for functions that do not depend on the choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tcpvit.algebra.checks import LinAlgError, has_values
from tcpvit.algebra.domain import Domain, TransformsArg
from tcpvit.algebra.functions import norm, rank_cutoff
from tcpvit.algebra.inputs import in_full_precision
from tcpvit.algebra.predicates import is_symmetric
from tcpvit.algebra.scaling import power_of_two, slice_scale
from tcpvit.algebra.slicewise import multiplicity, name_slices, negated, slicewise
from tcpvit.algebra.truncation import Truncation
from tcpvit.errors import did_you_mean


class SVD(NamedTuple):
    """A = U ⋆ S ⋆ Vᵀ."""

    U: Tensor
    S: Tensor
    V: Tensor


class LowRank(NamedTuple):
    """An approximation of A, and how far it is: ‖A − approximation‖, and that over ‖A‖ (Frobenius)."""

    approximation: Tensor
    error: Tensor
    relative_error: Tensor


class QR(NamedTuple):
    """A = Q ⋆ R."""

    Q: Tensor
    R: Tensor


class LU(NamedTuple):
    """A = P ⋆ L ⋆ U."""

    P: Tensor
    L: Tensor
    U: Tensor


class Eigen(NamedTuple):
    """A ⋆ V = V ⋆ D."""

    D: Tensor
    V: Tensor


class Polar(NamedTuple):
    """A = Q ⋆ H, or A = H ⋆ Q."""

    Q: Tensor
    H: Tensor


class Schur(NamedTuple):
    """A = Z ⋆ T ⋆ Zᵀ."""

    T: Tensor
    Z: Tensor


Ranks = int | Sequence[int] | Tensor


@in_full_precision
def svd(A: Tensor, transform: TransformsArg = "dct", *, full_matrices: bool = False, tube_ndim: int = 1) -> SVD:
    """A = U ⋆ S ⋆ Vᵀ, with f-orthogonal U and V and an f-diagonal S: the t-SVD for the DFT, the c-SVD for the DCT.

    The singular values of hat slice k are the diagonal of hat slice k of S, largest first. With k = min(m, n) the
    factors have the shapes (..., m, k, C), (..., k, k, C), (..., n, k, C), and Uᵀ ⋆ U = I; with `full_matrices` they
    have (..., m, m, C), (..., m, n, C), (..., n, n, C). The gradient of U and V needs distinct singular values.

    >>> from tcpvit.algebra import cprod, transpose
    >>> A = torch.randn(4, 5, 3)
    >>> U, S, V = svd(A)
    >>> torch.allclose(cprod(cprod(U, S), transpose(V)), A, atol=1e-5)
    True
    """
    domain = Domain(transform, A, tube_ndim=tube_ndim, finite=True)
    U, S, V = _svd_slices(A, domain, full_matrices)
    S_hat = _diagonal(S.to(U.dtype), U.shape[-1], V.shape[-1])
    return SVD(domain.from_hat(U), domain.from_hat(S_hat), domain.from_hat(V))


@in_full_precision
def truncated_svd(
    A: Tensor,
    transform: TransformsArg = "dct",
    *,
    rank: Ranks | None = None,
    energy: float | None = None,
    tube_ndim: int = 1,
) -> SVD:
    """The leading part of the SVD, by `rank` or by `energy`.

    - `rank=r`: the r leading singular values of every slice (t-SVDM, tubal rank r).
    - `rank=(r0, r1, …)`: that many of slice 0, slice 1, …; slices that mirror each other in the DFT of a real tensor
      need equal ranks.
    - `energy=0.99`: as few as possible of all slices' singular values, largest first, so that the sum of their
      squares is at least that part of the whole (t-SVDM II of Kilmer, Horesh, Avron and Newman). Equal values are
      kept together. For orthogonal transforms it is that part of ‖A‖².

    The factors have as many columns as the largest of the slices' ranks. They stay orthonormal in every slice: where
    a slice keeps less, it is S that is zero.

    >>> U, S, V = truncated_svd(torch.randn(4, 5, 3), rank=2)
    >>> U.shape, S.shape, V.shape
    (torch.Size([4, 2, 3]), torch.Size([2, 2, 3]), torch.Size([5, 2, 3]))
    """
    domain = Domain(transform, A, tube_ndim=tube_ndim, finite=True)
    U, S, V = _svd_slices(A, domain)
    kept, width = _kept(S, domain, rank, energy)
    S_hat = (S * kept)[..., :width].diag_embed().to(U.dtype)
    return SVD(domain.from_hat(U[..., :width]), domain.from_hat(S_hat), domain.from_hat(V[..., :width]))


@in_full_precision
def low_rank(
    A: Tensor,
    transform: TransformsArg = "dct",
    *,
    rank: Ranks | None = None,
    energy: float | None = None,
    tube_ndim: int = 1,
) -> LowRank:
    """The product of the factors of `truncated_svd`, and its error.

    For orthogonal transforms, scaled or not, no tensor of that tubal rank (or with those ranks of the slices) is
    nearer to A in the Frobenius norm (Eckart–Young), and the squared error is the sum of the squares of the singular
    values left out, divided by the transform's scale. For others, such as "cosine_kka", it is the nearest in the hat
    domain only; the error is true for all of them. The gradient needs a gap between the singular values kept and
    those left out, and no other: values may repeat on either side.

    >>> low_rank(torch.ones(4, 5, 3), rank=1).error < 1e-5
    tensor(True)
    """
    domain = Domain(transform, A, tube_ndim=tube_ndim, finite=True)
    A_hat = domain.to_hat(A)
    with torch.no_grad():
        U, S, V = _factors(A_hat, domain)
        scale = slice_scale(A_hat, tube_ndim)
        kept, _ = _kept(S, domain, rank, energy)
    unscaled = Truncation.apply(A_hat / scale, U, S / scale[..., 0], V, kept)
    approximation = domain.from_hat(unscaled * scale)
    error, size = norm(A - approximation, tube_ndim=tube_ndim), norm(A, tube_ndim=tube_ndim)
    return LowRank(approximation, error, error / size.clamp_min(torch.finfo(A.dtype).tiny))


@in_full_precision
def orth(
    A: Tensor,
    transform: TransformsArg = "dct",
    *,
    rtol: float | None = None,
    atol: float | None = None,
    tube_ndim: int = 1,
) -> Tensor:
    """An orthonormal basis of the range of A: (..., m, r, C), r the tubal rank; tolerances as in `pinv`.

    Q ⋆ Qᵀ is the projector onto the range. A slice of smaller rank than r fills up with zero columns, so Qᵀ ⋆ Q = I
    holds if all slices have the same rank.

    >>> orth(torch.ones(4, 5, 3)).shape
    torch.Size([4, 1, 3])
    """
    domain = Domain(transform, A, tube_ndim=tube_ndim, finite=True)
    U, S, _ = _svd_slices(A, domain)
    kept = rank_cutoff(S, domain, A, rtol, atol)[..., None] < S
    return domain.from_hat((U * kept[..., None, :])[..., : _width(kept)])


@in_full_precision
def polar(A: Tensor, transform: TransformsArg = "dct", *, side: str = "right", tube_ndim: int = 1) -> Polar:
    """A = Q ⋆ H (`side="right"`) or A = H ⋆ Q (`side="left"`), H f-positive-semidefinite, Q with orthonormal slices.

    Q, of A's shape, is the nearest such tensor to A for orthogonal transforms. The gradient needs distinct singular
    values.

    >>> Q, H = polar(torch.randn(3, 3, 4))
    >>> from tcpvit.algebra import is_orthogonal
    >>> is_orthogonal(Q)
    True
    """
    if side not in ("right", "left"):
        raise ValueError(f"polar has H at one side of Q, 'right' or 'left', got {side!r}")
    domain = Domain(transform, A, tube_ndim=tube_ndim, finite=True)
    U, S, V = _svd_slices(A, domain)
    W = V if side == "right" else U
    return Polar(domain.from_hat(U @ V.mH), domain.from_hat((W * S[..., None, :]) @ W.mH))


@in_full_precision
def qr(A: Tensor, transform: TransformsArg = "dct", *, mode: str = "reduced", tube_ndim: int = 1) -> QR:
    """A = Q ⋆ R, with orthonormal columns in the slices of Q and upper triangular slices of R.

    `mode="reduced"`: Q (..., m, k, C) with k = min(m, n); `mode="complete"`: Q (..., m, m, C).

    >>> Q, R = qr(torch.randn(4, 2, 3))
    >>> Q.shape, R.shape
    (torch.Size([4, 2, 3]), torch.Size([2, 2, 3]))
    """
    if mode not in ("reduced", "complete"):
        raise ValueError(f"qr has no mode {mode!r}{did_you_mean(str(mode), ['reduced', 'complete'])}")
    domain = Domain(transform, A, tube_ndim=tube_ndim, finite=True)
    Q, R = slicewise(lambda slices: torch.linalg.qr(slices, mode), domain, domain.to_hat(A))
    return QR(domain.from_hat(Q), domain.from_hat(R))


@in_full_precision
def lu(A: Tensor, transform: TransformsArg = "dct", *, tube_ndim: int = 1) -> LU:
    """A = P ⋆ L ⋆ U with partial pivoting: in the hat domain permutations, unit lower and upper triangular slices.

    >>> P, L, U = lu(torch.randn(4, 2, 3))
    >>> P.shape, L.shape, U.shape
    (torch.Size([4, 4, 3]), torch.Size([4, 2, 3]), torch.Size([2, 2, 3]))
    """
    domain = Domain(transform, A, tube_ndim=tube_ndim, finite=True)
    P, L, U = slicewise(torch.linalg.lu, domain, domain.to_hat(A))
    return LU(domain.from_hat(P), domain.from_hat(L), domain.from_hat(U))


@in_full_precision
def cholesky(A: Tensor, transform: TransformsArg = "dct", *, tube_ndim: int = 1) -> Tensor:
    """L with lower triangular slices, A = L ⋆ Lᵀ; LinAlgError if A is not f-positive-definite.

    >>> from tcpvit.algebra import identity
    >>> torch.allclose(cholesky(4 * identity(2, 3)), 2 * identity(2, 3), atol=1e-5)
    True
    """
    domain = Domain(transform, A, tube_ndim=tube_ndim, square=True, finite=True)
    _check_symmetric(A, transform, tube_ndim)
    L, info = torch.linalg.cholesky_ex(domain.to_hat(A))
    if has_values(A) and info.any():
        raise LinAlgError(
            f"A of shape {tuple(A.shape)} is not f-positive-definite: {name_slices(info != 0, tube_ndim)} of its hat "
            "domain has an eigenvalue that is not positive; use eigh, or add a multiple of the identity tensor"
        )
    return domain.from_hat(L)


@in_full_precision
def eigh(A: Tensor, transform: TransformsArg = "dct", *, tube_ndim: int = 1) -> Eigen:
    """A = V ⋆ D ⋆ Vᵀ for f-symmetric A: D f-diagonal, smallest eigenvalues first, V f-orthogonal.

    The gradient of V needs distinct eigenvalues.

    >>> D, V = eigh(torch.ones(2, 2, 4))
    >>> from tcpvit.algebra import to_hat
    >>> to_hat(D)[..., 0].abs().round(decimals=4)
    tensor([[0., 0.],
            [0., 4.]])
    """
    domain = Domain(transform, A, tube_ndim=tube_ndim, square=True, finite=True)
    _check_symmetric(A, transform, tube_ndim)
    values, V = slicewise(torch.linalg.eigh, domain, domain.to_hat(A))
    return Eigen(domain.from_hat(values.diag_embed().to(V.dtype)), domain.from_hat(V))


@in_full_precision
def eig(A: Tensor, transform: TransformsArg = "dct", *, tube_ndim: int = 1) -> Eigen:
    """A ⋆ V = V ⋆ D with D f-diagonal, in no order; both are complex. V is invertible if no slice is defective.

    >>> from tcpvit.algebra import cprod
    >>> A = torch.randn(3, 3, 4)
    >>> D, V = eig(A)
    >>> torch.allclose(cprod(A.to(V.dtype), V), cprod(V, D), atol=1e-4)
    True
    """
    domain = Domain(transform, A, tube_ndim=tube_ndim, square=True, finite=True, full=True)
    values, V = torch.linalg.eig(domain.to_hat(A))
    return Eigen(domain.from_hat(values.diag_embed()), domain.from_hat(V))


@in_full_precision
def schur(A: Tensor, transform: TransformsArg = "dct", *, output: str = "real", tube_ndim: int = 1) -> Schur:
    """A = Z ⋆ T ⋆ Zᵀ with f-orthogonal Z and upper triangular slices of T.

    With `output="real"` the factors of real tensors are real, and real slices of T have 2×2 blocks on the diagonal
    for pairs of complex eigenvalues; `output="complex"` has none. torch has no Schur factorisation: this is SciPy's,
    on the CPU, one slice after the other, without gradient.

    >>> T, Z = schur(torch.randn(3, 3, 4))
    >>> from tcpvit.algebra import is_orthogonal
    >>> is_orthogonal(Z)
    True
    """
    if output not in ("real", "complex"):
        raise ValueError(f"schur has the outputs 'real' and 'complex', got {output!r}")
    domain = Domain(transform, A, tube_ndim=tube_ndim, square=True, finite=True, full=output == "complex")
    T, Z = slicewise(lambda slices: _schur_slices(slices, output), domain, domain.to_hat(A))
    return Schur(domain.from_hat(T), domain.from_hat(Z))


def _svd_slices(A: Tensor, domain: Domain, full_matrices: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """U, S, V of the hat slices: (C…, ..., m, k), (C…, ..., k), (C…, ..., n, k)."""
    return _factors(domain.to_hat(A), domain, full_matrices)


def _factors(A_hat: Tensor, domain: Domain, full_matrices: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    U, S, Vh = slicewise(lambda slices: torch.linalg.svd(slices, full_matrices), domain, A_hat)
    return U, S, Vh.mH


def _diagonal(S: Tensor, m: int, n: int) -> Tensor:
    """(..., k) -> (..., m, n), k = min(m, n)."""
    square = S.diag_embed()
    return torch.nn.functional.pad(square, (0, n - S.shape[-1], 0, m - S.shape[-1]))


def _kept(S: Tensor, domain: Domain, rank: Ranks | None, energy: float | None) -> tuple[Tensor, int]:
    """Which singular values (C…, ..., k) stay, and the largest number of them in a slice."""
    if (rank is None) == (energy is None):
        raise ValueError(f"give either rank or energy, got rank={rank} and energy={energy}")
    if energy is not None and not 0 < energy <= 1:
        raise ValueError(f"energy is a part of the whole, in (0, 1], got {energy}")
    if energy is not None:
        kept = _most_energetic(S, energy, domain)
        return kept, _width(kept)
    if isinstance(rank, int | np.integer) and not isinstance(rank, bool) and 1 <= rank <= S.shape[-1]:
        first = torch.arange(S.shape[-1], device=S.device) < int(rank)
        return first.expand_as(S), int(rank)  # known without looking at the numbers
    kept = _leading(S, rank, domain)
    return kept, _width(kept)


def _leading(S: Tensor, rank: Ranks | None, domain: Domain) -> Tensor:
    """Which singular values (C…, ..., k) are among the first `rank` of their slice."""
    ranks = torch.as_tensor(rank, device=S.device)
    if ranks.is_floating_point() or ranks.is_complex() or ranks.dtype == torch.bool:
        raise ValueError(f"rank is an integer, or one for each slice, got {rank!r}")
    smallest, largest = int(ranks.ndim == 0), S.shape[-1]
    if ((ranks < smallest) | (ranks > largest)).any():
        raise ValueError(f"rank is between {smallest} and min(m, n) = {largest}, got {rank!r}")
    if ranks.ndim > 0:
        ranks = _half_of(ranks, domain).view(*S.shape[: domain.tube_ndim], *[1] * (S.ndim - domain.tube_ndim))
    return (torch.arange(largest, device=S.device) < ranks).expand_as(S)


def _half_of(ranks: Tensor, domain: Domain) -> Tensor:
    """The ranks of the slices that the hat domain keeps, from those of all slices."""
    if ranks.numel() != domain.tube_shape.numel():
        raise ValueError(
            f"rank names {ranks.numel()} slices, but tubes of shape {tuple(domain.tube_shape)} make "
            f"{domain.tube_shape.numel()}"
        )
    ranks = ranks.reshape(domain.tube_shape)
    if domain.half is None:
        return ranks
    if not torch.equal(negated(ranks, domain), ranks):
        raise ValueError(
            f"slices k and C−k of the DFT of a real tensor mirror each other and need equal ranks, got {ranks.tolist()}"
        )
    return ranks.narrow(domain.half, 0, domain.tube_shape[domain.half] // 2 + 1)


def _most_energetic(S: Tensor, energy: float, domain: Domain) -> Tensor:
    """Which singular values (C…, ..., k) are the fewest with that part of the energy, for each tensor of the batch."""
    if not S.numel():
        return S > 0
    scale = power_of_two(S, (*range(domain.tube_ndim), -1))
    squares = (S.detach() / scale).double() ** 2
    tube_modes = tuple(range(domain.tube_ndim))
    behind = tuple(range(-1 - domain.tube_ndim, -1))

    def by_tensor(X: Tensor) -> Tensor:
        return X.movedim(tube_modes, behind).flatten(-1 - domain.tube_ndim)  # (..., C…·k)

    ordered, order = by_tensor(squares).sort(-1, descending=True)
    weighted = by_tensor(squares * multiplicity(domain, squares)).gather(-1, order)
    gathered = weighted.cumsum(-1)
    last = (gathered < energy * gathered[..., -1:]).sum(-1, keepdim=True)
    threshold = ordered.gather(-1, last)  # (..., 1)
    return (squares >= threshold) & (squares > 0)


def _width(kept: Tensor) -> int:
    """The largest rank of a slice, and at least one column."""
    return max(1, int(kept.sum(-1).max())) if kept.numel() else min(1, kept.shape[-1])


def _check_symmetric(A: Tensor, transform: TransformsArg, tube_ndim: int) -> None:
    if has_values(A) and not is_symmetric(A, transform, tube_ndim=tube_ndim):
        raise ValueError(
            f"A of shape {tuple(A.shape)} is not f-symmetric, its transpose differs from it; use eig or lu, or take "
            "(A + transpose(A)) / 2"
        )


def _schur_slices(slices: Tensor, output: str) -> tuple[Tensor, Tensor]:
    try:
        from scipy.linalg import schur as scipy_schur
    except ImportError as error:
        raise ImportError("schur needs SciPy: pip install 'tcpvit[train]'") from error
    flat = slices.detach().cpu().flatten(0, -3)
    T = torch.empty_like(flat, dtype=torch.promote_types(flat.dtype, torch.complex64) if output == "complex" else None)
    Z = torch.empty_like(T)
    for i, matrix in enumerate(flat.numpy()):
        T[i], Z[i] = map(torch.from_numpy, scipy_schur(matrix, output=output))
    return T.view(slices.shape).to(slices.device), Z.view(slices.shape).to(slices.device)
