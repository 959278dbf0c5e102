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

They are an operator of torch, whose inside torch.compile and vmap do not look at. There `converged` and `iterations`
are tensors, `residuals` repeats its last row up to `max_iterations`, and nothing is warned of.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from tcpvit.algebra.checks import LinAlgError, check_finite, check_same_tube, check_tensor, has_values, matrix_shape
from tcpvit.algebra.domain import TransformsArg
from tcpvit.algebra.inputs import in_full_precision, lazy_conjugates
from tcpvit.algebra.report import Solution, check_limits, warn_unless_converged
from tcpvit.algebra.scaling import slice_scale
from tcpvit.algebra.slicewise import multiplicity, name_slices
from tcpvit.algebra.solvers import same_ndim, system_domain


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
    check_tensor(A, tube_ndim=tube_ndim, square=True)
    return _solve("cg", A, B, transform, start, tol, max_iterations, tube_ndim)


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
    if restart < 1:
        raise ValueError(f"restart is at least 1, got {restart}")
    check_tensor(A, tube_ndim=tube_ndim, square=True)
    return _solve("gmres", A, B, transform, start, tol, max_iterations, tube_ndim, restart)


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
    return _solve("golub_kahan", A, B, transform, start, tol, max_iterations, tube_ndim)


def _solve(
    method: str,
    A: Tensor,
    B: Tensor,
    transform: TransformsArg,
    start: Tensor | None,
    tol: float,
    max_iterations: int,
    tube_ndim: int,
    restart: int = 0,
) -> Solution:
    """Check what is given, iterate in the hat domain, and report how it ended."""
    check_limits(tol, max_iterations)
    domain = system_domain(transform, A, B, tube_ndim=tube_ndim)
    name = f"A of shape {tuple(A.shape)}"
    A, B = same_ndim(A, B)
    batch = torch.broadcast_shapes(A.shape[: -2 - tube_ndim], B.shape[: -2 - tube_ndim])
    shape = (*batch, matrix_shape(A, tube_ndim)[1], *B.shape[-1 - tube_ndim :])
    start = A.new_zeros(shape) if start is None else _checked_start(start, shape, A, tube_ndim)
    A_hat, start_hat = domain.to_hat(A), domain.to_hat(start)
    B_hat = domain.to_hat(B.expand(*batch, *B.shape[-2 - tube_ndim :]))
    scale_A, scale_B = slice_scale(A_hat, tube_ndim), slice_scale(B_hat, tube_ndim)  # so that no square underflows
    scale = scale_B / scale_A
    weight = multiplicity(domain, torch.ones((1,) * B_hat.ndim, dtype=A.real.dtype, device=A.device))
    count = B.shape[-1 - tube_ndim] * domain.tube_shape.numel()
    tensors = (A_hat / scale_A, B_hat / scale_B, start_hat / scale, weight)
    x, residuals, iterations = iterate(*tensors, method, name, tol, max_iterations, restart, count, tube_ndim)
    x, converged = domain.from_hat(x * scale), (residuals[-1] <= tol).all()
    if not has_values(A):
        return Solution(x=x, converged=converged, iterations=iterations, residuals=residuals)
    done = int(iterations)
    solution = Solution(x=x, converged=bool(converged), iterations=done, residuals=residuals[: done + 1])
    used_up = done == max_iterations
    advice = "raise max_iterations" if used_up else "it made no more progress: A is singular or badly conditioned"
    warn_unless_converged(solution, method, tol, advice, stacklevel=6)  # the caller of cg, above it and its decorators
    return solution


def _checked_start(start: Tensor, shape: tuple[int, ...], A: Tensor, tube_ndim: int) -> Tensor:
    check_tensor(start, "start", tube_ndim=tube_ndim)
    check_finite(start, "start")
    check_same_tube(A, start, "start", tube_ndim=tube_ndim)
    if start.shape != shape:
        raise ValueError(f"start should have the shape of X, {shape}, got {tuple(start.shape)}")
    return start


@torch.library.custom_op("tcpvit::krylov", mutates_args=())
def iterate(
    A_hat: Tensor,
    B_hat: Tensor,
    x: Tensor,
    weight: Tensor,
    method: str,
    name: str,
    tol: float,
    max_iterations: int,
    restart: int,
    count: int,
    tube_ndim: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Cycles until the true residual is small enough, the iterations are used up, or a cycle gained nearly nothing.

    Gives X̂, the residuals (max_iterations + 1, ...), the last one repeated to the end, and how many iterations it took.
    """
    with lazy_conjugates():
        systems = _METHODS[method](A_hat, B_hat, weight, name, tol, restart, count, tube_ndim)
        x = torch.where(systems.share > 0, x, 0.0)  # X = 0 solves A ⋆ X = 0
        history: list[Tensor] = []
        before = torch.full_like(systems.norm_B, torch.inf)
        while True:
            r = B_hat - A_hat @ x
            residual = systems.measure(r)
            history[-1:] = [residual]  # the truth in place of the estimate
            left = max_iterations + 1 - len(history)
            progress = (residual > tol) & (residual < 0.999 * before)
            if left == 0 or not progress.any():
                break
            change, estimates = systems.cycle(r, left)
            x, before = x + change, residual
            history += estimates
        residuals = torch.stack(history + [residual] * left)
        return x.contiguous(), residuals, torch.tensor(len(history) - 1, device=x.device)


@iterate.register_fake
def _(A_hat: Tensor, B_hat: Tensor, x: Tensor, weight: Tensor, method: str, name: str, tol: float, max_iterations: int,
      restart: int, count: int, tube_ndim: int) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    residuals = weight.new_empty(max_iterations + 1, *B_hat.shape[tube_ndim:-2])
    return (
        torch.empty_like(x, memory_format=torch.contiguous_format),
        residuals,
        torch.empty((), dtype=torch.int64, device=x.device),
    )


@iterate.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[tuple[Tensor, ...], tuple[int | None, ...]]:
    """The batch of vmap becomes the first of the batch dimensions, behind the tubes."""
    place = args[-1]
    given = zip(args[:4], in_dims[:4], strict=True)
    tensors = [t.unsqueeze(place) if dim is None else t.movedim(dim, place) for t, dim in given]
    shapes = [(*t.shape[:place], info.batch_size, *t.shape[place + 1 :]) for t in tensors[:3]]
    wide = [t.expand(shape) for t, shape in zip(tensors[:3], shapes, strict=True)]
    return iterate(*wide, tensors[3], *args[4:]), (place, 1, None)


class _Systems(ABC):
    """The systems Â x = b̂, one for each slice, tensor of the batch and column, with entries near 1."""

    def __init__(
        self,
        A: Tensor,
        B: Tensor,
        weight: Tensor,
        name: str,
        tol: float,
        restart: int,
        count: int,
        tube_ndim: int,
    ):
        """`weight` says how many slices each stands for, `count` how many systems there are, `name` what A is."""
        self.A, self.weight, self.name, self.tol, self.restart = A, weight, name, tol, restart
        self.tube_ndim = tube_ndim
        self.norm_B = self.total(_norm(B))  # (...)
        self.share = (self.norm_B / count**0.5)[..., None, None]  # if no system has more, all have ‖B‖ together
        self.norm_A = torch.linalg.matrix_norm(A).amax(tuple(range(tube_ndim)))[..., None, None]
        self.eps = torch.finfo(A.dtype).eps
        self.floor = self.eps * self.norm_A  # what is rounding in Â v, ‖v‖ = 1

    def total(self, norms: Tensor) -> Tensor:
        """The norm of each tensor of the batch, (...), from those of the systems, (C…, ..., 1, n)."""
        return (self.weight * norms**2).sum((*range(self.tube_ndim), -2, -1)).sqrt()

    def relative(self, norms: Tensor) -> Tensor:
        """`total`, relative to ‖B‖; 0 where B = 0."""
        return _ratio(self.total(norms), self.norm_B)

    def measure(self, r: Tensor) -> Tensor:
        """‖R‖ / ‖B‖ of each tensor of the batch."""
        return self.relative(_norm(r))

    @abstractmethod
    def cycle(self, r: Tensor, limit: int) -> tuple[Tensor, list[Tensor]]:
        """From the residual R̂ to the change of X̂ and the estimated relative residuals, one per iteration."""


class _ConjugateGradients(_Systems):
    def __init__(self, *given: Any):
        super().__init__(*given)
        gap = torch.linalg.matrix_norm(self.A - self.A.mH, keepdim=True)
        if bool((gap > self.eps**0.5 * self.norm_A).any()):
            raise ValueError(f"cg needs A = Aᵀ, but {self.name} is not f-symmetric; use gmres")

    def cycle(self, r: Tensor, limit: int) -> tuple[Tensor, list[Tensor]]:
        x, p, rr = torch.zeros_like(r), r, _dot(r, r)
        estimates: list[Tensor] = []
        while len(estimates) < limit and bool(
            (active := rr.sqrt() > self.tol * self.share).any()
        ):  # a system that is solved rests
            q = self.A @ p
            curvature = _dot(p, q)
            indefinite = active & (curvature <= 0)
            if indefinite.any():
                raise LinAlgError(
                    f"cg needs a positive definite tensor, but {self.name} is not: "
                    f"{name_slices(indefinite, self.tube_ndim)} of its hat domain is indefinite or singular; use gmres"
                )
            alpha = torch.where(active, _ratio(rr, curvature), 0.0)
            x, r = x + alpha * p, r - alpha * q
            rr, before = _dot(r, r), rr
            p = r + _ratio(rr, before) * p
            estimates.append(self.relative(rr.sqrt()))
        return x, estimates


class _GMRES(_Systems):
    def cycle(self, r: Tensor, limit: int) -> tuple[Tensor, list[Tensor]]:
        steps = min(self.restart, limit)
        beta = _norm(r)  # (C…, ..., 1, n): one number for each system
        V = r.new_zeros(steps + 1, *r.shape)  # an orthonormal basis of the Krylov spaces
        H = r.new_zeros(steps + 1, steps, *beta.shape)  # A V[:-1] = V H, the Hessenberg matrices
        z = H.new_zeros(steps + 1, *beta.shape)  # zᵀ H = 0, z₀ = 1
        V[0], z[0] = _ratio(r, beta), 1.0
        estimates: list[Tensor] = []
        for j in range(steps):
            w = self.A @ V[j]
            for _ in range(2):  # Gram–Schmidt, twice: once is not orthogonal to working precision
                h = (V[: j + 1].conj() * w).sum(-2, keepdim=True)
                w = w - (h * V[: j + 1]).sum(0)
                H[: j + 1, j] += h
            length = _norm(w)
            length = torch.where(length > self.floor, length, 0.0)  # 0: the space is invariant, and w only rounding
            V[j + 1], H[j + 1, j] = _ratio(w, length), length
            # The least residual of a Hessenberg system is β / ‖z‖. In an invariant space it is 0, unless H is singular.
            past = (z[: j + 1] * H[: j + 1, j]).sum(0)
            size = _norm(z, 0)
            solved = (length == 0) & (past.abs() > self.eps**0.5 * self.norm_A * size)
            grown = torch.where(solved, 1 / self.eps, -_ratio(past, length))
            z[j + 1] = torch.where(size < 1 / self.eps, grown, 0.0)  # lest it grow without end
            estimates.append(self.relative(beta / _norm(z, 0)))
            if bool((estimates[-1] <= self.tol).all()) or not length.any():
                break
        k = len(estimates)
        H_plus = torch.linalg.pinv(H[: k + 1, :k].movedim((0, 1), (-2, -1)), atol=self.floor, rtol=0 * self.floor)
        y = (beta[..., None] * H_plus[..., 0]).movedim(-1, 0)  # minimises ‖β e₁ − H y‖
        return (y * V[:k]).sum(0), estimates


class _GolubKahan(_Systems):
    def measure(self, r: Tensor) -> Tensor:
        """The larger of the systems' quotients for each tensor of the batch."""
        return self.worst(self.quotients(_norm(r), _norm(self.A.mH @ r)))

    def quotients(self, residual: Tensor, adjoint_residual: Tensor) -> Tensor:
        exact, normal = _ratio(residual, self.share), _ratio(adjoint_residual, self.norm_A * residual)
        return torch.minimum(exact, normal)  # (C…, ..., 1, n)

    def worst(self, values: Tensor) -> Tensor:
        """The largest value of the systems of each tensor of the batch, (...)."""
        return values.amax((*range(self.tube_ndim), -2, -1))

    def normalise(self, v: Tensor) -> tuple[Tensor, Tensor]:
        length = _norm(v)
        length = torch.where(length > self.floor, length, 0.0)  # 0: the bidiagonalisation is complete
        return _ratio(v, length), length

    def cycle(self, r: Tensor, limit: int) -> tuple[Tensor, list[Tensor]]:
        phi_bar = _norm(r)
        u = _ratio(r, phi_bar)
        v, alpha = self.normalise(self.A.mH @ u)
        x, w, rho_bar = torch.zeros_like(v), v, alpha
        active = self.quotients(phi_bar, phi_bar * alpha) > self.tol
        estimates: list[Tensor] = []
        while len(estimates) < limit and bool(active.any()):
            u, beta = self.normalise(self.A @ v - alpha * u)
            v, alpha = self.normalise(self.A.mH @ u - beta * v)
            rho = torch.hypot(rho_bar, beta)
            c, s = _ratio(rho_bar, rho), _ratio(beta, rho)
            x = x + torch.where(active, _ratio(c * phi_bar, rho), 0.0) * w
            rho_bar, phi_bar = -c * alpha, torch.where(active, s * phi_bar, phi_bar)
            now = self.quotients(phi_bar, phi_bar * alpha * c.abs())
            active = active & (now > self.tol)  # a system that is solved rests: what follows is rounding
            w = torch.where(active, v - _ratio(s * alpha, rho) * w, 0.0)
            estimates.append(self.worst(now))
        return x, estimates


_METHODS: dict[str, type[_Systems]] = {"cg": _ConjugateGradients, "gmres": _GMRES, "golub_kahan": _GolubKahan}


def _norm(v: Tensor, dim: int = -2) -> Tensor:
    return torch.linalg.vector_norm(v, dim=dim, keepdim=dim != 0)


def _dot(u: Tensor, v: Tensor) -> Tensor:
    """The real part of uᴴ v of every column."""
    return (u.conj() * v).real.sum(-2, keepdim=True)


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    """a / b, and 0 where b = 0: a system that is solved stands still."""
    return torch.where(b == 0, 0.0, a / torch.where(b == 0, 1.0, b))
