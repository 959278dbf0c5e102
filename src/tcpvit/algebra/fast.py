"""O(C log C) algorithms for long tubes, along the last dimension."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def _half_turn(tube: int, x: Tensor) -> Tensor:
    """exp(-iπk/2C) for k = 0 … ⌊C/2⌋, in the precision of x."""
    angle = torch.arange(tube // 2 + 1, dtype=torch.float64, device=x.device) * (-math.pi / (2 * tube))
    return torch.polar(torch.ones_like(angle), angle).to(torch.promote_types(x.dtype, torch.complex64))


def fast_dct(x: Tensor) -> Tensor:
    """Orthonormal DCT-II along the last dimension by one real FFT of the same length (Makhoul's reordering).

    >>> torch.allclose(fast_dct(torch.ones(4)), torch.tensor([2.0, 0.0, 0.0, 0.0]), atol=1e-6)
    True
    """
    tube = x.shape[-1]
    reordered = torch.cat([x[..., ::2], x[..., 1::2].flip(-1)], dim=-1)  # even entries up, odd entries down
    z = torch.fft.rfft(reordered) * _half_turn(tube, x)
    y = torch.cat([z.real, -z.imag[..., 1 : (tube + 1) // 2].flip(-1)], dim=-1) * math.sqrt(2 / tube)
    return y * _first_entry(y, math.sqrt(0.5))


def fast_idct(x_hat: Tensor) -> Tensor:
    """The inverse of `fast_dct`.

    >>> torch.allclose(fast_idct(torch.tensor([2.0, 0.0, 0.0, 0.0])), torch.ones(4), atol=1e-6)
    True
    """
    tube = x_hat.shape[-1]
    y = x_hat * (math.sqrt(tube / 2) * _first_entry(x_hat, math.sqrt(2)))
    mirrored = torch.cat([torch.zeros_like(y[..., :1]), y[..., 1:].flip(-1)], dim=-1)  # y[C-k]
    upto = tube // 2 + 1
    z = torch.complex(y[..., :upto], -mirrored[..., :upto]) * _half_turn(tube, y).conj()
    reordered = torch.fft.irfft(z, n=tube)
    x = torch.empty_like(reordered)
    x[..., ::2], x[..., 1::2] = reordered[..., : (tube + 1) // 2], reordered[..., (tube + 1) // 2 :].flip(-1)
    return x


def fast_dst(x: Tensor) -> Tensor:
    """Orthonormal DST-II along the last dimension: a DCT of the sign-alternated tube, read backwards.

    >>> torch.allclose(fast_dst(torch.eye(5)) @ fast_dst(torch.eye(5)).mT, torch.eye(5), atol=1e-6)
    True
    """
    return fast_dct(x * _alternating(x)).flip(-1)


def fast_idst(x_hat: Tensor) -> Tensor:
    """The inverse of `fast_dst`.

    >>> torch.allclose(fast_idst(fast_dst(torch.ones(5))), torch.ones(5), atol=1e-6)
    True
    """
    x = fast_idct(x_hat.flip(-1))
    return x * _alternating(x)


def fast_hadamard(x: Tensor) -> Tensor:
    """Orthonormal Walsh–Hadamard transform along the last dimension; its own inverse.

    >>> fast_hadamard(torch.ones(4))
    tensor([2., 0., 0., 0.])
    """
    tube, shape, step = x.shape[-1], x.shape, 1
    while step < tube:
        pairs = x.reshape(*shape[:-1], tube // (2 * step), 2, step)
        x = torch.stack([pairs[..., 0, :] + pairs[..., 1, :], pairs[..., 0, :] - pairs[..., 1, :]], dim=-2)
        step *= 2
    return x.reshape(shape) / math.sqrt(tube)


def _first_entry(x: Tensor, value: float) -> Tensor:
    """(value, 1, 1, …) along a tube."""
    factor = torch.ones(x.shape[-1], dtype=x.dtype, device=x.device)
    factor[0] = value
    return factor


def _alternating(x: Tensor) -> Tensor:
    """(1, -1, 1, …) along a tube."""
    return 1 - 2 * (torch.arange(x.shape[-1], device=x.device) % 2).to(x.dtype)
