"""A tube transform that is trained with the network around it (an option beside the paper's fixed one)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tcpvit.algebra.cache import outside_torch_modes
from tcpvit.algebra.transforms import HALF, Transform, get_transform, padded


class LearnedTransform(Transform, nn.Module):
    """A learned orthogonal transform, starting at the DCT (or at `start`): torch's orthogonal parametrisation.

    As an nn.Module it is trained, saved (by its state dict) and moved with a model. Tensors of another precision are
    transformed by a matrix that is orthogonal in that precision.

    >>> learned = LearnedTransform(3)
    >>> torch.allclose(learned.matrix, get_transform("dct", 3).matrix.float(), atol=1e-6)
    True
    """

    def __init__(self, tube: int, start: str | Transform | Tensor = "dct"):
        nn.Module.__init__(self)
        Transform.__init__(self, "learned", tube)
        begin = get_transform(start, tube)
        if begin.scale != 1.0 or begin.is_complex:
            raise ValueError(f"a learned transform starts at a real orthogonal one, but {begin!r} is not; try 'dct'")
        # The parametrisation starts with numbers of its own, which autocast and a meta device lack.
        self.basis = outside_torch_modes(_orthogonal_layer, begin.matrix.detach()).to(torch.get_default_device())

    @property
    def matrix(self) -> Tensor:
        """M, differentiable, in the dtype of the module."""
        basis: Any = self.basis
        return self._matrix_in(basis.parametrizations.weight.original.dtype)

    @property
    def inverse_matrix(self) -> Tensor:
        """M⁻¹ = Mᵀ, differentiable."""
        return self.matrix.mT

    def _matrix_in(self, dtype: torch.dtype) -> Tensor:
        """M, orthogonal to the precision of a real `dtype`, whatever the parameters were rounded to."""
        basis: Any = self.basis
        orthogonal = basis.parametrizations.weight
        if dtype == orthogonal.original.dtype == torch.float32:
            return basis.weight
        # torch's matrix exponential gives NaN in half precision.
        working = torch.float32 if dtype in HALF else dtype
        wide = {name: tensor.to(working) for name, tensor in orthogonal.state_dict(keep_vars=True).items()}
        if working == torch.float64:
            wide["0.base"] = _reorthogonalised(wide["0.base"])
        return torch.func.functional_call(orthogonal, wide, ()).to(dtype)

    def _cast(self, x: Tensor, inverse: bool) -> Tensor:
        matrix = self._matrix_in(x.real.dtype).to(x.dtype)
        return matrix.mT if inverse else padded(matrix)


def _orthogonal_layer(matrix: Tensor) -> nn.Linear:
    """A linear map whose weight stays orthogonal, and begins at `matrix`."""
    layer = nn.Linear(len(matrix), len(matrix), bias=False)  # in torch's default dtype
    nn.utils.parametrizations.orthogonal(layer, orthogonal_map="matrix_exp")
    with torch.no_grad():
        layer.weight = matrix.to(layer.weight)
    return layer


def _reorthogonalised(basis: Tensor) -> Tensor:
    """The orthogonal matrix nearest to one that was rounded to float32: two steps of Newton and Schulz."""
    for _ in range(2):
        basis = 1.5 * basis - 0.5 * basis @ (basis.mT @ basis)
    return basis
