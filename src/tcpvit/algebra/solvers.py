"""Direct solvers: linear systems, least squares and Tikhonov regularisation, slice by slice in the hat domain.

Everything here is differentiable. The norms that `lstsq` and `tikhonov` minimise are those of the hat domain: they are
the Frobenius norms of the tensors themselves for every orthogonal transform (`dct`, `dft`, …), and not for others
(`cosine_kka`). What is small is judged against the whole tensor, not against its own slice.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tcpvit.algebra.checks import (
    LinAlgError,
    check_batches,
    check_finite,
    check_same_tube,
    check_tensor,
    has_values,
    matrix_shape,
)
from tcpvit.algebra.domain import Domain, TransformsArg
from tcpvit.algebra.functions import rank_cutoff
from tcpvit.algebra.inputs import in_full_precision
from tcpvit.algebra.scaling import slice_scale
from tcpvit.algebra.slicewise import name_slices


@in_full_precision
def solve(A: Tensor, B: Tensor, transform: TransformsArg = "dct", *, tube_ndim: int = 1) -> Tensor:
    """X with A ⋆ X = B: (..., m, m, C) and (..., m, n, C) -> (..., m, n, C); LinAlgError if A is singular.

    >>> from tcpvit.algebra import cprod
    >>> A, X = torch.eye(4)[..., None] + 0.1 * torch.rand(4, 4, 3), torch.randn(4, 2, 3)
    >>> torch.allclose(solve(A, cprod(A, X)), X, atol=1e-4)
    True
    """
    check_tensor(A, tube_ndim=tube_ndim, square=True)
    domain = system_domain(transform, A, B, tube_ndim=tube_ndim)
    A_hat, B_hat = map(domain.to_hat, same_ndim(A, B))
    scale = slice_scale(A_hat, tube_ndim)
    LU, pivots, _ = torch.linalg.lu_factor_ex(A_hat / scale)
    size = torch.linalg.matrix_norm(A_hat.detach() / scale).amax(tuple(range(tube_ndim)))
    condition = size * _inverse_norm(LU.detach(), pivots)
    singular = ~(condition <= 1 / torch.finfo(A.dtype).eps)  # true for NaN
    if has_values(A) and singular.any():
        raise LinAlgError(
            f"A of shape {tuple(A.shape)} is singular to working precision: {name_slices(singular, tube_ndim)} of its "
            "hat domain has no inverse; use lstsq for the least-squares solution"
        )
    return domain.from_hat(torch.linalg.lu_solve(LU, pivots, B_hat) / scale)


@in_full_precision
def lstsq(
    A: Tensor, B: Tensor, transform: TransformsArg = "dct", *, right: Tensor | None = None, tube_ndim: int = 1
) -> Tensor:
    """The X of least norm among those that minimise ‖A ⋆ X − B‖, or ‖A ⋆ X ⋆ right − B‖.

    Shapes: A (..., m, n, C), B (..., m, q, C), right (..., p, q, C), X (..., n, q, C), or (..., n, p, C) with `right`.
    A and `right` may have any rank; singular values that rounding cannot tell from zero count as zero.

    >>> from tcpvit.algebra import cprod
    >>> A, X, R = torch.randn(6, 4, 3), torch.randn(4, 2, 3), torch.randn(2, 5, 3)
    >>> torch.allclose(lstsq(A, cprod(A, X)), X, atol=1e-3)
    True
    >>> torch.allclose(lstsq(A, cprod(cprod(A, X), R), right=R), X, atol=1e-3)
    True
    """
    domain = system_domain(transform, A, B, tube_ndim=tube_ndim)
    if right is None:
        A_hat, B_hat = map(domain.to_hat, same_ndim(A, B))
        return domain.from_hat(_least_squares(domain, A, A_hat, B_hat))
    _check_other(right, "right", A, tube_ndim)
    check_batches(B, right, "right", tube_ndim=tube_ndim)
    if matrix_shape(right, tube_ndim)[1] != matrix_shape(B, tube_ndim)[1]:
        raise ValueError(
            f"A ⋆ X ⋆ right = B needs as many columns in right as in B, got shapes {tuple(right.shape)} and "
            f"{tuple(B.shape)}"
        )
    A_hat, B_hat, right_hat = map(domain.to_hat, same_ndim(A, B, right))
    X_right_hat = _least_squares(domain, A, A_hat, B_hat)
    return domain.from_hat(_least_squares(domain, right, right_hat.mH, X_right_hat.mH).mH)


@in_full_precision
def tikhonov(
    A: Tensor,
    B: Tensor,
    mu: float | Tensor,
    L: Tensor | None = None,
    transform: TransformsArg = "dct",
    *,
    tube_ndim: int = 1,
) -> Tensor:
    """The X that minimises ‖A ⋆ X − B‖² + mu·‖L ⋆ X‖², with L the identity unless given.

    Shapes: A (..., m, n, C), B (..., m, q, C), L (..., p, n, C), X (..., n, q, C). `mu` is positive: a number, or a
    tensor with one for each tensor of the batch. It is solved as the least-squares problem of [A; √mu·L], whose
    condition number is the root of that of the normal equations.

    >>> A, B = torch.randn(6, 4, 3), torch.randn(6, 2, 3)
    >>> bool(tikhonov(A, B, 10.0).norm() < tikhonov(A, B, 0.1).norm())
    True
    """
    domain = system_domain(transform, A, B, tube_ndim=tube_ndim)
    batch = torch.broadcast_shapes(A.shape[: -2 - tube_ndim], B.shape[: -2 - tube_ndim])
    weight = one_for_each(mu, "mu", batch, A)
    if has_values(weight) and not bool((weight > 0).all()):
        raise ValueError(f"tikhonov needs a positive mu, got {mu}; for mu = 0 there is lstsq")
    n = matrix_shape(A, tube_ndim)[1]
    if L is None:
        A_hat, B_hat = map(domain.to_hat, same_ndim(A, B))
        L_hat = torch.eye(n, dtype=A_hat.dtype, device=A.device)
    else:
        _check_other(L, "L", A, tube_ndim)
        if matrix_shape(L, tube_ndim)[1] != n:
            raise ValueError(
                f"L ⋆ X needs as many columns in L as in A, got shapes {tuple(L.shape)} and {tuple(A.shape)}"
            )
        A_hat, B_hat, L_hat = map(domain.to_hat, same_ndim(A, B, L))
    stacked = _stack_rows(A_hat, weight.sqrt()[..., None, None] * L_hat)
    zeros = B_hat.new_zeros(L_hat.shape[-2], B_hat.shape[-1])
    return domain.from_hat(_least_squares(domain, A, stacked, _stack_rows(B_hat, zeros)))


def system_domain(transform: TransformsArg, A: Tensor, B: Tensor, *, tube_ndim: int) -> Domain:
    """The hat domain of a system A ⋆ X = B that has passed every check."""
    domain = Domain(transform, A, B, tube_ndim=tube_ndim, finite=True)
    check_batches(A, B, tube_ndim=tube_ndim)
    if matrix_shape(A, tube_ndim)[0] != matrix_shape(B, tube_ndim)[0]:
        raise ValueError(
            f"A ⋆ X = B needs as many rows in A as in B, got shapes {tuple(A.shape)} and {tuple(B.shape)}; should one "
            "of them be transposed?"
        )
    return domain


def one_for_each(value: float | Tensor, name: str, batch: torch.Size, like: Tensor) -> Tensor:
    """A number for each tensor of the batch, real, of the precision and on the device of `like`."""
    given = torch.as_tensor(value, dtype=like.real.dtype, device=like.device)
    if given.ndim > len(batch) or any(g not in (1, b) for g, b in zip(given.shape[::-1], batch[::-1], strict=False)):
        raise ValueError(
            f"{name} should be a number, or one for each tensor of the batch {tuple(batch)}, got shape "
            f"{tuple(given.shape)}"
        )
    return given


def same_ndim(*tensors: Tensor) -> list[Tensor]:
    """The tensors with as many batch dimensions each, so that they broadcast in the hat domain too."""
    most = max(A.ndim for A in tensors)
    return [A[(None,) * (most - A.ndim)] for A in tensors]


def _check_other(other: Tensor, name: str, A: Tensor, tube_ndim: int) -> None:
    check_tensor(other, name, tube_ndim=tube_ndim)
    check_finite(other, name)
    check_same_tube(A, other, name, tube_ndim=tube_ndim)
    check_batches(A, other, name, tube_ndim=tube_ndim)


def _inverse_norm(LU: Tensor, pivots: Tensor) -> Tensor:
    """A lower bound of the spectral norm of the inverse of every slice, (C…, ...), that is hardly ever far from it.

    One step of the power method for (A Aᴴ)⁻¹. The pivots alone do not tell a singular slice from a regular one.
    """
    index = torch.arange(LU.shape[-1], dtype=torch.float64, device="cpu")  # not every device has float64
    numbers = index.square().cos().to(LU.dtype)  # in no direction in particular, and the same in every run
    probe = numbers.to(LU.device)[:, None]
    x = torch.linalg.lu_solve(LU, pivots, probe.expand(*LU.shape[:-1], 1))
    x = x / torch.linalg.matrix_norm(x, keepdim=True)
    return torch.linalg.matrix_norm(torch.linalg.lu_solve(LU, pivots, x, adjoint=True))


def _least_squares(domain: Domain, A: Tensor, A_hat: Tensor, B_hat: Tensor) -> Tensor:
    """Â⁺ B̂ and one step of refinement, which gives back the digits that an explicit inverse loses.

    Pseudoinverses rather than torch.linalg.lstsq: they take any rank on any device, and their gradient is finite where
    singular values repeat. `A` is the tensor whose size says what is rounding.
    """
    cutoff = rank_cutoff(torch.linalg.svdvals(A_hat.detach()), domain, A, None, None)
    A_plus = torch.linalg.pinv(A_hat, atol=cutoff, rtol=torch.zeros_like(cutoff))
    X_hat = A_plus @ B_hat
    return X_hat + A_plus @ (B_hat - A_hat @ X_hat)


def _stack_rows(top: Tensor, bottom: Tensor) -> Tensor:
    batch = torch.broadcast_shapes(top.shape[:-2], bottom.shape[:-2])
    return torch.cat([top.expand(*batch, *top.shape[-2:]), bottom.expand(*batch, *bottom.shape[-2:])], dim=-2)
