"""Factorisations (paper, Section 2.4): the matrix factorisation of every slice of the hat domain.

The factors come back to the spatial domain in torch's (or SciPy's) order, and are real for real tensors, but for
`eig` and the complex `schur`. Singular values and eigenvalues stand in f-diagonal tensors, S and D, so that every
result is a product: A = U ⋆ S ⋆ Vᵀ. The factors of `svd`, `qr`, `eigh`, `eig` are unique only up to signs or phases:
gradients are those of torch, and exist for functions that do not depend on the choice.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tcpvit.algebra.checks import LinAlgError, has_values
from tcpvit.algebra.domain import Domain, TransformsArg
from tcpvit.algebra.inputs import in_full_precision
from tcpvit.algebra.predicates import is_symmetric
from tcpvit.algebra.slicewise import name_slices, slicewise
from tcpvit.errors import did_you_mean


class SVD(NamedTuple):
    """A = U ⋆ S ⋆ Vᵀ."""

    U: Tensor
    S: Tensor
    V: Tensor


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
    U, S, V = svd_slices(domain.to_hat(A), domain, full_matrices)
    S_hat = _diagonal(S.to(U.dtype), U.shape[-1], V.shape[-1])
    return SVD(domain.from_hat(U), domain.from_hat(S_hat), domain.from_hat(V))


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
    U, S, V = svd_slices(domain.to_hat(A), domain)
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


def svd_slices(A_hat: Tensor, domain: Domain, full_matrices: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """U, S, V of the hat slices: (C…, ..., m, k), (C…, ..., k), (C…, ..., n, k)."""
    U, S, Vh = slicewise(lambda slices: torch.linalg.svd(slices, full_matrices), domain, A_hat)
    return U, S, Vh.mH


def _diagonal(S: Tensor, m: int, n: int) -> Tensor:
    """(..., k) -> (..., m, n), k = min(m, n)."""
    square = S.diag_embed()
    return torch.nn.functional.pad(square, (0, n - S.shape[-1], 0, m - S.shape[-1]))


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
