"""Functions of a tensor, slice by slice (paper, Section 2.4): inverses, norms, ranks, determinants, powers.

Each is the matrix function of every slice of the hat domain. What is small is judged against the whole tensor, not
against its own slice: a slice that vanishes up to rounding is singular, however regular its rounding errors look.
"""

from __future__ import annotations

import math
from operator import index
from typing import SupportsIndex

import torch
from torch import Tensor

from tcpvit.algebra.checks import LinAlgError, has_values, matrix_shape
from tcpvit.algebra.domain import Domain, TransformsArg
from tcpvit.algebra.inputs import in_full_precision
from tcpvit.algebra.scaling import power_of_two, slice_scale
from tcpvit.algebra.slicewise import name_slices
from tcpvit.algebra.transforms import HALF
from tcpvit.errors import did_you_mean


@in_full_precision
def inverse(A: Tensor, transform: TransformsArg = "dct", *, tube_ndim: int = 1) -> Tensor:
    """A⁻¹ (Def. tensor_basic v), A ⋆ A⁻¹ = A⁻¹ ⋆ A = I; LinAlgError if A is singular to working precision.

    >>> from tcpvit.algebra import cprod, identity
    >>> A = identity(2, 3) + 0.1 * torch.rand(2, 2, 3)
    >>> torch.allclose(cprod(A, inverse(A)), identity(2, 3), atol=1e-5)
    True
    """
    domain = Domain(transform, A, tube_ndim=tube_ndim, square=True, finite=True)
    return domain.from_hat(_inverse_slices(domain.to_hat(A), A, tube_ndim))


@in_full_precision
def pinv(
    A: Tensor,
    transform: TransformsArg = "dct",
    *,
    rtol: float | None = None,
    atol: float | None = None,
    tube_ndim: int = 1,
) -> Tensor:
    """A⁺, the Moore–Penrose inverse: (..., m, n, C) -> (..., n, m, C).

    Singular values up to max(atol, rtol·σ₁) count as zero, σ₁ being the largest of all slices; `rtol` is by default
    eps·(max(m, n) + C), or 0 if `atol` is given.

    >>> pinv(torch.randn(4, 2, 3)).shape
    torch.Size([2, 4, 3])
    """
    domain = Domain(transform, A, tube_ndim=tube_ndim, finite=True)
    A_hat = domain.to_hat(A)
    cutoff = rank_cutoff(torch.linalg.svdvals(A_hat.detach()), domain, A, rtol, atol)
    return domain.from_hat(torch.linalg.pinv(A_hat, atol=cutoff, rtol=torch.zeros_like(cutoff)))


@in_full_precision
def norm(A: Tensor, transform: TransformsArg = "dct", *, ord: str = "fro", tube_ndim: int = 1) -> Tensor:
    """A norm of each tensor of the batch.

    - "fro": the root of the sum of the squares of the entries of A itself, whatever the transform.
    - "spectral": the largest singular value of all hat slices. For orthogonal transforms, scaled or not, it is the
      spectral norm of X ↦ A ⋆ X, which is that of `block_matrix(A)`.
    - "nuclear": the sum of the singular values of all hat slices, divided by the transform's scale s, M Mᴴ = s·I
      (by C for the DFT, the convention of Lu et al.; by 1 for orthonormal transforms and for those without a scale).
      For orthogonal transforms that makes it the dual of "spectral", ⟨A, B⟩ ≤ ‖A‖ ‖B‖ with the inner product of
      the entries.

    For other transforms "spectral" and "nuclear" are norms too, but of the hat domain only.

    >>> norm(torch.ones(2, 2, 3)), norm(torch.ones(2, 2, 3), ord="spectral")
    (tensor(3.4641), tensor(3.4641))
    """
    if ord not in _NORMS:
        raise ValueError(f"no norm is called {ord!r}{did_you_mean(str(ord), _NORMS)}")
    domain = Domain(transform, A, tube_ndim=tube_ndim, finite=ord != "fro", full=True)
    if ord == "fro":
        return frobenius(A, tuple(range(-2 - tube_ndim, 0)))
    S_hat = torch.linalg.svdvals(domain.to_hat(A))  # (C…, ..., k)
    over = (*range(tube_ndim), -1)
    if ord == "spectral":
        return largest(S_hat, over)
    return S_hat.sum(over) / math.prod([t.scale or 1.0 for t in domain.transforms])


@in_full_precision
def cond(A: Tensor, transform: TransformsArg = "dct", *, tube_ndim: int = 1) -> Tensor:
    """The condition number of each tensor of the batch: the largest singular value of all slices over the smallest.

    Infinite for singular tensors. For orthogonal transforms, scaled or not, it is that of `block_matrix(A)`.

    >>> from tcpvit.algebra import identity
    >>> cond(5 * identity(2, 3)).round(decimals=4), cond(torch.ones(2, 2, 3)) > 1e6
    (tensor(1.), tensor(True))
    """
    domain = Domain(transform, A, tube_ndim=tube_ndim, finite=True)
    if not all(matrix_shape(A, tube_ndim)):
        raise ValueError(f"a matrix without rows or columns has no condition number, got shape {tuple(A.shape)}")
    S_hat = torch.linalg.svdvals(domain.to_hat(A))  # (C…, ..., k)
    over = (*range(tube_ndim), -1)
    return S_hat.amax(over) / S_hat.amin(over)


_NORMS = ("fro", "spectral", "nuclear")


@in_full_precision
def multi_rank(
    A: Tensor,
    transform: TransformsArg = "dct",
    *,
    rtol: float | None = None,
    atol: float | None = None,
    tube_ndim: int = 1,
) -> Tensor:
    """The rank of each of the C hat slices, (..., C); tolerances as in `pinv`.

    >>> multi_rank(torch.ones(2, 2, 3))
    tensor([1, 0, 0])
    """
    domain = Domain(transform, A, tube_ndim=tube_ndim, finite=True, full=True)
    S_hat = torch.linalg.svdvals(domain.to_hat(A.detach()))
    ranks = (S_hat > rank_cutoff(S_hat, domain, A, rtol, atol)[..., None]).sum(-1)  # (C…, ...)
    return ranks.movedim(tuple(range(tube_ndim)), tuple(range(-tube_ndim, 0)))


@in_full_precision
def tubal_rank(
    A: Tensor,
    transform: TransformsArg = "dct",
    *,
    rtol: float | None = None,
    atol: float | None = None,
    tube_ndim: int = 1,
) -> Tensor:
    """The number of non-zero singular tubes, which is the largest rank of a hat slice; tolerances as in `pinv`.

    >>> from tcpvit.algebra import cprod
    >>> tubal_rank(cprod(torch.randn(5, 2, 3), torch.randn(2, 6, 3)))
    tensor(2)
    """
    ranks = multi_rank(A, transform, rtol=rtol, atol=atol, tube_ndim=tube_ndim)
    return ranks.amax(tuple(range(-tube_ndim, 0)))


@in_full_precision
def trace(A: Tensor, transform: TransformsArg = "dct", *, tube_ndim: int = 1) -> Tensor:
    """The sum of the diagonal tubes, a tube, (..., C): its hat is the trace of each hat slice, for any transform.

    >>> trace(torch.ones(2, 2, 3))
    tensor([2., 2., 2.])
    """
    Domain(transform, A, tube_ndim=tube_ndim, square=True)  # says what does not fit
    return A.diagonal(dim1=-2 - tube_ndim, dim2=-1 - tube_ndim).sum(-1)


@in_full_precision
def det(A: Tensor, transform: TransformsArg = "dct", *, tube_ndim: int = 1) -> Tensor:
    """The determinant, a tube, (..., C): its hat is the determinant of each hat slice, so det(A ⋆ B) = det A ⋆ det B.

    >>> det(torch.eye(2)[..., None].expand(2, 2, 4))  # hat slices 2·I, 0, 0, 0
    tensor([2., 2., 2., 2.])
    """
    domain = Domain(transform, A, tube_ndim=tube_ndim, square=True, finite=True)
    return domain.from_hat(torch.linalg.det(domain.to_hat(A)))


@in_full_precision
def power(A: Tensor, exponent: SupportsIndex, transform: TransformsArg = "dct", *, tube_ndim: int = 1) -> Tensor:
    """A ⋆ A ⋆ … ⋆ A; A⁰ is the identity tensor, and negative exponents are powers of the inverse.

    >>> power(torch.ones(1, 1, 4), 3)  # the hat tube is (2, 0, 0, 0)
    tensor([[[4., 4., 4., 4.]]])
    """
    if not isinstance(exponent, SupportsIndex) or isinstance(exponent, bool):
        raise ValueError(f"power takes an integer exponent, got {exponent!r}; for the square root there is sqrtm")
    exponent = index(exponent)
    domain = Domain(transform, A, tube_ndim=tube_ndim, square=True, finite=True)
    A_hat = domain.to_hat(A)
    base = _inverse_slices(A_hat, A, tube_ndim) if exponent < 0 else A_hat
    return domain.from_hat(torch.linalg.matrix_power(base, abs(exponent)))


@in_full_precision
def expm(A: Tensor, transform: TransformsArg = "dct", *, tube_ndim: int = 1) -> Tensor:
    """The exponential I + A + A ⋆ A / 2 + …

    >>> from tcpvit.algebra import identity
    >>> torch.allclose(expm(torch.zeros(2, 2, 3)), identity(2, 3), atol=1e-6)
    True
    """
    domain = Domain(transform, A, tube_ndim=tube_ndim, square=True, finite=True)
    return domain.from_hat(torch.linalg.matrix_exp(domain.to_hat(A).contiguous()))  # torch fails on strided batches


def default_rtol(domain: Domain, A: Tensor) -> float:
    """eps·(max(m, n) + C): what rounding leaves of a zero, in the factorisation and in the transform."""
    size = max(matrix_shape(A, domain.tube_ndim)) + sum(domain.tube_shape)
    return torch.finfo(A.dtype).eps * size


def rank_cutoff(S_hat: Tensor, domain: Domain, A: Tensor, rtol: float | None, atol: float | None) -> Tensor:
    """Up to where singular values (C…, ..., k) count as zero, one number for each tensor of the batch, (...)."""
    if rtol is None:
        rtol = 0.0 if atol else default_rtol(domain, A)
    return (rtol * largest(S_hat, (*range(domain.tube_ndim), -1))).clamp_min(atol or 0.0)


def largest(values: Tensor, dims: tuple[int, ...]) -> Tensor:
    """The largest of non-negative values along `dims`; 0 where there are none, in empty matrices.

    >>> largest(torch.ones(2, 0), (1,))
    tensor([0., 0.])
    """
    return values.amax(dims) if all(values.shape[dim] for dim in dims) else values.sum(dims)


def frobenius(A: Tensor, dims: tuple[int, ...]) -> Tensor:
    """The root of the sum of the squares along `dims`, none of which overflows or underflows.

    >>> frobenius(torch.full((4, 4), 1e-30), (0, 1))
    tensor(4.0000e-30)
    """
    if A.dtype in HALF:  # torch sums their squares in float32
        return torch.linalg.vector_norm(A, dim=dims)
    scale = power_of_two(A, dims)
    return torch.linalg.vector_norm(A / scale, dim=dims) * scale.squeeze(dims)


def _inverse_slices(A_hat: Tensor, A: Tensor, tube_ndim: int) -> Tensor:
    scale = slice_scale(A_hat, tube_ndim)
    A_hat = A_hat / scale
    inverted, _ = torch.linalg.inv_ex(A_hat)
    size = torch.linalg.matrix_norm(A_hat.detach()).amax(tuple(range(tube_ndim)))
    condition = size * torch.linalg.matrix_norm(inverted.detach())
    singular = ~(condition <= 1 / torch.finfo(A.dtype).eps)  # true for NaN
    if has_values(A) and singular.any():
        raise LinAlgError(
            f"A of shape {tuple(A.shape)} has no inverse: {name_slices(singular, tube_ndim)} of its hat domain is "
            "singular to working precision; use pinv"
        )
    return inverted / scale
