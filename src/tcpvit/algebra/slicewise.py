"""Factorising every slice of the hat domain so that the factors of a real tensor are real.

A factor of a complex slice is unique only up to phases (or worse, where singular values repeat), and the DFT of a
real tensor comes in conjugate pairs of slices. So one slice of each pair is factorised and its partner gets the
conjugate, and a slice that is its own partner is factorised as the real matrix it is. Real transforms need none of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tcpvit.algebra.cache import cached_tensors
from tcpvit.algebra.domain import Domain


def slicewise(factorise: Callable[[Tensor], Sequence[Tensor]], domain: Domain, A_hat: Tensor) -> tuple[Tensor, ...]:
    """The factors of all slices, (C…, ..., m, n) -> several (C…, ...).

    >>> A = torch.randn(4, 5, 3)
    >>> domain = Domain("dft", A)
    >>> Q, R = slicewise(torch.linalg.qr, domain, domain.to_hat(A))
    >>> Q.shape, domain.from_hat(Q).is_complex()
    (torch.Size([2, 4, 4]), False)
    """
    if domain.half is None:
        return tuple(factorise(A_hat))
    grid = A_hat.shape[: domain.tube_ndim]
    dft_modes = tuple(mode for mode, t in enumerate(domain.transforms) if t.is_complex)
    real, paired, partners, order = _pairs(tuple(domain.tube_shape), dft_modes, domain.half, str(A_hat.device))
    slices = A_hat.flatten(0, domain.tube_ndim - 1)
    return tuple(
        torch.cat([of_real, of_pair, of_pair[partners].conj()])[order].unflatten(0, grid)
        for of_real, of_pair in zip(factorise(slices[real].real), factorise(slices[paired]), strict=True)
    )


def multiplicity(domain: Domain, S_hat: Tensor) -> Tensor:
    """How many of all slices each slice of the hat domain stands for, shaped to broadcast with `S_hat`, (C…, ..., k).

    >>> A = torch.randn(2, 2, 5)
    >>> multiplicity(Domain("dft", A), torch.ones(3, 2)).flatten()
    tensor([1., 2., 2.])
    """
    if domain.half is None:
        return torch.ones_like(S_hat)
    shape = [1] * S_hat.ndim
    shape[domain.half] = -1
    own = _self_mirrored(domain.tube_shape[domain.half], S_hat.device)
    return (2.0 - own.to(S_hat)).view(shape)


def negated(indexed: Tensor, domain: Domain, *, skip: int | None = None) -> Tensor:
    """`indexed`, (C…), read at −k along every DFT mode but `skip`: where the conjugate of slice k stands."""
    modes = [mode for mode, transform in enumerate(domain.transforms) if transform.is_complex and mode != skip]
    return _read_negated(indexed, modes)


def _read_negated(indexed: Tensor, modes: Sequence[int]) -> Tensor:
    for mode in modes:
        indexed = indexed.flip(mode).roll(1, mode)
    return indexed


def name_slices(chosen: Tensor, tube_ndim: int = 1) -> str:
    """The slices that an error message names: those where `chosen`, (C…, ...), is true for any of the batch.

    >>> name_slices(torch.tensor([True, False, True]))
    'slices 0, 2'
    """
    found = chosen.flatten(tube_ndim).any(-1) if chosen.ndim > tube_ndim else chosen
    names = [str(k[0] if tube_ndim == 1 else tuple(k)) for k in found.nonzero().tolist()]
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"slice{'s' if len(names) > 1 else ''} {', '.join(names[:5])}{more}"


@cached_tensors
def _pairs(
    tube_shape: tuple[int, ...], dft_modes: tuple[int, ...], half: int, device: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Flat indices of the real slices, of those to factorise, which of these the mirrored ones mirror, and the order
    in which the three stand in the half grid.
    """
    grid = [tube // 2 + 1 if mode == half else tube for mode, tube in enumerate(tube_shape)]
    own = torch.arange(math.prod(grid)).view(grid)
    partner = _read_negated(own, [mode for mode in dft_modes if mode != half])
    shape = [1] * len(tube_shape)
    shape[half] = -1
    has_partner = _self_mirrored(tube_shape[half]).view(shape)  # the partners of other slices are not in the half grid
    real = own[has_partner & (partner == own)]
    mirrored = has_partner & (partner < own)
    paired = own[~mirrored & ~(has_partner & (partner == own))]
    partners = torch.searchsorted(paired, partner[mirrored])
    order = torch.cat([real, paired, own[mirrored]]).argsort()
    return real.to(device), paired.to(device), partners.to(device), order.to(device)


def _self_mirrored(tube: int, device: torch.device | None = None) -> Tensor:
    """Along the halved mode, the frequencies 0 and C/2 that are their own negatives."""
    frequency = torch.arange(tube // 2 + 1, device=device)
    return 2 * frequency % tube == 0
