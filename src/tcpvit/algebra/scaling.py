"""Scale first and undo it at the end, as LAPACK does: squares of small numbers underflow, those of large overflow."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def power_of_two(A: Tensor, dims: tuple[int, ...], *, even: bool = False) -> Tensor:
    """A power of two near the largest entry along `dims`, which stay with size 1; it is no part of the gradient.

    Multiplying by it is exact. It is 1 where A is zero; `even` asks for one whose square root is a power of two too.

    >>> power_of_two(torch.tensor([[3e-20], [5.0], [0.0]]), (1,)).log2().flatten()
    tensor([-64.,   3.,   0.])
    """
    A = A.detach()
    dims = tuple(dim % A.ndim for dim in dims)
    if 0 in [A.shape[dim] for dim in dims]:
        shape = [1 if dim in dims else size for dim, size in enumerate(A.shape)]
        return A.new_ones(shape, dtype=A.real.dtype)
    # the larger of both parts, because the absolute value of a complex number squares them
    sizes = torch.maximum(A.real.abs(), A.imag.abs()) if A.is_complex() else A.abs()
    largest = sizes.amax(dims, keepdim=True)
    limit = -math.frexp(torch.finfo(A.dtype).tiny)[1] - 1  # so that the power and its inverse are normal numbers
    exponent = torch.frexp(largest).exponent.clamp(-limit, limit)
    if even:
        exponent = exponent - exponent % 2
    return torch.ldexp(torch.ones_like(largest), exponent)


def slice_scale(A_hat: Tensor, tube_ndim: int = 1, *, even: bool = False) -> Tensor:
    """`power_of_two` of each tensor of the batch, from its slices (C…, ..., m, n): (1…, ..., 1, 1).

    >>> slice_scale(torch.ones(3, 7, 4, 5)).shape
    torch.Size([1, 7, 1, 1])
    """
    return power_of_two(A_hat, (*range(tube_ndim), -2, -1), even=even)
