"""The transform of an encoder: Φ once on the way in, Φ⁻¹ once on the way out (paper, Section 2.2).

Inside an encoder activations are slices first, (C, ..., d), so a transform is one product with a C×C matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tcpvit.algebra.bases import unitary_scale
from tcpvit.algebra.learned import LearnedTransform
from tcpvit.algebra.transforms import MatrixTransform, Transform, get_transform, kronecker
from tcpvit.layers.kernels import ops

# Transforms that no name determines: their matrix is saved with the weights and comes back with them.
STORED = ("data_driven", "matrix")


def cast_like(matrix: Tensor, x: Tensor) -> Tensor:
    """The matrix where `x` is, in its precision: integers have none, and would round it to zeros and ones.

    >>> cast_like(torch.ones(2, 2), torch.ones(2).double()).dtype
    torch.float64
    """
    if not x.is_floating_point():
        raise ValueError(f"a tube transform takes floating-point numbers, got {x.dtype}: give images as x / 255")
    return matrix.to(x.device, x.dtype)


def mix_slices(matrix: Tensor, x: Tensor) -> Tensor:
    """Σ_l M[k, l]·x_l for every k: (C', C) and (C, ...) -> (C', ...).

    >>> mix_slices(torch.ones(1, 3), torch.ones(3, 2))
    tensor([[3., 3.]])
    """
    return (matrix @ x.flatten(1)).view(matrix.shape[0], *x.shape[1:])


class HatTransform(nn.Module):
    """A real tube transform as a module: it moves and is saved with its encoder.

    The tubes of a tensor of order 4 have two lengths, (C_t, C), and a transform along each: Φ⊗Φ, the second fastest.

    >>> phi = HatTransform("dct", 3)
    >>> tokens = torch.randn(2, 5, 4, 3)                     # (B, N, d, C)
    >>> phi.to_hat_tokens(tokens).shape
    torch.Size([3, 2, 5, 4])
    >>> torch.allclose(phi.from_hat_tokens(phi.to_hat_tokens(tokens)), tokens, atol=1e-5)
    True
    """

    matrix: Tensor
    inverse_matrix: Tensor

    def __init__(self, transform: str | tuple[str, ...] | Transform | Tensor, tube: int | tuple[int, ...]):
        super().__init__()
        lengths = (tube,) if isinstance(tube, int) else tube
        self.tube = math.prod(lengths)
        stored = isinstance(transform, str) and transform in STORED
        with torch.device("cpu"):  # matrices are computed, also where the model is made on "meta"
            found = MatrixTransform(torch.eye(self.tube), str(transform)) if stored else _find(transform, lengths)
        if found.is_complex:
            raise ValueError(
                f"layers compute with real numbers, but {found!r} is complex; take 'dct', 'haar' or another"
            )
        self.scale = found.scale  # s where M Mᵀ = s·I
        device = torch.get_default_device()
        self.learned = found.to(device) if isinstance(found, LearnedTransform) else None
        self._exact: tuple[Tensor, Tensor] | None = None
        self.name = found.name if found.name in (*STORED, "learned") else "matrix"
        if isinstance(found, LearnedTransform):
            return
        derived = isinstance(transform, str | tuple) and not stored  # the name alone gives the matrix back
        if derived:
            self.name = str(transform) if isinstance(transform, str) and len(lengths) == 1 else found.name
            self._exact = (found.matrix, found.inverse_matrix)
        for name in ("matrix", "inverse_matrix"):
            matrix = getattr(found, name).to(device, torch.get_default_dtype(), copy=True)
            if stored:  # no name gives it: whoever loads no weights shall see NaN, not another transform
                matrix = torch.full_like(matrix, torch.nan)
            self.register_buffer(name, matrix, persistent=not derived)

    @property
    def is_orthogonal(self) -> bool:
        """True if M is orthogonal up to a factor."""
        return self.scale is not None

    @property
    def is_identity(self) -> bool:
        """True if there is nothing to compute: the slices are given in the hat domain."""
        return self.name == "identity"

    def matrices(self) -> tuple[Tensor, Tensor]:
        """M and M⁻¹."""
        if self.learned is not None:
            return self.learned.matrix, self.learned.inverse_matrix
        return self.matrix, self.inverse_matrix

    def to_hat(self, x: Tensor) -> Tensor:
        """Slices first in the spatial domain -> slices first in the hat domain, (C, ...) both."""
        matrix = cast_like(self.matrices()[0], x)
        return x if self.is_identity else mix_slices(matrix, x)

    def from_hat(self, x_hat: Tensor) -> Tensor:
        """The inverse of `to_hat`."""
        inverse = cast_like(self.matrices()[1], x_hat)
        return x_hat if self.is_identity else mix_slices(inverse, x_hat)

    def to_hat_tokens(self, x: Tensor) -> Tensor:
        """(..., d, C) in the spatial domain -> (C, ..., d) in the hat domain."""
        matrix = cast_like(self.matrices()[0], x)
        if self.is_identity:
            return x.movedim(-1, 0).contiguous()
        tubes = x.reshape(-1, self.tube)
        if ops.can_use_tubes(tubes, self.tube, ops.TO_HAT_LENGTHS):
            return ops.to_hat_tubes(tubes, matrix).view(self.tube, *x.shape[:-1])
        return (matrix @ tubes.transpose(-1, -2)).view(self.tube, *x.shape[:-1])

    def from_hat_tokens(self, x_hat: Tensor) -> Tensor:
        """(C, ..., d) in the hat domain -> (..., d, C) in the spatial domain."""
        inverse = cast_like(self.matrices()[1], x_hat)
        if self.is_identity:
            return x_hat.movedim(0, -1).contiguous()
        slices = x_hat.flatten(1)
        if ops.can_use_tubes(slices, self.tube, ops.FROM_HAT_LENGTHS):
            return ops.from_hat_tubes(slices, inverse).view(*x_hat.shape[1:], self.tube)
        return (slices.transpose(-1, -2) @ inverse.transpose(-1, -2)).view(*x_hat.shape[1:], self.tube)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> HatTransform:
        """After a change of dtype or device take the matrices anew from float64, so that nothing is rounded twice."""
        super()._apply(fn, recurse)
        self._recompute(self.matrix.device if self._exact else None)
        return self

    def _recompute(self, device: torch.device | None) -> None:
        """The matrices that a name determines, on that device."""
        if self._exact is not None:
            self.matrix, self.inverse_matrix = (m.to(device, self.matrix.dtype, copy=True) for m in self._exact)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], *rest: Any
    ) -> None:
        """A stored matrix is judged as it comes; a computed one follows weights that are assigned to a meta model."""
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)
        if self.learned is not None:
            return
        if self._exact is not None:
            if self.matrix.is_meta and local_metadata.get("assign_to_params_buffers"):
                self._recompute(torch.device("cpu"))  # `cast_like` takes it to where the weights are
        elif (given := state_dict.get(f"{prefix}matrix")) is not None and given.dtype in (torch.float32, torch.float64):
            self.scale = unitary_scale(given.detach().to("cpu", torch.float64))

    def extra_repr(self) -> str:
        """What `repr` shows."""
        return f"{self.name}, tube={self.tube}"


def _find(transform: str | tuple[str, ...] | Transform | Tensor, lengths: tuple[int, ...]) -> Transform:
    """The transform of tubes of these lengths; a name stands for that transform along each of them."""
    if len(lengths) == 1 or not isinstance(transform, str | tuple):
        return get_transform(transform[0] if isinstance(transform, tuple) else transform, math.prod(lengths))
    if transform == "learned":
        return LearnedTransform(math.prod(lengths), start=kronecker(*(get_transform("dct", n) for n in lengths)))
    names = (transform,) * len(lengths) if isinstance(transform, str) else transform
    return kronecker(*(get_transform(name, n) for name, n in zip(names, lengths, strict=True)))


def attach_transform(layer: nn.Module, transform: str | Transform | HatTransform | Tensor, tube: int) -> None:
    """Give `layer` its `.transform`: one of its own, or the one of the encoder it lives in.

    A shared transform is registered by its owner alone, so that it stands in the state dict once.
    """
    if isinstance(transform, HatTransform):
        if transform.tube != tube:
            raise ValueError(f"the transform has tube {transform.tube}, the layer {tube}; they should be equal")
        object.__setattr__(layer, "transform", transform)
    else:
        layer.transform = HatTransform(transform, tube)
