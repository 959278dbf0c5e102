"""Any matrix function of every hat slice, the principal square root and the logarithm.

Root and logarithm iterate until the numbers are good enough. So that they go through torch.compile and vmap all the
same, the iteration is an operator of torch, whose inside is not looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tcpvit.algebra.checks import LinAlgError
from tcpvit.algebra.domain import Domain, TransformsArg, eye_like
from tcpvit.algebra.functions import default_rtol
from tcpvit.algebra.inputs import differentiable, in_full_precision, lazy_conjugates
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
def sqrtm(A: Tensor, transform: TransformsArg = "dct", *, tube_ndim: int = 1) -> Tensor:
    """The principal square root R, R ⋆ R = A, with the eigenvalues of its hat slices in the right half plane.

    It exists if no hat slice has an eigenvalue on the negative real axis or, unless A is f-symmetric, at zero;
    otherwise a LinAlgError names the slices. It is real for real A. f-symmetric tensors go through the eigenvalues,
    others through the iteration of Denman and Beavers, which defective slices do not disturb. Where A is singular
    the root has no gradient.

    >>> from tcpvit.algebra import cprod, transpose
    >>> B = torch.randn(3, 3, 4)
    >>> A = cprod(B, transpose(B))
    >>> R = sqrtm(A)
    >>> torch.allclose(cprod(R, R), A, atol=1e-3)
    True
    """
    domain = Domain(transform, A, tube_ndim=tube_ndim, square=True, finite=True)
    if not A.numel():
        return A.clone()
    A_hat = domain.to_hat(A)
    scale = slice_scale(A_hat, tube_ndim, even=True)
    missing = f"A of shape {tuple(A.shape)} has no {'' if A.is_complex() else 'real '}principal square root"
    root: Tensor = differentiable(_MatrixFunction).apply(
        A_hat / scale, "sqrtm", default_rtol(domain, A), tube_ndim, missing
    )
    return domain.from_hat(root * scale.sqrt())


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
    missing = f"A of shape {tuple(A.shape)} has no principal logarithm"
    log: Tensor = differentiable(_MatrixFunction).apply(
        A_hat / scale, "logm", default_rtol(domain, A), tube_ndim, missing
    )
    return domain.from_hat(log + scale.log() * eye_like(log, log.shape[-1]))


class _MatrixFunction(torch.autograd.Function):
    """A function f of every slice, differentiable any number of times.

    The derivative in the direction E is the upper right block of f([[A, E], [0, A]]), and the gradient that of
    f([[Aᴴ, G], [0, Aᴴ]]). Unlike the derivative of the eigenvectors both are finite where eigenvalues repeat.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(A_hat: Tensor, function: str, rtol: float, tube_ndim: int, missing: str) -> Tensor:
        return function_of_slices(A_hat, function, rtol, tube_ndim, missing)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        A_hat, *ctx.options, _ = inputs
        ctx.save_for_backward(A_hat)
        ctx.save_for_forward(A_hat)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (A_hat,) = ctx.saved_tensors
        return _derivative(A_hat.mH, grads[0], *ctx.options), None, None, None, None

    @staticmethod
    def tangent(ctx: Any, tangent: Tensor, *_: Any) -> Tensor:
        (A_hat,) = ctx.saved_tensors
        return _derivative(A_hat, tangent, *ctx.options)


def _derivative(A: Tensor, E: Tensor, function: str, rtol: float, tube_ndim: int) -> Tensor:
    size_A, size_E = (torch.linalg.matrix_norm(X.detach(), keepdim=True) for X in (A, E))
    scale = torch.where(size_E > 0, size_A / size_E, 1.0)  # the block is linear in E: no matter how large
    blocks = torch.cat([torch.cat([A, scale * E], -1), torch.cat([torch.zeros_like(A), A], -1)], -2)
    # Second derivatives need the function itself, which torch.compile would trace without end.
    again = function_of_slices if torch.compiler.is_compiling() else differentiable(_MatrixFunction).apply
    n = A.shape[-1]
    return again(blocks, function, rtol, tube_ndim, "")[..., :n, n:] / scale


@torch.library.custom_op("tcpvit::function_of_slices", mutates_args=())
def function_of_slices(A_hat: Tensor, function: str, rtol: float, tube_ndim: int, missing: str) -> Tensor:
    """The principal square root ("sqrtm") or logarithm ("logm") of all slices, (C…, ..., n, n).

    `missing` begins the error that names the slices without one; if it is empty, eigenvalues are not looked at.
    """
    with lazy_conjugates():
        if missing:
            bad = _without_root(A_hat, rtol, tube_ndim) if function == "sqrtm" else _near_cut(A_hat, rtol, tube_ndim)
            if bad.any():
                raise LinAlgError(f"{missing}: {name_slices(bad, tube_ndim)} of its hat domain {_REASONS[function]}")
        found = _square_root(A_hat, rtol, tube_ndim) if function == "sqrtm" else _logarithm(A_hat, rtol, tube_ndim)
        return found.contiguous()  # as it is registered below


@function_of_slices.register_fake
def _(A_hat: Tensor, function: str, rtol: float, tube_ndim: int, missing: str) -> Tensor:
    return torch.empty_like(A_hat, memory_format=torch.contiguous_format)


@function_of_slices.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], A_hat: Tensor, *options: Any) -> tuple[Tensor, int]:
    tube_ndim = options[2]
    return function_of_slices(
        A_hat.movedim(in_dims[0], tube_ndim), *options
    ), tube_ndim  # the batch is behind the tubes


_REASONS = {
    "sqrtm": "has an eigenvalue on the negative real axis, or at zero without being symmetric",
    "logm": "has an eigenvalue at zero or on the negative real axis",
}


def _without_root(A_hat: Tensor, rtol: float, tube_ndim: int) -> Tensor:
    """Which slices have no principal square root, (C…, ...)."""
    if not _hermitian(A_hat, rtol, tube_ndim):
        return _near_cut(A_hat, rtol, tube_ndim)
    values = torch.linalg.eigvalsh(A_hat)
    return (values < -rtol * values.abs().amax((*range(tube_ndim), -1), keepdim=True)).any(-1)


def _near_cut(A_hat: Tensor, rtol: float, tube_ndim: int) -> Tensor:
    """Which slices have an eigenvalue at zero or on the negative real axis, (C…, ...)."""
    values = torch.linalg.eigvals(A_hat)
    at_zero = values.abs() <= rtol * values.abs().amax((*range(tube_ndim), -1), keepdim=True)
    nearly = math.sqrt(torch.finfo(A_hat.dtype).eps)
    on_axis = (values.real < 0) & (values.imag.abs() <= nearly * values.real.abs())
    return (at_zero | on_axis).any(-1)


def _hermitian(A_hat: Tensor, rtol: float, tube_ndim: int) -> bool:
    over = (*range(tube_ndim), -2, -1)
    return bool(((A_hat - A_hat.mH).abs().amax(over) <= rtol * A_hat.abs().amax(over)).all())


def _square_root(A_hat: Tensor, rtol: float, tube_ndim: int) -> Tensor:
    """The principal square root of every slice."""
    if not _hermitian(A_hat, rtol, tube_ndim):
        return _denman_beavers(A_hat)
    values, V = torch.linalg.eigh((A_hat + A_hat.mH) / 2)
    return (V * values.clamp_min(0).sqrt()[..., None, :]) @ V.mH


def _denman_beavers(A: Tensor, steps: int = 100) -> Tensor:
    """The product form of the iteration with determinantal scaling (Higham, Functions of Matrices, Section 6.3)."""
    n, nearly = A.shape[-1], math.sqrt(torch.finfo(A.dtype).eps)
    eye = eye_like(A, n)
    M, X = A, A
    for _ in range(steps):  # M -> I, X -> A^(1/2)
        distance = torch.linalg.matrix_norm(M - eye)[..., None, None]
        logdet = torch.linalg.slogdet(M).logabsdet[..., None, None]
        mu = torch.where(distance > 1e-2, torch.exp(-logdet / (2 * n)), 1.0)
        inverted = torch.linalg.inv_ex(M).inverse / mu**2
        X = mu * (X + X @ inverted) / 2
        M = eye / 2 + (mu**2 * M + inverted) / 4
        if bool((distance <= nearly).all()):  # it converges quadratically: the step just made was the last
            break
    residual = torch.linalg.matrix_norm(X @ X - A)
    if not bool((residual <= nearly * torch.linalg.matrix_norm(A)).all()):
        raise LinAlgError(
            "the principal square root, or its gradient, was not found: a slice of the hat domain is singular, or has "
            "an eigenvalue next to the negative real axis"
        )
    return X


def _logarithm(A_hat: Tensor, rtol: float, tube_ndim: int) -> Tensor:
    """The principal logarithm of every slice."""
    eye = eye_like(A_hat, A_hat.shape[-1])
    halvings = 0
    while torch.linalg.matrix_norm(A_hat - eye).max() > NEAR_ONE:
        A_hat, halvings = _square_root(A_hat, rtol, tube_ndim), halvings + 1
    return 2.0**halvings * _log_near_one(A_hat, eye)


def _log_near_one(X: Tensor, eye: Tensor, terms: int = 8) -> Tensor:
    """log X = ∫₀¹ (X − I) (I + t (X − I))⁻¹ dt by Gauss–Legendre quadrature, a Padé approximant."""
    nodes, weights = np.polynomial.legendre.leggauss(terms)
    change = X - eye
    total = torch.zeros_like(X)
    for t, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
        total = total + float(weight) * torch.linalg.solve(eye + float(t) * change, change)
    return total
