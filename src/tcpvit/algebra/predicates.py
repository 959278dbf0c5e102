"""Is a tensor f-orthogonal, f-symmetric, f-diagonal, f-positive-definite (paper, Defs. tensor_basic and fsym)?

Each answers with one Python bool, true if it holds for every tensor of the batch. A difference counts as zero up to
`atol + rtol·(largest entry)`; `rtol` is by default √eps, half of the digits.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tcpvit.algebra.checks import check_tensor, matrix_shape
from tcpvit.algebra.domain import Domain, TransformsArg, eye_like, slice_matmul
from tcpvit.algebra.functions import default_rtol
from tcpvit.algebra.inputs import in_full_precision
from tcpvit.algebra.products import transpose


@in_full_precision
def is_orthogonal(
    Q: Tensor, transform: TransformsArg = "dct", *, rtol: float | None = None, atol: float = 0.0, tube_ndim: int = 1
) -> bool:
    """Qᵀ ⋆ Q = Q ⋆ Qᵀ = I: every hat slice is an orthogonal (unitary) matrix; false if the slices are not square.

    >>> from tcpvit.algebra import identity
    >>> is_orthogonal(identity(2, 3)), is_orthogonal(torch.ones(2, 2, 3))
    (True, False)
    """
    domain = Domain(transform, Q, tube_ndim=tube_ndim)
    m, n = matrix_shape(Q, tube_ndim)
    if m != n:
        return False
    Q_hat = domain.to_hat(Q)
    gram = slice_matmul(Q_hat.mH, Q_hat, tube_ndim)
    return _equal(gram, eye_like(gram, n), rtol, atol, over=(*range(tube_ndim), -2, -1))


@in_full_precision
def is_symmetric(
    A: Tensor, transform: TransformsArg = "dct", *, rtol: float | None = None, atol: float = 0.0, tube_ndim: int = 1
) -> bool:
    """Aᵀ = A: every hat slice is symmetric (Hermitian where complex); false if the slices are not square.

    >>> is_symmetric(torch.ones(2, 2, 3)), is_symmetric(torch.arange(4.0).view(2, 2, 1))
    (True, False)
    """
    check_tensor(A, tube_ndim=tube_ndim)
    m, n = matrix_shape(A, tube_ndim)
    if m != n:
        return False
    return _equal(transpose(A, transform, tube_ndim=tube_ndim), A, rtol, atol, over=tuple(range(-2 - tube_ndim, 0)))


@in_full_precision
def is_diagonal(
    A: Tensor, transform: TransformsArg = "dct", *, rtol: float | None = None, atol: float = 0.0, tube_ndim: int = 1
) -> bool:
    """Every hat slice is diagonal, square or not; that holds in both domains or in none, for any transform.

    >>> is_diagonal(torch.eye(2, 3)[..., None].expand(2, 3, 4)), is_diagonal(torch.ones(2, 2, 4))
    (True, False)
    """
    Domain(transform, A, tube_ndim=tube_ndim)  # says what does not fit
    m, n = matrix_shape(A, tube_ndim)
    off_diagonal = ~torch.eye(m, n, dtype=torch.bool, device=A.device).view(m, n, *[1] * tube_ndim)
    return _equal(A.masked_fill(off_diagonal, 0), A, rtol, atol, over=tuple(range(-2 - tube_ndim, 0)))


@in_full_precision
def is_positive_definite(
    A: Tensor, transform: TransformsArg = "dct", *, rtol: float | None = None, atol: float = 0.0, tube_ndim: int = 1
) -> bool:
    """A is f-symmetric (up to the tolerances) and the eigenvalues of all hat slices are positive.

    Positive means more than rounding can leave of a zero: more than eps·(m + C) times the largest eigenvalue.

    >>> from tcpvit.algebra import identity
    >>> is_positive_definite(identity(2, 3)), is_positive_definite(torch.ones(2, 2, 3))
    (True, False)
    """
    domain = Domain(transform, A, tube_ndim=tube_ndim, finite=True)
    if not is_symmetric(A, transform, rtol=rtol, atol=atol, tube_ndim=tube_ndim):
        return False
    values = torch.linalg.eigvalsh(domain.to_hat(A))  # (C…, ..., m)
    if not values.numel():
        return True
    over = (*range(tube_ndim), -1)
    return bool((values.amin(over) > default_rtol(domain, A) * values.amax(over)).all())


def _equal(A: Tensor, B: Tensor, rtol: float | None, atol: float, over: tuple[int, ...]) -> bool:
    """Equal up to a tolerance relative to the largest entry of each tensor of the batch; false where there is NaN."""
    if rtol is None:
        rtol = math.sqrt(torch.finfo(A.dtype).eps)
    if not A.numel():
        return True
    return bool(((A - B).abs().amax(over) <= atol + rtol * B.abs().amax(over)).all())
