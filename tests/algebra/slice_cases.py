"""Transforms, orders and batches for the property tests, with the algebra's operations bound to each."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

from tcpvit import algebra
from tcpvit.algebra.learned import LearnedTransform
from tcpvit.algebra.transforms import MatrixTransform, Transform

FLOAT = torch.float64


@dataclass(frozen=True)
class Case:
    """A tuple of transforms, one for each tube mode, a batch shape and a seed."""

    transforms: tuple[Transform, ...]
    batch: tuple[int, ...]
    seed: int

    @property
    def tube(self) -> tuple[int, ...]:
        return tuple(t.tube for t in self.transforms)

    @property
    def options(self) -> dict:
        return {"transform": self.transforms, "tube_ndim": len(self.transforms)}

    @property
    def is_orthogonal(self) -> bool:
        return all(t.is_orthogonal for t in self.transforms)

    @property
    def scale(self) -> float:
        return math.prod(t.scale for t in self.transforms)

    def randn(self, m: int, n: int) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed + 100 * m + n)
        return torch.randn(*self.batch, m, n, *self.tube, dtype=FLOAT, generator=generator)

    def regular(self, m: int) -> Tensor:
        """A tensor with well-conditioned hat slices whose eigenvalues lie in the right half plane."""
        noise = self.randn(m, m)
        return noise / (2 * algebra.norm(noise, ord="spectral", **self.options)).view(
            *self.batch, 1, 1, *[1] * len(self.tube)
        ) + self.eye(m)

    def eye(self, m: int) -> Tensor:
        return algebra.identity(m, self.tube, self.transforms, dtype=FLOAT)

    def star(self, *factors: Tensor) -> Tensor:
        return functools.reduce(lambda A, B: algebra.cprod(A, B, **self.options), factors)

    def t(self, A: Tensor) -> Tensor:
        return algebra.transpose(A, **self.options)

    def to_hat(self, A: Tensor) -> Tensor:
        """All slices first, (C…, ..., m, n)."""
        p = len(self.tube)
        return algebra.to_hat(A, **self.options).movedim(tuple(range(-p, 0)), tuple(range(p)))


def user_matrix(tube: int) -> Tensor:
    """Invertible and far from orthogonal."""
    return 3 * torch.eye(tube, dtype=FLOAT) + torch.arange(tube * tube, dtype=FLOAT).view(tube, tube).sin()


@functools.cache
def transforms_for(tube: int) -> list[Transform]:
    """One of each kind that takes tubes of that length."""
    names = ["dct", "dst", "cosine_kka", "haar", "identity", "dft", "random_orthogonal"]
    names += ["hadamard"] if tube in (1, 2, 4, 8) else []
    names += ["wavelet:db1"] if tube in (2, 4) else []
    made = [algebra.get_transform(name, tube) for name in names]
    return [*made, learned(tube), MatrixTransform(user_matrix(tube))]


def learned(tube: int) -> LearnedTransform:
    """Orthogonal in double precision, which a cast from float32 would not be."""
    transform = LearnedTransform(tube).double().requires_grad_(False)
    transform.basis.weight = algebra.get_transform("dct", tube).matrix
    return transform


@st.composite
def cases(draw: st.DrawFn, orthogonal: bool | None = None) -> Case:
    """One or two tube modes; two often share one transform, as a name would give them."""
    tube = draw(st.lists(st.integers(1, 6), min_size=1, max_size=2))
    transforms = tuple(
        draw(st.sampled_from([t for t in transforms_for(c) if orthogonal is None or t.is_orthogonal == orthogonal]))
        for c in tube
    )
    if len(tube) == 2 and draw(st.booleans()):
        transforms = tuple(algebra.get_transform(draw(st.sampled_from(["dft", "dct"])), c) for c in tube)
    batch = draw(st.sampled_from([(), (2,), (2, 1)]))
    return Case(transforms, batch, draw(st.integers(0, 1000)))


sizes = st.integers(1, 4)


def close(A: Tensor, B: Tensor, atol: float = 1e-10) -> None:
    """Equal up to rounding, relative to the size of the entries."""
    assert A.shape == B.shape, (A.shape, B.shape)
    assert A.is_complex() == B.is_complex()
    scale = max(1.0, B.abs().max().item()) if B.numel() else 1.0
    error = (A - B).abs().max().item() if B.numel() else 0.0
    assert error <= atol * scale, f"differs by {error:.2e}"
