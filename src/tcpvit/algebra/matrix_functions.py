"""Any matrix function of every hat slice, and the logarithm."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from tcpvit.algebra.checks import LinAlgError, has_values
from tcpvit.algebra.domain import Domain, TransformsArg, eye_like
from tcpvit.algebra.functions import default_rtol, square_root_slices
from tcpvit.algebra.inputs import in_full_precision
from tcpvit.algebra.scaling import slice_scale
from tcpvit.algebra.slicewise import name_slices, slicewise

NEAR_ONE = 0.25  # ‖X − I‖ up to which eight terms give log X to double precision (Higham, Table 11.1)


@in_full_precision
def apply(
    A: Tensor, function: Callable[[Tensor], Tensor], transform: TransformsArg = "dct", *, tube_ndim: int = 1
) -> Tensor:
    """`function` of every hat slice: it takes a batch of matrices, (..., m, n), and returns another, (..., p, q).

    Under the DFT of a real tensor the result is real: slices that mirror each other get conjugate results, and real
    slices are given as real matrices.

    >>> from tcpvit.algebra import expm
    >>> A = torch.randn(3, 3, 4)
    >>> torch.allclose(apply(A, torch.linalg.matrix_exp), expm(A), atol=1e-3)
    True
    """
    domain = Domain(transform, A, tube_ndim=tube_ndim)
    (result,) = slicewise(lambda slices: (function(slices),), domain, domain.to_hat(A).contiguous())
    return domain.from_hat(result)


@in_full_precision
def logm(A: Tensor, transform: TransformsArg = "dct", *, tube_ndim: int = 1) -> Tensor:
    """The principal logarithm L, expm(L) = A, with the eigenvalues of its hat slices in the strip |Im| < π.

    It exists if no hat slice has an eigenvalue at zero or on the negative real axis; otherwise a LinAlgError names the
    slices. It is real for real A, and differentiable. Square roots are taken until the slices are next to I, where
    quadrature gives the logarithm (inverse scaling and squaring).

    >>> from tcpvit.algebra import expm
    >>> A = torch.randn(3, 3, 4).double() / 4
    >>> torch.allclose(logm(expm(A)), A)
    True
    """
    domain = Domain(transform, A, tube_ndim=tube_ndim, square=True, finite=True)
    if not A.numel():
        return A.clone()
    A_hat = domain.to_hat(A)
    scale = slice_scale(A_hat, tube_ndim)
    A_hat = A_hat / scale
    _check_logarithm(A_hat.detach(), default_rtol(domain, A), A, tube_ndim)
    eye = eye_like(A_hat, A_hat.shape[-1])
    halvings = 0
    while torch.linalg.matrix_norm(A_hat.detach() - eye).max() > NEAR_ONE:
        A_hat, halvings = square_root_slices(A_hat, default_rtol(domain, A), tube_ndim), halvings + 1
    return domain.from_hat(2.0**halvings * _log_near_one(A_hat, eye) + scale.log() * eye)


def _log_near_one(X: Tensor, eye: Tensor, terms: int = 8) -> Tensor:
    """log X = ∫₀¹ (X − I) (I + t (X − I))⁻¹ dt by Gauss–Legendre quadrature, a Padé approximant."""
    nodes, weights = np.polynomial.legendre.leggauss(terms)
    change = X - eye
    total = torch.zeros_like(X)
    for t, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
        total = total + float(weight) * torch.linalg.solve(eye + float(t) * change, change)
    return total


def _check_logarithm(A_hat: Tensor, rtol: float, A: Tensor, tube_ndim: int) -> None:
    values = torch.linalg.eigvals(A_hat)
    at_zero = values.abs() <= rtol * values.abs().amax((*range(tube_ndim), -1), keepdim=True)
    on_axis = (values.real < 0) & (values.imag.abs() <= torch.finfo(A.dtype).eps ** 0.5 * values.real.abs())
    bad = (at_zero | on_axis).any(-1)
    if has_values(A) and bad.any():
        raise LinAlgError(
            f"A of shape {tuple(A.shape)} has no principal logarithm: {name_slices(bad, tube_ndim)} of its hat domain "
            "has an eigenvalue at zero or on the negative real axis"
        )
