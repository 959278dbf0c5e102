"""A transform from a pair of functions, as mprod's `fun_m` and `inv_m`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tcpvit.algebra.cache import outside_torch_modes
from tcpvit.algebra.transforms import MatrixTransform


class FunctionTransform(MatrixTransform):
    """A linear function along the last dimension, and its inverse, as a transform for tubes of length `tube`.

    Both take and return tensors (..., C), in any precision, and keep the shape. They are tried on a tensor first: a
    ValueError says so if they are not linear, or not each other's inverse.

    >>> shift = FunctionTransform(lambda x: x.roll(1, -1), lambda x: x.roll(-1, -1), tube=3)
    >>> shift.to_hat(torch.tensor([1.0, 2.0, 3.0])), shift.is_orthogonal
    (tensor([3., 1., 2.]), True)
    """

    def __init__(
        self,
        forward: Callable[[Tensor], Tensor],
        backward: Callable[[Tensor], Tensor],
        tube: int,
        name: str = "function",
    ):
        self.forward, self.backward = forward, backward
        super().__init__(outside_torch_modes(self._matrix_of_both, tube), name)

    def to_hat_slices(self, x: Tensor, *, half: bool = False) -> Tensor:
        """(..., C) -> (C, ...), by the function."""
        return self.forward(x).movedim(-1, 0)

    def from_hat_slices(self, x_hat: Tensor, *, half: bool = False) -> Tensor:
        """(C, ...) -> (..., C), by the inverse function."""
        return self.backward(x_hat.movedim(0, -1))

    def _matrix_of_both(self, tube: int) -> Tensor:
        """M, whose column j is what becomes of the unit tube j, if it says the same as the functions."""
        units = torch.eye(tube, dtype=torch.float64)
        hats = self.forward(units)  # unit tubes as rows
        if hats.shape != units.shape:
            raise ValueError(
                f"a transform keeps the shape (..., C) of tubes, but {tuple(units.shape)} became {tuple(hats.shape)}"
            )
        probe = torch.linspace(-1, 2, tube, dtype=torch.float64) ** 3
        tolerance = 1e-6 * float(hats.abs().max())
        if not torch.allclose(self.forward(probe), hats.mT @ probe.to(hats.dtype), atol=tolerance):
            raise ValueError("the function of a transform is linear and acts along the last dimension, this one is not")
        if not torch.allclose(self.backward(hats).to(hats.dtype), units.to(hats.dtype), atol=1e-6):
            raise ValueError("the second function of a transform is the inverse of the first, this one is not")
        return hats.mT.contiguous()
