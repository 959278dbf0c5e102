"""Tensors as matrices: unfoldings along a mode, and the block matrices of the t-product.

`unfold`, `fold` and `mode_product` count every dimension as a mode, from 0, as tensorly does. `bcirc` and `bdiag` take
tensors (..., m, n, C) with batches, as the rest of the algebra.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tcpvit.algebra.checks import check_tensor
from tcpvit.algebra.inputs import takes_arrays


@takes_arrays
def unfold(A: Tensor, mode: int) -> Tensor:
    """The matrix whose rows are the slices along `mode`: (I₀, I₁, …) -> (I_mode, the product of the others).

    >>> unfold(torch.arange(8.0).view(2, 2, 2), 1)
    tensor([[0., 1., 4., 5.],
            [2., 3., 6., 7.]])
    """
    mode = _checked_mode(A.ndim, mode)
    return A.movedim(mode, 0).reshape(A.shape[mode], A.numel() // max(1, A.shape[mode]))


@takes_arrays
def fold(matrix: Tensor, mode: int, shape: Sequence[int]) -> Tensor:
    """The tensor of that shape whose unfolding along `mode` is the matrix: the inverse of `unfold`.

    >>> A = torch.randn(2, 3, 4)
    >>> torch.equal(fold(unfold(A, 1), 1, A.shape), A)
    True
    """
    mode = _checked_mode(len(shape), mode)
    rest = [size for i, size in enumerate(shape) if i != mode]
    expected = (shape[mode], torch.Size(rest).numel())
    if tuple(matrix.shape) != expected:
        raise ValueError(
            f"the unfolding of a tensor of shape {tuple(shape)} along mode {mode} has shape {expected}, got "
            f"{tuple(matrix.shape)}"
        )
    return matrix.reshape(shape[mode], *rest).movedim(0, mode)


@takes_arrays
def mode_product(A: Tensor, matrix: Tensor, mode: int) -> Tensor:
    """A ×_mode M: every fibre of A along `mode` is multiplied by M, (J, I_mode).

    >>> mode_product(torch.ones(2, 3, 4), torch.ones(5, 3), 1).shape
    torch.Size([2, 5, 4])
    """
    mode = _checked_mode(A.ndim, mode)
    if matrix.ndim != 2 or matrix.shape[1] != A.shape[mode]:
        raise ValueError(
            f"the product along mode {mode} of a tensor of shape {tuple(A.shape)} takes a matrix with {A.shape[mode]} "
            f"columns, got shape {tuple(matrix.shape)}"
        )
    return torch.tensordot(matrix, A, dims=([1], [mode])).movedim(0, mode)


@takes_arrays
def bcirc(A: Tensor) -> Tensor:
    """The block circulant matrix of the t-product, (..., m, n, C) -> (..., m·C, n·C): block (i, j) is slice i−j mod C.

    The slices of A ⋆ B under the DFT, one below the other, are bcirc(A) times those of B. `block_matrix(A, "dft")` is
    the same matrix with rows and columns in another order, and serves every transform.

    >>> bcirc(torch.tensor([[[1.0, 2.0, 3.0]]]))
    tensor([[1., 3., 2.],
            [2., 1., 3.],
            [3., 2., 1.]])
    """
    check_tensor(A)
    m, n, C = A.shape[-3:]
    steps = torch.arange(C, device=A.device)
    blocks = A[..., (steps[:, None] - steps) % C]  # (..., m, n, C, C)
    return blocks.movedim((-2, -1), (-4, -2)).reshape(*A.shape[:-3], C * m, C * n)


@takes_arrays
def bdiag(A: Tensor) -> Tensor:
    """The block diagonal matrix of the slices, (..., m, n, C) -> (..., m·C, n·C).

    `bdiag(to_hat(A))` is what A ⋆ is in the hat domain.

    >>> bdiag(torch.tensor([[[1.0, 2.0]]]))
    tensor([[1., 0.],
            [0., 2.]])
    """
    check_tensor(A)
    m, n, C = A.shape[-3:]
    return A.diag_embed(dim1=-4, dim2=-2).reshape(*A.shape[:-3], C * m, C * n)


def _checked_mode(ndim: int, mode: int) -> int:
    if not -ndim <= mode < ndim:
        raise ValueError(f"a tensor with {ndim} modes has the modes 0 to {ndim - 1}, got {mode}")
    return mode % ndim
