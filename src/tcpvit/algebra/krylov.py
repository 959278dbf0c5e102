"""Iterative solvers: conjugate gradients, restarted GMRES, and Golub–Kahan bidiagonalisation (LSQR).

Each slice of the hat domain, each tensor of the batch and each column of B is a linear system of its own, and all of
them are iterated at once, each with its own Krylov space. The other way, one Krylov space for the whole tensor in the
Frobenius inner product, would have to fit one polynomial to the spectra of all slices together, and so needs at least
as many iterations; it would transform in every iteration; and under a transform that is not orthogonal Aᵀ would not be
the adjoint of A.

All three work in cycles: from the true residual an iteration that updates its residual by recursion runs until that
looks small enough, then the true residual decides whether it was. So `residuals[-1]` and `converged` are not
estimates. Norms are those of the hat domain, the Frobenius norms of the tensors for orthogonal transforms. The
iterations are not differentiated: for gradients there is `solve`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tcpvit.algebra.checks import LinAlgError, check_finite, check_same_tube, check_tensor, matrix_shape
from tcpvit.algebra.domain import TransformsArg
from tcpvit.algebra.inputs import in_full_precision
from tcpvit.algebra.report import Solution, check_limits, warn_unless_converged
from tcpvit.algebra.scaling import slice_scale
from tcpvit.algebra.slicewise import multiplicity, name_slices
from tcpvit.algebra.solvers import same_ndim, system_domain

# (residual R̂, how many iterations are left) -> (the change of X̂, the estimated relative residuals, one per iteration)
Cycle = Callable[[Tensor, int], tuple[Tensor, list[Tensor]]]


@in_full_precision
@torch.no_grad()
def cg(
    A: Tensor,
    B: Tensor,
    transform: TransformsArg = "dct",
    *,
    start: Tensor | None = None,
    tol: float = 1e-5,
    max_iterations: int = 1000,
    tube_ndim: int = 1,
) -> Solution:
    """Conjugate gradients for A ⋆ X = B with A f-symmetric and f-positive-definite.

    It stops when ‖B − A ⋆ X‖ ≤ tol·‖B‖ for every tensor of the batch. LinAlgError if A turns out to be indefinite.

    >>> from tcpvit.algebra import cprod, identity, transpose
    >>> G = torch.randn(4, 4, 3)
    >>> A, X = cprod(G, transpose(G)) + 4 * identity(4, 3), torch.randn(4, 2, 3)
    >>> solution = cg(A, cprod(A, X))
    >>> solution.converged, torch.allclose(solution.x, X, atol=1e-3)
    (True, True)
    """
    check_limits(tol, max_iterations)
    check_tensor(A, tube_ndim=tube_ndim, square=True)
    systems = _Systems(A, B, start, transform, tube_ndim)
    A_hat, share = systems.A, tol * systems.share
    _check_symmetric(systems, A)

    def cycle(r: Tensor, limit: int) -> tuple[Tensor, list[Tensor]]:
        x, p, rr = torch.zeros_like(r), r, _dot(r, r)
        estimates: list[Tensor] = []
        while len(estimates) < limit and bool((active := rr.sqrt() > share).any()):  # a system that is solved rests
            q = A_hat @ p
            curvature = _dot(p, q)
            indefinite = active & (curvature <= 0)
            if indefinite.any():
                raise LinAlgError(
                    f"cg needs a positive definite tensor, but A of shape {tuple(A.shape)} is not: "
                    f"{name_slices(indefinite, tube_ndim)} of its hat domain is indefinite or singular; use gmres"
                )
            alpha = torch.where(active, _ratio(rr, curvature), 0.0)
            x, r = x + alpha * p, r - alpha * q
            rr, before = _dot(r, r), rr
            p = r + _ratio(rr, before) * p
            estimates.append(systems.relative(rr.sqrt()))
        return x, estimates

    return _iterate("cg", systems, cycle, systems.residual, tol, max_iterations)


@in_full_precision
@torch.no_grad()
def gmres(
    A: Tensor,
    B: Tensor,
    transform: TransformsArg = "dct",
    *,
    start: Tensor | None = None,
    restart: int = 30,
    tol: float = 1e-5,
    max_iterations: int = 1000,
    tube_ndim: int = 1,
) -> Solution:
    """GMRES, restarted after `restart` iterations, for A ⋆ X = B with any square A.

    It stops when ‖B − A ⋆ X‖ ≤ tol·‖B‖ for every tensor of the batch, or when a cycle gained less than 0.1 %.

    >>> from tcpvit.algebra import cprod, identity
    >>> A, X = torch.randn(4, 4, 3) + 4 * identity(4, 3), torch.randn(4, 2, 3)
    >>> solution = gmres(A, cprod(A, X))
    >>> solution.converged, torch.allclose(solution.x, X, atol=1e-3)
    (True, True)
    """
    check_limits(tol, max_iterations)
    if restart < 1:
        raise ValueError(f"restart is at least 1, got {restart}")
    check_tensor(A, tube_ndim=tube_ndim, square=True)
    systems = _Systems(A, B, start, transform, tube_ndim)
    A_hat, eps = systems.A, torch.finfo(A.dtype).eps
    floor, doubt = systems.floor, eps**0.5 * systems.norm_A

    def cycle(r: Tensor, limit: int) -> tuple[Tensor, list[Tensor]]:
        steps = min(restart, limit)
        beta = _norm(r)  # (C…, ..., 1, n): one number for each system
        V = r.new_zeros(steps + 1, *r.shape)  # an orthonormal basis of the Krylov spaces
        H = r.new_zeros(steps + 1, steps, *beta.shape)  # A V[:-1] = V H, the Hessenberg matrices
        z = H.new_zeros(steps + 1, *beta.shape)  # zᵀ H = 0, z₀ = 1
        V[0], z[0] = _ratio(r, beta), 1.0
        estimates: list[Tensor] = []
        for j in range(steps):
            w = A_hat @ V[j]
            for _ in range(2):  # Gram–Schmidt, twice: once is not orthogonal to working precision
                h = (V[: j + 1].conj() * w).sum(-2, keepdim=True)
                w = w - (h * V[: j + 1]).sum(0)
                H[: j + 1, j] += h
            length = _norm(w)
            length = torch.where(length > floor, length, 0.0)  # 0: the space is invariant, and w only rounding
            V[j + 1], H[j + 1, j] = _ratio(w, length), length
            # The least residual of a Hessenberg system is β / ‖z‖. In an invariant space it is 0, unless H is singular.
            past = (z[: j + 1] * H[: j + 1, j]).sum(0)
            size = _norm(z, 0)
            solved = (length == 0) & (past.abs() > doubt * size)
            grown = torch.where(solved, 1 / eps, -_ratio(past, length))
            z[j + 1] = torch.where(size < 1 / eps, grown, 0.0)  # lest it grow without end
            estimates.append(systems.relative(beta / _norm(z, 0)))
            if bool((estimates[-1] <= tol).all()) or not length.any():
                break
        k = len(estimates)
        H_plus = torch.linalg.pinv(H[: k + 1, :k].movedim((0, 1), (-2, -1)), atol=floor, rtol=torch.zeros_like(floor))
        y = (beta[..., None] * H_plus[..., 0]).movedim(-1, 0)  # minimises ‖β e₁ − H y‖
        return (y * V[:k]).sum(0), estimates

    return _iterate("gmres", systems, cycle, systems.residual, tol, max_iterations)


@in_full_precision
@torch.no_grad()
def golub_kahan(
    A: Tensor,
    B: Tensor,
    transform: TransformsArg = "dct",
    *,
    start: Tensor | None = None,
    tol: float = 1e-5,
    max_iterations: int = 1000,
    tube_ndim: int = 1,
) -> Solution:
    """LSQR, the least-squares solver on Golub–Kahan bidiagonalisation: min ‖A ⋆ X − B‖ with any A.

    With r the residual of a system (a column of a hat slice of B − A ⋆ X) it stops when each has ‖r‖ ≤ tol·‖B‖/√count,
    so that ‖B − A ⋆ X‖ ≤ tol·‖B‖, or, where there is no exact solution, ‖Âᵀ r‖ ≤ tol·‖A‖·‖r‖. `residuals` holds the
    smaller of the two quotients (Paige and Saunders), of the worst system; ‖A‖ is the largest Frobenius norm of a hat
    slice. Without `start` it finds the solution of least norm.

    >>> A, B = torch.randn(6, 4, 3), torch.randn(6, 2, 3)
    >>> from tcpvit.algebra import lstsq
    >>> torch.allclose(golub_kahan(A, B, tol=1e-6).x, lstsq(A, B), atol=1e-3)
    True
    """
    check_limits(tol, max_iterations)
    systems = _Systems(A, B, start, transform, tube_ndim)
    A_hat, A_adjoint = systems.A, systems.A.mH

    def measure(residual: Tensor, adjoint_residual: Tensor) -> Tensor:
        exact, normal = _ratio(residual, systems.share), _ratio(adjoint_residual, systems.norm_A * residual)
        return torch.minimum(exact, normal)  # (C…, ..., 1, n)

    def normalise(v: Tensor) -> tuple[Tensor, Tensor]:
        length = _norm(v)
        length = torch.where(length > systems.floor, length, 0.0)  # 0: the bidiagonalisation is complete
        return _ratio(v, length), length

    def cycle(r: Tensor, limit: int) -> tuple[Tensor, list[Tensor]]:
        phi_bar = _norm(r)
        u = _ratio(r, phi_bar)
        v, alpha = normalise(A_adjoint @ u)
        x, w, rho_bar = torch.zeros_like(v), v, alpha
        active = measure(phi_bar, phi_bar * alpha) > tol
        estimates: list[Tensor] = []
        while len(estimates) < limit and bool(active.any()):
            u, beta = normalise(A_hat @ v - alpha * u)
            v, alpha = normalise(A_adjoint @ u - beta * v)
            rho = torch.hypot(rho_bar, beta)
            c, s = _ratio(rho_bar, rho), _ratio(beta, rho)
            x = x + torch.where(active, _ratio(c * phi_bar, rho), 0.0) * w
            rho_bar, phi_bar = -c * alpha, torch.where(active, s * phi_bar, phi_bar)
            now = measure(phi_bar, phi_bar * alpha * c.abs())
            active = active & (now > tol)  # a system that is solved rests: what follows is rounding
            w = torch.where(active, v - _ratio(s * alpha, rho) * w, 0.0)
            estimates.append(systems.worst(now))
        return x, estimates

    def true_measure(r: Tensor) -> Tensor:
        return systems.worst(measure(_norm(r), _norm(A_adjoint @ r)))

    return _iterate("golub_kahan", systems, cycle, true_measure, tol, max_iterations)


class _Systems:
    """The systems Â x = b̂, one for each slice, tensor of the batch and column: A, B and x in the hat domain.

    A and B are scaled to entries near 1, so that no square underflows; `scale` takes x back.
    """

    def __init__(self, A: Tensor, B: Tensor, start: Tensor | None, transform: TransformsArg, tube_ndim: int):
        self.domain = system_domain(transform, A, B, tube_ndim=tube_ndim)
        self.tube_ndim = tube_ndim
        A, B = same_ndim(A, B)
        batch = torch.broadcast_shapes(A.shape[: -2 - tube_ndim], B.shape[: -2 - tube_ndim])
        A_hat = self.domain.to_hat(A)
        B_hat = self.domain.to_hat(B.expand(*batch, *B.shape[-2 - tube_ndim :]))
        scale_A, scale_B = slice_scale(A_hat, tube_ndim), slice_scale(B_hat, tube_ndim)
        self.A, self.B, self.scale = A_hat / scale_A, B_hat / scale_B, scale_B / scale_A  # of the solution
        norms = _norm(self.B)  # (C…, ..., 1, n), one for each system
        self.weight = multiplicity(self.domain, norms)
        self.norm_B = self.total(norms)  # (...)
        count = B.shape[-1 - tube_ndim] * self.domain.tube_shape.numel()
        self.share = (self.norm_B / count**0.5)[..., None, None]  # if no system has more, all have ‖B‖ together
        self.norm_A = torch.linalg.matrix_norm(self.A).amax(tuple(range(tube_ndim)))[..., None, None]
        self.floor = torch.finfo(A.dtype).eps * self.norm_A  # what is rounding in Â v, ‖v‖ = 1
        shape = (*batch, matrix_shape(A, tube_ndim)[1], *B.shape[-1 - tube_ndim :])
        self.x = self._start(start, shape, A)

    def _start(self, start: Tensor | None, shape: tuple[int, ...], A: Tensor) -> Tensor:
        if start is None:
            return self.domain.to_hat(A.new_zeros(shape))
        check_tensor(start, "start", tube_ndim=self.tube_ndim)
        check_finite(start, "start")
        check_same_tube(A, start, "start", tube_ndim=self.tube_ndim)
        if start.shape != shape:
            raise ValueError(f"start should have the shape of X, {shape}, got {tuple(start.shape)}")
        return torch.where(self.share > 0, self.domain.to_hat(start) / self.scale, 0.0)  # X = 0 solves A ⋆ X = 0

    def total(self, norms: Tensor) -> Tensor:
        """The norm of each tensor of the batch, (...), from those of the systems, (C…, ..., 1, n)."""
        return (self.weight * norms**2).sum((*range(self.tube_ndim), -2, -1)).sqrt()

    def relative(self, norms: Tensor) -> Tensor:
        """`total`, relative to ‖B‖; 0 where B = 0."""
        return _ratio(self.total(norms), self.norm_B)

    def worst(self, values: Tensor) -> Tensor:
        """The largest value of the systems of each tensor of the batch, (...)."""
        return values.amax((*range(self.tube_ndim), -2, -1))

    def residual(self, r: Tensor) -> Tensor:
        """‖R‖ / ‖B‖ of each tensor of the batch."""
        return self.relative(_norm(r))


def _iterate(
    name: str,
    systems: _Systems,
    cycle: Cycle,
    measure: Callable[[Tensor], Tensor],
    tol: float,
    max_iterations: int,
) -> Solution:
    """Cycles until the true residual is small enough, the iterations are used up, or a cycle gained nearly nothing."""
    x = systems.x
    history: list[Tensor] = []
    before = torch.full_like(systems.norm_B, torch.inf)
    while True:
        r = systems.B - systems.A @ x
        residual = measure(r)
        history[-1:] = [residual]  # the truth in place of the estimate
        left = max_iterations + 1 - len(history)
        progress = (residual > tol) & (residual < 0.999 * before)
        if left == 0 or not progress.any():
            break
        change, estimates = cycle(r, left)
        x, before = x + change, residual
        history += estimates
    solution = Solution(
        x=systems.domain.from_hat(x * systems.scale),
        converged=bool((residual <= tol).all()),
        iterations=len(history) - 1,
        residuals=torch.stack(history),
    )
    advice = "raise max_iterations" if left == 0 else "it made no more progress: A is singular or badly conditioned"
    warn_unless_converged(solution, name, tol, advice, stacklevel=6)  # the caller of cg, above it and its decorators
    return solution


def _check_symmetric(systems: _Systems, A: Tensor) -> None:
    gap = torch.linalg.matrix_norm(systems.A - systems.A.mH, keepdim=True)
    if bool((gap > torch.finfo(A.dtype).eps ** 0.5 * systems.norm_A).any()):
        raise ValueError(f"cg needs A = Aᵀ, but A of shape {tuple(A.shape)} is not f-symmetric; use gmres")


def _norm(v: Tensor, dim: int = -2) -> Tensor:
    return torch.linalg.vector_norm(v, dim=dim, keepdim=dim != 0)


def _dot(u: Tensor, v: Tensor) -> Tensor:
    """The real part of uᴴ v of every column."""
    return (u.conj() * v).real.sum(-2, keepdim=True)


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    """a / b, and 0 where b = 0: a system that is solved stands still."""
    return torch.where(b == 0, 0.0, a / torch.where(b == 0, 1.0, b))
