"""What is left of an SVD when small singular values go: truncations, low rank, bases of the range and of the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tcpvit.algebra.checks import has_values, matrix_shape
from tcpvit.algebra.domain import Domain, TransformsArg
from tcpvit.algebra.factorizations import SVD, svd_slices
from tcpvit.algebra.functions import norm, rank_cutoff
from tcpvit.algebra.inputs import differentiable, in_full_precision
from tcpvit.algebra.scaling import power_of_two, slice_scale
from tcpvit.algebra.slicewise import multiplicity, negated, slicewise
from tcpvit.algebra.truncation_gradient import Truncation


class LowRank(NamedTuple):
    """An approximation of A, and how far it is: ‖A − approximation‖, and that over ‖A‖ (Frobenius)."""

    approximation: Tensor
    error: Tensor
    relative_error: Tensor


Ranks = int | Sequence[int] | Tensor


@in_full_precision
def truncated_svd(
    A: Tensor,
    transform: TransformsArg = "dct",
    *,
    rank: Ranks | None = None,
    energy: float | None = None,
    tube_ndim: int = 1,
) -> SVD:
    """The leading part of the SVD, by `rank` or by `energy`.

    - `rank=r`: the r leading singular values of every slice (t-SVDM, tubal rank r).
    - `rank=(r0, r1, …)`: that many of slice 0, slice 1, …; slices that mirror each other in the DFT of a real tensor
      need equal ranks.
    - `energy=0.99`: as few as possible of all slices' singular values, largest first, so that the sum of their
      squares is at least that part of the whole (t-SVDM II of Kilmer, Horesh, Avron and Newman). Equal values are
      kept together. For orthogonal transforms it is that part of ‖A‖².

    The factors have as many columns as the largest of the slices' ranks. They stay orthonormal in every slice: where
    a slice keeps less, it is S that is zero.

    >>> U, S, V = truncated_svd(torch.randn(4, 5, 3), rank=2)
    >>> U.shape, S.shape, V.shape
    (torch.Size([4, 2, 3]), torch.Size([2, 2, 3]), torch.Size([5, 2, 3]))
    """
    domain = Domain(transform, A, tube_ndim=tube_ndim, finite=True)
    U, S, V = svd_slices(domain.to_hat(A), domain)
    kept = _kept(S, domain, rank, energy)
    return _cut(domain, U, S * kept, V, rank if isinstance(rank, int) else _width(kept))


@in_full_precision
def low_rank(
    A: Tensor,
    transform: TransformsArg = "dct",
    *,
    rank: Ranks | None = None,
    energy: float | None = None,
    tube_ndim: int = 1,
) -> LowRank:
    """The product of the factors of `truncated_svd`, and its error.

    For orthogonal transforms, scaled or not, no tensor of that tubal rank (or with those ranks of the slices) is
    nearer to A in the Frobenius norm (Eckart–Young), and the squared error is the sum of the squares of the singular
    values left out, divided by the transform's scale. For others, such as "cosine_kka", it is the nearest in the hat
    domain only; the error is true for all of them. The gradient needs a gap between the singular values kept and
    those left out, and no other: values may repeat on either side.

    >>> low_rank(torch.ones(4, 5, 3), rank=1).error < 1e-5
    tensor(True)
    """
    domain = Domain(transform, A, tube_ndim=tube_ndim, finite=True)
    A_hat = domain.to_hat(A)
    with torch.no_grad():
        U, S, V = svd_slices(A_hat, domain)
        scale = slice_scale(A_hat, tube_ndim)
        kept = _kept(S, domain, rank, energy)
    unscaled = differentiable(Truncation).apply(A_hat / scale, U, S / scale[..., 0], V, kept)
    approximation = domain.from_hat(unscaled * scale)
    error, size = norm(A - approximation, tube_ndim=tube_ndim), norm(A, tube_ndim=tube_ndim)
    return LowRank(approximation, error, error / size.clamp_min(torch.finfo(A.dtype).tiny))


@in_full_precision
def skinny_svd(
    A: Tensor,
    transform: TransformsArg = "dct",
    *,
    rtol: float | None = None,
    atol: float | None = None,
    tube_ndim: int = 1,
) -> SVD:
    """The SVD without what is zero: factors with r columns, r the tubal rank of A; tolerances as in `pinv`.

    A = U ⋆ S ⋆ Vᵀ still holds. Where a slice has a smaller rank than r, it is S that is zero.

    >>> from tcpvit.algebra import cprod
    >>> U, S, V = skinny_svd(cprod(torch.randn(6, 2, 3), torch.randn(2, 5, 3)))
    >>> U.shape, S.shape, V.shape
    (torch.Size([6, 2, 3]), torch.Size([2, 2, 3]), torch.Size([5, 2, 3]))
    """
    domain, U, S, V, kept = _ranked_svd(A, transform, rtol, atol, tube_ndim)
    return _cut(domain, U, S * kept, V, _width(kept))


@in_full_precision
def rsvd(
    A: Tensor,
    rank: int,
    transform: TransformsArg = "dct",
    *,
    oversample: int = 10,
    iterations: int = 2,
    generator: torch.Generator | None = None,
    tube_ndim: int = 1,
) -> SVD:
    """The leading `rank` singular values and vectors of every slice by random sampling (Halko, Martinsson and Tropp).

    Much faster than `truncated_svd` where the rank is far below min(m, n), and nearly as good where the singular
    values decay. `oversample` more directions than asked for are sampled; each of the `iterations` (of the power
    method, with QR in between) makes small singular values count less.

    >>> from tcpvit.algebra import cprod, transpose
    >>> A = cprod(torch.randn(50, 4, 3), torch.randn(4, 60, 3))
    >>> U, S, V = rsvd(A, 4)
    >>> torch.allclose(cprod(cprod(U, S), transpose(V)), A, atol=1e-3)
    True
    """
    domain = Domain(transform, A, tube_ndim=tube_ndim, finite=True)
    m, n = matrix_shape(A, tube_ndim)
    if not 1 <= rank <= min(m, n):
        raise ValueError(f"rank is between 1 and min(m, n) = {min(m, n)}, got {rank!r}")
    if oversample < 0 or iterations < 0:
        raise ValueError(f"oversample and iterations are at least 0, got {oversample} and {iterations}")
    samples = min(rank + oversample, m, n)

    def sampled_svd(slices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        directions = torch.randn(n, samples, dtype=slices.dtype, device=slices.device, generator=generator)
        Q = torch.linalg.qr(slices @ directions).Q  # (…, m, samples), nearly the range of the leading vectors
        for _ in range(iterations):
            Q = torch.linalg.qr(slices @ torch.linalg.qr(slices.mH @ Q).Q).Q
        U, S, Vh = torch.linalg.svd(Q.mH @ slices, full_matrices=False)
        return Q @ U, S, Vh

    U, S, Vh = slicewise(sampled_svd, domain, domain.to_hat(A))
    return _cut(domain, U, S, Vh.mH, rank)


@in_full_precision
def orth(
    A: Tensor,
    transform: TransformsArg = "dct",
    *,
    rtol: float | None = None,
    atol: float | None = None,
    tube_ndim: int = 1,
) -> Tensor:
    """An orthonormal basis of the range of A: (..., m, r, C), r the tubal rank; tolerances as in `pinv`.

    Q ⋆ Qᵀ is the projector onto the range. A slice of smaller rank than r fills up with zero columns, so Qᵀ ⋆ Q = I
    holds if all slices have the same rank.

    >>> orth(torch.ones(4, 5, 3)).shape
    torch.Size([4, 1, 3])
    """
    domain, U, _, _, kept = _ranked_svd(A, transform, rtol, atol, tube_ndim)
    return domain.from_hat((U * kept[..., None, :])[..., : _width(kept)])


@in_full_precision
def null(
    A: Tensor,
    transform: TransformsArg = "dct",
    *,
    rtol: float | None = None,
    atol: float | None = None,
    tube_ndim: int = 1,
) -> Tensor:
    """An orthonormal basis of what A takes to zero, A ⋆ N = 0: (..., n, k, C); tolerances as in `pinv`.

    k is the largest dimension of the null space of a slice, n minus the smallest of the ranks; slices with less fill up
    with zero columns, so Nᵀ ⋆ N = I holds if all slices have the same rank. k may be 0.

    >>> null(torch.ones(2, 4, 1)).shape
    torch.Size([4, 3, 1])
    """
    domain, _, S, V, kept = _ranked_svd(A, transform, rtol, atol, tube_ndim, full_matrices=True)
    zero = ~torch.nn.functional.pad(kept, (0, V.shape[-1] - S.shape[-1]))  # (C…, ..., n)
    width = _most(zero) if zero.numel() else 0
    return domain.from_hat((V * zero[..., None, :]).flip(-1)[..., :width])


def _ranked_svd(
    A: Tensor,
    transform: TransformsArg,
    rtol: float | None,
    atol: float | None,
    tube_ndim: int,
    full_matrices: bool = False,
) -> tuple[Domain, Tensor, Tensor, Tensor, Tensor]:
    """The hat domain of A, U, S and V of its slices, and which singular values (C…, ..., k) are not zero."""
    domain = Domain(transform, A, tube_ndim=tube_ndim, finite=True)
    U, S, V = svd_slices(domain.to_hat(A), domain, full_matrices=full_matrices)
    return domain, U, S, V, rank_cutoff(S, domain, A, rtol, atol)[..., None] < S


def _cut(domain: Domain, U: Tensor, S: Tensor, V: Tensor, width: int) -> SVD:
    """The first columns of the factors, out of the hat domain."""
    S_hat = S[..., :width].diag_embed().to(U.dtype)
    return SVD(domain.from_hat(U[..., :width]), domain.from_hat(S_hat), domain.from_hat(V[..., :width]))


def _kept(S: Tensor, domain: Domain, rank: Ranks | None, energy: float | None) -> Tensor:
    """Which singular values (C…, ..., k) stay."""
    if (rank is None) == (energy is None):
        raise ValueError(f"give either rank or energy, got rank={rank} and energy={energy}")
    if energy is None:
        return _leading(S, rank, domain)
    if not 0 < energy <= 1:
        raise ValueError(f"energy is a part of the whole, in (0, 1], got {energy}")
    return _most_energetic(S, energy, domain)


def _leading(S: Tensor, rank: Ranks | None, domain: Domain) -> Tensor:
    """Which singular values (C…, ..., k) are among the first `rank` of their slice."""
    ranks = torch.as_tensor(rank, device=S.device)
    if ranks.is_floating_point() or ranks.is_complex() or ranks.dtype == torch.bool:
        raise ValueError(f"rank is an integer, or one for each slice, got {rank!r}")
    smallest, largest = int(ranks.ndim == 0), S.shape[-1]
    if isinstance(rank, int):  # looked at without its tensor, which torch.compile does not allow
        fits = smallest <= rank <= largest
    else:
        fits = not ((ranks < smallest) | (ranks > largest)).any()
    if not fits:
        raise ValueError(f"rank is between {smallest} and min(m, n) = {largest}, got {rank!r}")
    if ranks.ndim > 0:
        ranks = _half_of(ranks, domain).view(*S.shape[: domain.tube_ndim], *[1] * (S.ndim - domain.tube_ndim))
    return (torch.arange(largest, device=S.device) < ranks).expand_as(S)


def _half_of(ranks: Tensor, domain: Domain) -> Tensor:
    """The ranks of the slices that the hat domain keeps, from those of all slices."""
    if ranks.numel() != domain.tube_shape.numel():
        raise ValueError(
            f"rank names {ranks.numel()} slices, but tubes of shape {tuple(domain.tube_shape)} make "
            f"{domain.tube_shape.numel()}"
        )
    ranks = ranks.reshape(domain.tube_shape)
    if domain.half is None:
        return ranks
    if not torch.equal(negated(ranks, domain), ranks):
        raise ValueError(
            f"slices k and C−k of the DFT of a real tensor mirror each other and need equal ranks, got {ranks.tolist()}"
        )
    return ranks.narrow(domain.half, 0, domain.tube_shape[domain.half] // 2 + 1)


def _most_energetic(S: Tensor, energy: float, domain: Domain) -> Tensor:
    """Which singular values (C…, ..., k) are the fewest with that part of the energy, for each tensor of the batch."""
    if not S.numel():
        return S > 0
    scale = power_of_two(S, (*range(domain.tube_ndim), -1))
    scaled = S.detach() / scale
    squares = (scaled if scaled.is_meta else scaled.cpu()).double() ** 2  # not every device has float64
    tube_modes = tuple(range(domain.tube_ndim))
    behind = tuple(range(-1 - domain.tube_ndim, -1))

    def by_tensor(X: Tensor) -> Tensor:
        return X.movedim(tube_modes, behind).flatten(-1 - domain.tube_ndim)  # (..., C…·k)

    ordered, order = by_tensor(squares).sort(-1, descending=True)
    weighted = by_tensor(squares * multiplicity(domain, squares)).gather(-1, order)
    gathered = weighted.cumsum(-1)
    last = (gathered < energy * gathered[..., -1:]).sum(-1, keepdim=True)
    threshold = ordered.gather(-1, last)  # (..., 1)
    return ((squares >= threshold) & (squares > 0)).to(S.device)


def _width(kept: Tensor) -> int:
    """The largest rank of a slice, and at least one column."""
    return max(1, _most(kept)) if kept.numel() else min(1, kept.shape[-1])


def _most(chosen: Tensor) -> int:
    """The largest number of true values along the last dimension."""
    if not has_values(chosen) and not torch.compiler.is_compiling():  # which may break its graph here
        raise ValueError(
            "the shape of the result depends on the numbers in A, which vmap and meta tensors do not show; use svd, or "
            "truncated_svd with a rank, whose shapes are known"
        )
    return int(chosen.sum(-1).max())
