"""The way into the hat domain and back, shared by every function of the algebra.

Outside, tensors are `(..., m, n, C1, …, Cp)`. Inside, slices come first, `(C1, …, Cp, ..., m, n)`, so that torch's
batched linear algebra works on all slices at once. With the DFT and real input only the slices that determine the
others are kept, which makes every result real again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from tcpvit.algebra.checks import check_finite, check_precision, check_same_tube, check_tensor
from tcpvit.algebra.transforms import DFT, HALF, Transform, get_transform, narrow, widen

TransformArg = str | Transform | Tensor
TransformsArg = TransformArg | tuple[TransformArg, ...] | list[TransformArg]


class Domain:
    """The hat domain of some tensors: `to_hat` goes in, `from_hat` comes out.

    >>> A = torch.randn(4, 5, 3)
    >>> domain = Domain("dct", A)
    >>> domain.to_hat(A).shape, torch.allclose(domain.from_hat(domain.to_hat(A)), A, atol=1e-6)
    (torch.Size([3, 4, 5]), True)
    """

    def __init__(
        self,
        transform: TransformsArg,
        *tensors: Tensor,
        tube_ndim: int = 1,
        square: bool = False,
        finite: bool = False,
        full: bool = False,
    ):
        """`finite` asks for what a factorisation needs; `full` keeps all slices of a DFT of real tensors."""
        first = tensors[0]
        for name, tensor in zip("ABCD", tensors, strict=False):
            check_tensor(tensor, name, tube_ndim=tube_ndim, square=square)
            if finite:
                check_precision(tensor, name)
                check_finite(tensor, name)
            if tensor is not first:
                check_same_tube(first, tensor, name, tube_ndim=tube_ndim)
        self.tube_ndim = tube_ndim
        self.tube_shape = first.shape[-tube_ndim:]
        self.transforms = resolve(transform, self.tube_shape)
        self.dtype = first.dtype
        # The DFT that is applied first to real numbers needs only half of its slices.
        complexes = [i for i, t in enumerate(self.transforms) if t.is_complex]
        halves = complexes and not full and not self.dtype.is_complex
        self.half = complexes[-1] if halves and all(isinstance(self.transforms[i], DFT) for i in complexes) else None
        kind = first.device.type
        self.autocast_kind = kind if torch.amp.is_autocast_available(kind) else None

    def orthogonal_scale(self, what: str, *, real: bool = False) -> float:
        """s of M Mᴴ = s·I, M being the Kronecker product of the transforms; `what` says who needs such transforms."""
        for t in self.transforms:
            if t.scale is None or (real and t.is_complex):
                kind = "a real orthogonal" if real else "an orthogonal"
                raise ValueError(f"{what} {kind} transform, which {t!r} is not; try 'dct'")
        return math.prod([t.scale or 1.0 for t in self.transforms])  # torch.compile takes no generator here

    def to_hat(self, A: Tensor) -> Tensor:
        """(..., C1, …, Cp) -> (C1, …, Cp, ...)."""
        if A.dtype in HALF or self._is_autocasting():
            with full_precision(A):
                return narrow(self._to_hat(widen(A)), A.dtype)
        return self._to_hat(A)

    def from_hat(self, A_hat: Tensor) -> Tensor:
        """(C1, …, Cp, ...) -> (..., C1, …, Cp)."""
        if self.dtype in HALF or self._is_autocasting():
            with full_precision(A_hat):
                return narrow(self._from_hat(widen(A_hat)), self.dtype)
        return self._from_hat(A_hat)

    def _to_hat(self, A: Tensor) -> Tensor:
        if self.tube_ndim == 1 and self.half is None:
            return self.transforms[0].to_hat_slices(A)
        for i in reversed(range(self.tube_ndim)):
            A = self.transforms[i].to_hat_slices(A, half=i == self.half)
        return A

    def _from_hat(self, A_hat: Tensor) -> Tensor:
        if self.tube_ndim == 1 and self.half is None:
            return self.transforms[0].from_hat_slices(A_hat)
        for i in range(self.tube_ndim):
            A_hat = self.transforms[i].from_hat_slices(A_hat, half=i == self.half)
        return A_hat

    def _is_autocasting(self) -> bool:
        return self.autocast_kind is not None and torch.is_autocast_enabled(self.autocast_kind)


def full_precision(A: Tensor) -> AbstractContextManager[Any]:
    """Without autocast, where the device has it: it would round the transform to half precision."""
    kind = A.device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()


def resolve(transform: TransformsArg, tube_shape: Sequence[int]) -> tuple[Transform, ...]:
    """One transform for each tube mode: a single one is used for all of them.

    >>> resolve("dct", (3, 4))
    (FastTransform(dct, tube=3), FastTransform(dct, tube=4))
    """
    if isinstance(transform, list | tuple):
        transforms = tuple(transform)
    else:
        transforms = (transform,) * len(tube_shape)
    if len(transforms) != len(tube_shape):
        raise ValueError(
            f"got {len(transforms)} transforms for {len(tube_shape)} tube modes; give one, or one for each"
        )
    return tuple(get_transform(t, tube) for t, tube in zip(transforms, tube_shape, strict=True))


def slice_matmul(A_hat: Tensor, B_hat: Tensor, tube_ndim: int = 1) -> Tensor:
    """The slice-wise product, slices first: (C…, ..., m, k) and (C…, ..., k, n) -> (C…, ..., m, n).

    >>> slice_matmul(torch.ones(3, 7, 4, 5), torch.ones(3, 5, 2)).shape
    torch.Size([3, 7, 4, 2])
    """
    if A_hat.ndim == B_hat.ndim:
        return torch.bmm(A_hat, B_hat) if A_hat.ndim == 3 else A_hat @ B_hat  # bmm: half the overhead of tiny products
    if B_hat.ndim == tube_ndim + 2:  # one tall product per slice instead of copies of B
        rows = A_hat.flatten(tube_ndim, -2)
        return (rows @ B_hat).unflatten(tube_ndim, A_hat.shape[tube_ndim:-1])
    ndim = max(A_hat.ndim, B_hat.ndim)
    return _with_batch(A_hat, ndim, tube_ndim) @ _with_batch(B_hat, ndim, tube_ndim)


def _with_batch(A_hat: Tensor, ndim: int, tube_ndim: int) -> Tensor:
    """Missing batch dimensions go behind the tubes."""
    return A_hat[(slice(None),) * tube_ndim + (None,) * (ndim - A_hat.ndim)]


def eye_like(A_hat: Tensor, m: int) -> Tensor:
    """An m×m identity in every slice of `A_hat`'s kind."""
    return torch.eye(m, dtype=A_hat.dtype, device=A_hat.device).expand(*A_hat.shape[:-2], m, m)
