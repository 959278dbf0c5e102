"""Fast algorithms for long tubes. Tubes as rows in, slices as rows out, (n, C) -> (C, n); the inverses go back.

The cosine and sine transforms are two permutations around an FFT, Walsh–Hadamard is a chain of products with small
matrices, Haar a pyramid of sums and differences: autograd needs no help with any of it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from tcpvit.algebra.bases import hadamard_matrix
from tcpvit.algebra.cache import cached_tensors

Algorithm = Callable[[Tensor], Tensor]
PIECE = 2**18  # numbers: with what comes of them on the way they stay in the cache of a core


def in_pieces(dim: int) -> Callable[[Algorithm], Algorithm]:
    """Decorator: on a CPU much input goes through piece by piece, twice as fast; the tubes are counted along `dim`.

    >>> in_pieces(0)(torch.t)(torch.ones(2**17, 32)).shape
    torch.Size([32, 131072])
    """

    def decorate(algorithm: Algorithm) -> Algorithm:
        @functools.wraps(algorithm)
        def by_pieces(x: Tensor) -> Tensor:
            if x.numel() <= 8 * PIECE or not x.is_cpu or torch.compiler.is_compiling():
                return algorithm(x)
            pieces = x.split(max(1, PIECE // x.shape[1 - dim]), dim)
            return torch.cat([algorithm(piece) for piece in pieces], 1 - dim)

        return by_pieces

    return decorate


@in_pieces(0)
def fast_dct(x: Tensor) -> Tensor:
    """Orthonormal DCT-II by one real FFT of the same length (Makhoul 1980): (n, C) -> (C, n).

    >>> fast_dct(torch.ones(1, 4)).mT.round(decimals=5)
    tensor([[2., 0., 0., 0.]])
    """
    order, turn, places = _dct_plan(x.shape[1], x.dtype, x.device)
    return _pairs_by_fft(x.contiguous().index_select(1, order), turn, places)


@in_pieces(1)
def fast_idct(x_hat: Tensor) -> Tensor:
    """The inverse of `fast_dct`: (C, n) -> (n, C).

    >>> fast_idct(torch.tensor([[2.0, 0.0, 0.0, 0.0]]).mT)
    tensor([[1., 1., 1., 1.]])
    """
    order, turn, pairs = _idct_plan(x_hat.shape[0], x_hat.dtype, x_hat.device)
    return _tubes_by_fft(x_hat.index_select(0, pairs), turn, order)


@in_pieces(0)
def fast_dst(x: Tensor) -> Tensor:
    """Orthonormal DST-II, a DCT of the sign-alternated tube read backwards: (n, C) -> (C, n).

    >>> torch.allclose(fast_dst(torch.eye(5)) @ fast_dst(torch.eye(5)).mT, torch.eye(5), atol=1e-6)
    True
    """
    order, turn, places = _dct_plan(x.shape[1], x.dtype, x.device)
    tubes = x.contiguous().index_select(1, order).mul_(_alternating(x.shape[1], x)[order])
    return _pairs_by_fft(tubes, turn, places.flip(0))


@in_pieces(1)
def fast_idst(x_hat: Tensor) -> Tensor:
    """The inverse of `fast_dst`: (C, n) -> (n, C).

    >>> torch.allclose(fast_idst(fast_dst(torch.eye(5))), torch.eye(5), atol=1e-6)
    True
    """
    tube = x_hat.shape[0]
    order, turn, pairs = _idct_plan(tube, x_hat.dtype, x_hat.device)
    return _tubes_by_fft(x_hat.index_select(0, tube - 1 - pairs), turn, order).mul_(_alternating(tube, x_hat))


def fast_hadamard(x: Tensor) -> Tensor:
    """Orthonormal Walsh–Hadamard transform as products with its small Kronecker factors: (n, C) -> (C, n).

    >>> fast_hadamard(torch.ones(1, 4)).mT
    tensor([[2., 0., 0., 0.]])
    """
    n, tube = x.shape
    for factor in reversed(_hadamard_factors(tube, x.dtype, x.device)):
        x = factor @ x.reshape(-1, len(factor)).mT  # the fastest digits of the index become the slowest
    return x.reshape(tube, n)


def fast_ihadamard(x_hat: Tensor) -> Tensor:
    """The inverse of `fast_hadamard`: (C, n) -> (n, C).

    >>> fast_ihadamard(torch.tensor([[2.0, 0.0, 0.0, 0.0]]).mT)
    tensor([[1., 1., 1., 1.]])
    """
    tube, n = x_hat.shape
    x, done = x_hat, 1
    for factor in _hadamard_factors(tube, x_hat.dtype, x_hat.device):
        x = factor @ x.reshape(done, len(factor), -1)
        done *= len(factor)
    return x.reshape(tube, n).mT


def fast_haar(x: Tensor) -> Tensor:
    """Orthonormal Haar transform of a tube whose length is a power of two: (n, C) -> (C, n).

    >>> fast_haar(torch.ones(1, 4)).mT.round(decimals=5)
    tensor([[2., 0., 0., 0.]])
    """
    means, contrasts = x.mT.contiguous(), []
    while len(means) > 1:
        left, right = means[::2], means[1::2]
        contrasts.append((left - right) * math.sqrt(0.5))
        means = (left + right) * math.sqrt(0.5)
    return torch.cat([means, *reversed(contrasts)])


def fast_ihaar(x_hat: Tensor) -> Tensor:
    """The inverse of `fast_haar`: (C, n) -> (n, C).

    >>> fast_ihaar(torch.tensor([[2.0, 0.0, 0.0, 0.0]]).mT).round(decimals=5)
    tensor([[1., 1., 1., 1.]])
    """
    means = x_hat[:1]
    while len(means) < len(x_hat):
        contrasts = x_hat[len(means) : 2 * len(means)]
        means = torch.stack([means + contrasts, means - contrasts], dim=1).flatten(0, 1) * math.sqrt(0.5)
    return means.mT


def _pairs_by_fft(tubes: Tensor, turn: Tensor, places: Tensor) -> Tensor:
    """The FFT of the reordered tubes, (n, C), holds the pairs y_k + i y_{C-k}, k = 0 … ⌊C/2⌋; then y, (C, n)."""
    pairs = torch.view_as_real(torch.fft.rfft(tubes).mul_(turn))
    return pairs.flatten(1).mT.contiguous().index_select(0, places)


def _tubes_by_fft(pairs: Tensor, turn: Tensor, order: Tensor) -> Tensor:
    """The inverse of `_pairs_by_fft`, from the pairs one below the other, (2⌊C/2⌋+2, n)."""
    z = torch.view_as_complex(pairs.mT.contiguous().unflatten(1, (-1, 2))).mul_(turn)
    return torch.fft.irfft(z, n=len(order)).index_select(1, order)


@cached_tensors
def _dct_plan(tube: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """The order in which the FFT takes the entries, the factors on its result, the place of each y_k among the pairs.

    The entries go in backwards, which conjugates the FFT: then the pairs are (y_k, y_{C-k}) without a sign.
    """
    k = torch.arange(tube)
    order = torch.cat([k[::2], k[1::2].flip(0)]).flip(0).roll(1)  # even entries up, odd ones down; all backwards
    places = torch.where(k <= tube // 2, 2 * k, 2 * (tube - k) + 1)
    turn = _half_turn(tube) * math.sqrt(2 / tube)
    turn[0] = math.sqrt(1 / tube)
    return order.to(device), turn.to(dtype.to_complex()).to(device), places.to(device)


@cached_tensors
def _idct_plan(tube: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """The inverses of the parts of `_dct_plan`; y_0 stands in for the y_C of its pair."""
    order, _, _ = _dct_plan(tube, dtype, torch.device("cpu"))
    k = torch.arange(tube // 2 + 1)
    pairs = torch.stack([k, (tube - k) % tube], dim=1).flatten()
    turn = _half_turn(tube).conj() * math.sqrt(tube / 2)
    # (y_0 + i y_0)(1 - i)/2 = y_0: cuFFT wants a real mean, it does not ignore an imaginary one at every length.
    turn[0] = torch.tensor((0.5 - 0.5j) * math.sqrt(tube), dtype=turn.dtype)
    return order.argsort().to(device), turn.to(dtype.to_complex()).to(device), pairs.to(device)


def _half_turn(tube: int) -> Tensor:
    """exp(iπk/2C) for k = 0 … ⌊C/2⌋."""
    angle = torch.arange(tube // 2 + 1, dtype=torch.float64) * (math.pi / (2 * tube))
    return torch.polar(torch.ones_like(angle), angle)


@cached_tensors
def _hadamard_factors(tube: int, dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    """Hadamard matrices of at most 32 rows, as equal in size as can be, whose Kronecker product is that of the tube."""
    digits = tube.bit_length() - 1
    count = max(1, -(-digits // 5))
    sizes = [digits // count + (i < digits % count) for i in range(count)]
    return [hadamard_matrix(2**size).to(dtype).to(device) for size in sizes]


def _to_slices(x: Tensor) -> Tensor:
    """The identity, (n, C) -> (C, n): a copy, as all others give, so that nobody writes into x through it."""
    return x.mT.clone(memory_format=torch.contiguous_format)


def _to_tubes(x_hat: Tensor) -> Tensor:
    """The inverse of `_to_slices`: (C, n) -> (n, C)."""
    return x_hat.mT.clone()


def _alternating(tube: int, x: Tensor) -> Tensor:
    """(1, -1, 1, …) along a tube."""
    return 1 - 2 * (torch.arange(tube, device=x.device) % 2).to(x.dtype)


FAST = {
    "dct": (fast_dct, fast_idct),
    "dst": (fast_dst, fast_idst),
    "hadamard": (fast_hadamard, fast_ihadamard),
    "haar": (fast_haar, fast_ihaar),
    "identity": (_to_slices, _to_tubes),
}
