"""The matrices of the tube transforms, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from tcpvit.algebra.cache import cached_tensors
from tcpvit.errors import did_you_mean


def dct_matrix(tube: int) -> Tensor:
    """Φ, the orthonormal DCT-II (Eq. dct_matrix), float64.

    >>> dct_matrix(2).round(decimals=4)
    tensor([[ 0.7071,  0.7071],
            [ 0.7071, -0.7071]], dtype=torch.float64)
    """
    j = torch.arange(tube)
    phi = math.sqrt(2 / tube) * torch.cos(_quarter_turns((2 * j[None, :] + 1) * j[:, None], tube))
    phi[0] = math.sqrt(1 / tube)
    return phi


def dst_matrix(tube: int) -> Tensor:
    """The orthonormal DST-II, float64.

    >>> dst_matrix(2).round(decimals=4)
    tensor([[ 0.7071,  0.7071],
            [ 0.7071, -0.7071]], dtype=torch.float64)
    """
    j = torch.arange(tube)
    s = math.sqrt(2 / tube) * torch.sin(_quarter_turns((2 * j[None, :] + 1) * (j[:, None] + 1), tube))
    s[-1] /= math.sqrt(2)
    return s


def cosine_kka_matrix(tube: int) -> Tensor:
    """W⁻¹ Φ (I + Z) of Kernfeld, Kilmer and Aeron: invertible, not orthogonal; W = diag(Φ e₁), Z the upper shift.

    Its identity tensor is the one the paper writes down: first slice I, the others zero.

    >>> cosine_kka_matrix(3)[:, 0]
    tensor([1., 1., 1.], dtype=torch.float64)
    """
    phi = dct_matrix(tube)
    shift = torch.diag(torch.ones(tube - 1, dtype=torch.float64), 1)
    return (phi @ (torch.eye(tube, dtype=torch.float64) + shift)) / phi[:, :1]


def haar_matrix(tube: int) -> Tensor:
    """The orthonormal Haar basis of any length: the mean, then each half against the other, coarse to fine.

    Lengths that are no power of two are split unevenly, the longer part first.

    >>> (haar_matrix(3) * torch.tensor([3.0, 6.0, 2.0]).sqrt()[:, None]).round(decimals=3)
    tensor([[ 1.,  1.,  1.],
            [ 1.,  1., -2.],
            [ 1., -1.,  0.]], dtype=torch.float64)
    """
    rows = torch.zeros(tube, tube, dtype=torch.float64)
    rows[0] = 1 / math.sqrt(tube)
    parts, row = [(0, tube)], 1
    while parts:  # breadth first, so that coarse contrasts come before fine ones
        start, stop = parts.pop(0)
        if stop - start < 2:
            continue
        middle = start + (stop - start + 1) // 2
        left, right = middle - start, stop - middle
        rows[row, start:middle] = math.sqrt(right / (left * (left + right)))
        rows[row, middle:stop] = -math.sqrt(left / (right * (left + right)))
        parts += [(start, middle), (middle, stop)]
        row += 1
    return rows


def hadamard_matrix(tube: int) -> Tensor:
    """The orthonormal Walsh–Hadamard matrix (Sylvester's order); the tube must be a power of two.

    >>> hadamard_matrix(2).round(decimals=4)
    tensor([[ 0.7071,  0.7071],
            [ 0.7071, -0.7071]], dtype=torch.float64)
    """
    check_power_of_two(tube)
    h = torch.ones(1, 1, dtype=torch.float64)
    while h.shape[0] < tube:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)], 0)
    return h / math.sqrt(tube)


def identity_matrix(tube: int) -> Tensor:
    """I, float64.

    >>> identity_matrix(2)
    tensor([[1., 0.],
            [0., 1.]], dtype=torch.float64)
    """
    return torch.eye(tube, dtype=torch.float64)


def is_power_of_two(tube: int) -> bool:
    """1, 2, 4, 8, …

    >>> is_power_of_two(8), is_power_of_two(12)
    (True, False)
    """
    return tube > 0 and tube & (tube - 1) == 0


def check_power_of_two(tube: int) -> None:
    """What `hadamard` asks of a tube."""
    if not is_power_of_two(tube):
        below = 1 << (max(tube, 1).bit_length() - 1)
        raise ValueError(
            f"hadamard needs a tube whose length is a power of two, got {tube}; take {below} or {2 * below}, "
            "or another transform such as 'dct' or 'haar'"
        )


def dft_matrix(tube: int) -> Tensor:
    """The unnormalised DFT, complex128.

    >>> dft_matrix(2).real
    tensor([[ 1.,  1.],
            [ 1., -1.]], dtype=torch.float64)
    """
    return torch.fft.fft(torch.eye(tube, dtype=torch.complex128))


def wavelet_matrix(tube: int, wavelet: str) -> Tensor:
    """An orthonormal wavelet basis of PyWavelets with periodic ends; needs `pip install PyWavelets`.

    >>> wavelet_matrix(4, "db2").shape
    torch.Size([4, 4])
    """
    try:
        import pywt
    except ImportError as error:
        raise ValueError(f"the transform 'wavelet:{wavelet}' needs PyWavelets: pip install PyWavelets") from error
    if wavelet not in pywt.wavelist(kind="discrete"):
        raise ValueError(
            f"PyWavelets has no wavelet {wavelet!r}{did_you_mean(wavelet, pywt.wavelist(kind='discrete'))}"
        )
    if tube % 2:
        raise ValueError(f"a periodic wavelet basis needs an even tube, got {tube}; take 'haar' or 'dct' for odd ones")
    means, contrasts = torch.eye(tube, dtype=torch.float64).numpy(), []
    while len(means) % 2 == 0:  # level by level: pywt.wavedec warns of wavelets longer than the tube, which wrap around
        means, contrast = pywt.dwt(means, wavelet, mode="periodization", axis=0)
        contrasts.append(contrast)
    matrix = torch.cat([torch.from_numpy(band) for band in (means, *reversed(contrasts))])
    if unitary_scale(matrix) is None:
        raise ValueError(
            f"the wavelet {wavelet!r} is not orthonormal at tube length {tube}; try 'wavelet:db2' or 'haar'"
        )
    return matrix


def unitary_scale(matrix: Tensor) -> float | None:
    """s where M Mᴴ = s·I, or None.

    >>> unitary_scale(2 * torch.eye(3))
    4.0
    """
    gram = matrix @ matrix.mH
    scale = gram[0, 0].real.item()
    unit = torch.eye(len(gram), dtype=gram.dtype) * scale
    if not torch.allclose(gram, unit, rtol=0, atol=1e-6 * abs(scale)):
        return None
    return 1.0 if abs(scale - 1) < 1e-6 else scale


def _quarter_turns(numerator: Tensor, tube: int) -> Tensor:
    """The angle π/2·numerator/tube, reduced to one turn while it is an integer: rounding would cost digits later."""
    return math.pi * (numerator % (4 * tube)).double() / (2 * tube)


MATRICES: dict[str, Callable[[int], Tensor]] = {
    "dct": dct_matrix,
    "dst": dst_matrix,
    "cosine_kka": cosine_kka_matrix,
    "haar": haar_matrix,
    "hadamard": hadamard_matrix,
    "identity": identity_matrix,
    "dft": dft_matrix,
}


@cached_tensors
def named_matrix(name: str, tube: int) -> Tensor:
    """The matrix of that name in MATRICES, made once."""
    return MATRICES[name](tube)
