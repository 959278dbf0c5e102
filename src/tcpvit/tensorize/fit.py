"""The best small layer for given data, in closed form: slices, low rank, or both, from Gram matrices alone.

A layer sees inputs x and should give y. With the centred moments A = E[x xᵀ] and B = E[x yᵀ] the dense layer that fits
best is W* = (A + λI)⁻¹(B + λW), pulled towards the weight W that was there, and any other layer W' costs

    E‖y − W'ᵀx‖² = (what W* leaves) + ‖Lᵀ(W' − W*)‖²,    A = L Lᵀ.

How strong the pull is, the data decide: y differs from xW by what other layers lost, of which few inputs tell little. A
is known better, and has only as much added to its diagonal as inverting it takes.

Where an error e of the outputs costs eᵀGe (sensitivity.py), G = M Mᵀ, the last term is ‖Lᵀ(W' − W*)M‖².

- Slices: in the hat domain output slice k sees input slice k alone, so each is a least-squares problem of its own; a
  metric G couples them, which takes some steps of conjugate gradients.
- Low rank: the truncated SVD of LᵀW*M (activation-aware, "whitened").
- Both: the two in turn, each step exact, so that the error never grows.
Matrices here are (in, out): y = xW.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from tcpvit.layers.transform import HatTransform

RIDGES = (1e-3, 1e-2, 1e-1, 1.0, 10.0)  # in parts of the mean of A's diagonal
SMALL = 1e-3  # what A itself gets of it at most
STEPS, TINY = 8, 1e-12  # of conjugate gradients at most, and when they have arrived
ROUNDS = 4  # of slices and low rank in turn
ENOUGH = 1e-3  # a round that lowers the error by less than this part of it is the last


class Moments:
    """Sums over tokens of one layer: what a least-squares fit needs of its data, however many tokens there are."""

    def __init__(self, d_in: int, d_out: int, *, centre: bool = True):
        self.centre = centre  # a layer without a bias cannot take up means
        self.count, self.squares = 0.0, 0.0  # tokens, Σ‖y‖²
        self.x, self.y = torch.zeros(d_in, dtype=torch.float64), torch.zeros(d_out, dtype=torch.float64)
        self.xx = torch.zeros(d_in, d_in, dtype=torch.float64)
        self.xy = torch.zeros(d_in, d_out, dtype=torch.float64)

    def add(self, x: Tensor, y: Tensor, weights: Tensor | None = None) -> None:
        """Count the tokens of a batch, (N, in) and (N, out), each as much as its weight says.

        Sums leave the device before they become float64, which Apple's GPUs do not have.
        """
        weights = (x.new_ones(len(x)) if weights is None else weights).unsqueeze(1)
        self.count += weights.sum().item()
        self.squares += (weights * y.square()).sum().item()
        self.x += (weights * x).sum(0).cpu().double()
        self.y += (weights * y).sum(0).cpu().double()
        self.xx += ((weights * x).T @ x).cpu()
        self.xy += ((weights * x).T @ y).cpu()

    def assume(self, weight: Tensor) -> Moments:
        """Take the outputs to be those of a layer with that (in, out) weight."""
        weight = weight.double()
        self.y, self.xy = self.x @ weight, self.xx @ weight
        self.squares = (weight * self.xy).sum().item()
        return self

    def merge(self, other: Moments) -> None:
        """Count the tokens of other moments too."""
        for name in ("count", "squares", "x", "y", "xx", "xy"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.__dict__.pop("centred", None)

    @property
    def means(self) -> tuple[Tensor, Tensor]:
        """Of x and y; zero for a layer without a bias."""
        n = max(self.count, 1e-30) if self.centre else torch.inf
        return self.x / n, self.y / n

    @cached_property
    def centred(self) -> tuple[Tensor, Tensor, float]:
        """A, B and E‖y‖² around the means."""
        n, (mean_x, mean_y) = max(self.count, 1e-30), self.means
        xx = self.xx / n - torch.outer(mean_x, mean_x)
        xy = self.xy / n - torch.outer(mean_x, mean_y)
        return xx, xy, max(self.squares / n - mean_y.square().sum().item(), 0.0)

    def error(self, weight: Tensor) -> float:
        """E‖y − xW‖² around the means."""
        xx, xy, yy = self.centred
        return max(yy - 2 * (weight * xy).sum().item() + (weight * (xx @ weight)).sum().item(), 0.0)


@dataclass(frozen=True)
class Fit:
    """A fitted layer, (in, out) matrices, and E‖y − ŷ‖² as a part of E‖y‖²."""

    tube: int
    slices: Tensor | None  # (C, in / C, out / C); of a tube of 1, the dense matrix
    v: Tensor | None  # (in, r)
    u: Tensor | None  # (r, out)
    bias: Tensor
    error: float
    ridge: float

    @property
    def rank(self) -> int:
        """Of the low-rank part."""
        return 0 if self.v is None else self.v.shape[1]

    @property
    def is_dense(self) -> bool:
        """Whether the layer stays as it is, with other numbers."""
        return self.tube == 1 and self.v is None


class Problem:
    """The least-squares problem of one layer: moments, the weight (in, out) that was there, the ridge, and the metric
    G (out, out) of errors; without it, all outputs count alike.
    """

    def __init__(self, moments: Moments, weight: Tensor, ridge: float, metric: Tensor | None = None):
        self.moments, self.before, self.ridge = moments, weight.double(), ridge
        self.g = metric
        self.m = None if metric is None else cholesky(metric)  # G = M Mᵀ
        xx, xy, self.energy = moments.centred
        rounding = 1e-7 * moments.xx.diagonal().sum().item() / max(moments.count, 1e-30)  # of sums in single precision
        size, eye = xx.diagonal().mean().clamp_min(0), torch.eye(len(xx), dtype=torch.float64)
        pull, least = (part * size + 1e-2 * rounding + 1e-30 for part in (ridge, min(ridge, SMALL)))
        self.best = torch.cholesky_solve(xy + pull * self.before, cholesky(xx + pull * eye, rounding))  # W*
        self.a = xx + least * eye
        self.root = cholesky(self.a, rounding)
        self.rest = moments.error(self.best) if metric is None else 0.0  # what no layer can win

    # -------------------------------------------------------------------------------------------- the two steps

    def slices(self, tube: int, phi: Tensor, target: Tensor, *, coupled: bool = True) -> Tensor:
        """The best slices for AW = `target`: (C, in / C, out / C); not `coupled`, as if there were no metric."""
        a = hat_blocks(self.a, phi, phi)
        found = torch.linalg.solve(a, hat_blocks(target, phi, phi))
        if self.g is None or not coupled:
            return found
        metric, g = self.g, hat_blocks(self.g, phi, phi)
        return conjugate_gradients(
            lambda slices: hat_blocks(self.a @ dense_of(slices, phi) @ metric, phi, phi),
            hat_blocks(target @ metric, phi, phi),
            found,
            lambda rest: torch.linalg.solve(g, torch.linalg.solve(a, rest), left=False),
        )

    def low_rank(self, rank: int, target: Tensor) -> tuple[Tensor, Tensor]:
        """The best V (in, r) and U (r, out) for the dense weight `target`, equally long."""
        white = self.whitened(target)
        if white.shape[0] <= white.shape[1]:
            left = torch.linalg.eigh(white @ white.T)[1][:, -rank:]
            v = torch.linalg.solve_triangular(self.root.T, left, upper=True)
            u = left.T @ self.root.T @ target
        else:
            right = torch.linalg.eigh(white.T @ white)[1][:, -rank:]
            back = right if self.m is None else torch.linalg.solve_triangular(self.m.T, right, upper=True)
            v, u = target @ (right if self.m is None else self.m @ right), back.T
        longer = (u.norm(dim=1) / v.norm(dim=0).clamp_min(1e-30)).sqrt().clamp_min(1e-30)
        return v * longer, u / longer.unsqueeze(1)  # training takes steps of one size in both

    def whitened(self, target: Tensor) -> Tensor:
        """Lᵀ·target·M, (in, out), in which all directions cost the same."""
        white = self.root.T @ target
        return white if self.m is None else white @ self.m

    def spectrum(self, target: Tensor) -> Tensor:
        """The squared singular values of the whitened target, the largest first: what each further rank wins."""
        white = self.whitened(target)
        gram = white @ white.T if white.shape[0] <= white.shape[1] else white.T @ white
        return torch.linalg.eigvalsh(gram).flip(0).clamp_min(0)

    # -------------------------------------------------------------------------------------------- fits

    def fit(self, tube: int, rank: int, phi: Tensor | None = None) -> Fit:
        """Slices of a tube and a low rank (0: none) beside them, in turn; a tube of 1 without a rank is W* itself."""
        if tube == 1 and not rank:
            return self._fit(self.best, slices=self.best.unsqueeze(0), v=None, u=None)
        d_in, d_out = self.best.shape
        slices = v = u = None
        beside, last = torch.zeros_like(self.best), math.inf
        for _ in range(ROUNDS if tube > 1 and rank else 1):
            rest = self.best
            if tube > 1:
                assert phi is not None
                slices = self.slices(tube, phi, self.a @ (self.best - beside))
                rest = self.best - dense_of(slices, phi)
            if rank:
                v, u = self.low_rank(min(rank, d_in, d_out), rest)
                beside = v @ u
            cost = self.cost(rest - beside)
            if cost > last * (1 - ENOUGH):
                break
            last = cost
        whole = beside if slices is None or phi is None else beside + dense_of(slices, phi)
        return self._fit(whole, tube, slices=slices, v=v, u=u)

    def _fit(self, whole: Tensor, tube: int = 1, **parts: Tensor | None) -> Fit:
        """What these parts, together the matrix `whole`, leave as an error, and the bias that goes with them."""
        mean_x, mean_y = self.moments.means
        error = self.moments.error(whole) / max(self.energy, 1e-30)
        return Fit(tube=tube, bias=mean_y - mean_x @ whole, error=error, ridge=self.ridge, **parts)

    def cost(self, difference: Tensor) -> float:
        """‖Lᵀ(W' − W*)M‖²."""
        return self.whitened(difference).square().sum().item()


def nearest(weight: Tensor, tube: int, rank: int, transform: HatTransform) -> Fit:
    """The slices and the low rank that are together nearest to an (in, out) weight, without data."""
    moments = Moments(*weight.shape, centre=False)
    moments.count, moments.xx = 1, torch.eye(len(weight), dtype=torch.float64)
    return Problem(moments.assume(weight.cpu()), weight.cpu(), SMALL).fit(tube, rank, orthonormal(transform))


def orthonormal(transform: HatTransform) -> Tensor:
    """The matrix of an orthogonal transform, of rows of length 1."""
    return transform.matrices()[0].detach().cpu().double() / (transform.scale or 1.0) ** 0.5


def choose_ridge(fitting: Moments, held_out: Moments, weight: Tensor, ridges: Sequence[float] = RIDGES) -> float:
    """The ridge whose dense fit has the least error on tokens that it was not fitted to."""
    if not held_out.count:
        return SMALL
    return min(ridges, key=lambda ridge: held_out.error(Problem(fitting, weight, ridge).best))


def cholesky(matrix: Tensor, rounding: float = 0.0) -> Tensor:
    """L with L Lᵀ = `matrix`, with as much added to the diagonal as rounding makes necessary."""
    mean = matrix.diagonal().mean().clamp_min(1e-30).item()
    for jitter in (0.0, 1e-8 * mean, 1e-6 * mean, 1e-4 * mean, rounding, 10 * rounding):
        root, info = torch.linalg.cholesky_ex(matrix + jitter * torch.eye(len(matrix), dtype=matrix.dtype))
        if not info.item() and root.isfinite().all():
            return root
    raise ValueError("the Gram matrix of a layer's inputs is not positive; are the inputs finite numbers?")


def conjugate_gradients(
    apply: Callable[[Tensor], Tensor], target: Tensor, start: Tensor, precondition: Callable[[Tensor], Tensor]
) -> Tensor:
    """Some steps towards x with apply(x) = target, for a positive operator; none of them loses."""
    found, rest = start, target - apply(start)
    step = direction = precondition(rest)
    size = (rest * step).sum()
    for _ in range(STEPS):
        if size <= TINY * (target * start).sum().abs():
            break
        image = apply(direction)
        length = size / (direction * image).sum()
        found, rest = found + length * direction, rest - length * image
        step = precondition(rest)
        size, before = (rest * step).sum(), size
        direction = step + size / before * direction
    return found


def hat_blocks(matrix: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """The diagonal blocks of a matrix of flat features (the tube fastest) in the hat basis: (C, rows / C, columns / C).

    Block k is Σ left[k, p] · matrix[(·, p), (·, q)] · right[k, q].
    """
    tube = len(left)
    rows, columns = matrix.shape[0] // tube, matrix.shape[1] // tube
    half = torch.einsum("kp,ipm->kim", left, matrix.reshape(rows, tube, -1))  # (C, rows, columns·C)
    return torch.einsum("kimq,kq->kim", half.unflatten(2, (columns, tube)), right)


def dense_of(slices: Tensor, phi: Tensor) -> Tensor:
    """The dense (in, out) matrix of slices, for an orthonormal Φ."""
    tube, rows, columns = slices.shape
    return torch.einsum("kp,kio,kq->ipoq", phi, slices, phi).reshape(rows * tube, columns * tube)
