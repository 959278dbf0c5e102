"""Products and structure (paper, Sections 2.3 and 2.4): the c-product, its transpose, its identity, its dense matrix.

Tensors are `(..., m, n, C)`; with `tube_ndim=p` they are `(..., m, n, C1, …, Cp)`, transformed along every tube mode.
`transform` is a name, a Transform or an invertible matrix, or one of these for each tube mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import SupportsIndex

import torch
from torch import Tensor

from tcpvit.algebra.cache import planned
from tcpvit.algebra.checks import check_batches, check_same_tube, check_tensor, matrix_shape
from tcpvit.algebra.domain import Domain, TransformsArg, slice_matmul
from tcpvit.algebra.inputs import takes_arrays
from tcpvit.algebra.transforms import narrow


@takes_arrays
def to_hat(A: Tensor, transform: TransformsArg = "dct", *, tube_ndim: int = 1) -> Tensor:
    """Â = A ×₃ Φ: the same shape, transformed along the tubes (all C slices, complex for the DFT).

    >>> to_hat(torch.ones(1, 1, 4))
    tensor([[[2., 0., 0., 0.]]])
    """
    domain = _full_domain(transform, A, tube_ndim=tube_ndim)
    return _tubes_last(domain.to_hat(A), tube_ndim)


@takes_arrays
def from_hat(A_hat: Tensor, transform: TransformsArg = "dct", *, tube_ndim: int = 1, real: bool = True) -> Tensor:
    """A from Â: the inverse of `to_hat`. `real=False` keeps the imaginary part that a DFT of complex tensors has.

    >>> from_hat(torch.tensor([[[2.0, 0.0, 0.0, 0.0]]]))
    tensor([[[1., 1., 1., 1.]]])
    """
    domain = _full_domain(transform, A_hat, tube_ndim=tube_ndim)
    A = domain.from_hat(_tubes_first(A_hat, tube_ndim))
    return narrow(A.real, A_hat.dtype) if real and any(t.is_complex for t in domain.transforms) else A


@takes_arrays
def facewise(A: Tensor, B: Tensor, *, tube_ndim: int = 1) -> Tensor:
    """Slice k of the result is slice k of A times slice k of B; batch dimensions broadcast.

    >>> facewise(torch.ones(2, 3, 5), torch.ones(3, 4, 5)).shape
    torch.Size([2, 4, 5])
    """
    return cprod(A, B, "identity", tube_ndim=tube_ndim)


@takes_arrays
def cprod(A: Tensor, B: Tensor, transform: TransformsArg = "dct", *, tube_ndim: int = 1) -> Tensor:
    """The tensor cosine product A ⋆ B (Eq. cprod): (..., m, k, C) and (..., k, n, C) -> (..., m, n, C).

    Batch dimensions broadcast. Other transforms give the other products of the family: "dft" the t-product.

    >>> A, B = torch.randn(4, 5, 3), torch.randn(5, 2, 3)
    >>> cprod(A, B).shape
    torch.Size([4, 2, 3])
    >>> torch.allclose(cprod(A, identity(5, 3)), A, atol=1e-5)
    True
    """
    domain = _product_domain(transform, A, B, tube_ndim=tube_ndim)
    return domain.from_hat(slice_matmul(domain.to_hat(A), domain.to_hat(B), tube_ndim))


@takes_arrays
def transpose(A: Tensor, transform: TransformsArg = "dct", *, tube_ndim: int = 1) -> Tensor:
    """Aᵀ (Def. ctranspose): every hat slice is transposed, and conjugated where it is complex.

    For a real transform that is the (conjugate) transpose of every slice, a view, and no transform is computed.

    >>> transpose(torch.randn(4, 5, 3)).shape
    torch.Size([5, 4, 3])
    """
    domain = Domain(transform, A, tube_ndim=tube_ndim)
    if any(t.is_complex for t in domain.transforms):
        return domain.from_hat(domain.to_hat(A).mH)
    return A.transpose(-1 - tube_ndim, -2 - tube_ndim).conj()


def identity(
    m: SupportsIndex,
    tube: SupportsIndex | Sequence[int],
    transform: TransformsArg = "dct",
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """The identity tensor I, (m, m, C): the inverse transform of identity slices, so that I ⋆ A = A ⋆ I = A.

    This is not the tensor of the paper's Def. 2.3 (i), whose hat slices are not I: see "Notes on the paper".

    >>> to_hat(identity(2, 3))[..., 2].round(decimals=4)
    tensor([[1., 0.],
            [0., 1.]])
    """
    m = index(m)
    if m < 1:
        raise ValueError(f"the identity tensor has at least one row, got m={m}")
    tube_shape = (index(tube),) if isinstance(tube, SupportsIndex) else tuple(map(index, tube))
    dtype = dtype or torch.get_default_dtype()
    ones = torch.ones(1, 1, *tube_shape, dtype=dtype, device=device)
    domain = Domain(transform, ones, tube_ndim=len(tube_shape))
    e = domain.from_hat(torch.ones_like(domain.to_hat(ones)))  # (1, 1, C1, …, Cp), the tube whose hat entries are all 1
    return torch.eye(m, dtype=e.dtype, device=device).view(m, m, *[1] * len(tube_shape)) * e


@takes_arrays
def block_matrix(A: Tensor, transform: TransformsArg = "dct", *, tube_ndim: int = 1) -> Tensor:
    """The dense (m·C, n·C) matrix of X ↦ A ⋆ X acting on the flattened tensor, tube fastest (index i·C + k).

    >>> A, X = torch.randn(4, 5, 3), torch.randn(5, 1, 3)
    >>> torch.allclose(block_matrix(A) @ X.flatten(), cprod(A, X).flatten(), atol=1e-5)
    True
    """
    check_tensor(A, tube_ndim=tube_ndim)
    tube_shape = A.shape[-tube_ndim:]
    C = tube_shape.numel()
    m, n = matrix_shape(A, tube_ndim)
    batch = A.shape[: A.ndim - tube_ndim - 2]
    entries = A.reshape(*batch, m * n, 1, *tube_shape)
    units = torch.eye(C, dtype=A.dtype, device=A.device).view(1, C, *tube_shape)  # every unit tube, in a row
    blocks = cprod(entries, units, transform, tube_ndim=tube_ndim)  # (..., m·n, C, C…): entry ⋆ unit
    blocks = blocks.reshape(*batch, m, n, C, C)  # the last two index column and row of the C×C block of an entry
    return blocks.movedim(-1, -3).reshape(*batch, m * C, n * C)


@takes_arrays
def inner(A: Tensor, B: Tensor, *, tube_ndim: int = 1) -> Tensor:
    """⟨A, B⟩, the sum of the products of the entries, conjugating A: a scalar for each batch.

    >>> inner(torch.ones(2, 2, 3), torch.ones(2, 2, 3))
    tensor(12.)
    """
    check_tensor(A, "A", tube_ndim=tube_ndim)
    check_tensor(B, "B", tube_ndim=tube_ndim)
    if A.shape[-2 - tube_ndim :] != B.shape[-2 - tube_ndim :]:
        raise ValueError(f"the inner product needs equal shapes, got {tuple(A.shape)} and {tuple(B.shape)}")
    check_same_tube(A, B, tube_ndim=tube_ndim)
    check_batches(A, B, tube_ndim=tube_ndim)
    return (A.conj() * B).sum(dim=tuple(range(-2 - tube_ndim, 0)))


@planned
def _product_domain(transform: TransformsArg, A: Tensor, B: Tensor, *, tube_ndim: int) -> Domain:
    """The domain of two tensors that can be multiplied."""
    domain = Domain(transform, A, B, tube_ndim=tube_ndim)
    inner_a, inner_b = matrix_shape(A, tube_ndim)[1], matrix_shape(B, tube_ndim)[0]
    if inner_a != inner_b:
        raise ValueError(
            f"A ⋆ B needs as many columns in A as rows in B, got {inner_a} in {tuple(A.shape)} and {inner_b} in "
            f"{tuple(B.shape)}; should one of them be transposed?"
        )
    check_batches(A, B, tube_ndim=tube_ndim)
    return domain


@planned
def _full_domain(transform: TransformsArg, A: Tensor, *, tube_ndim: int) -> Domain:
    """The domain with all slices of a DFT."""
    return Domain(transform, A, tube_ndim=tube_ndim, full=True)


def _tubes_last(A: Tensor, tube_ndim: int) -> Tensor:
    """(C…, ..., m, n) -> (..., m, n, C…), a view."""
    return A.movedim(tuple(range(tube_ndim)), tuple(range(-tube_ndim, 0)))


def _tubes_first(A: Tensor, tube_ndim: int) -> Tensor:
    """(..., m, n, C…) -> (C…, ..., m, n), a view."""
    return A.movedim(tuple(range(-tube_ndim, 0)), tuple(range(tube_ndim)))
