"""Stochastic depth: a residual branch is left out for whole samples while training."""

from __future__ import annotations

from torch import Tensor, nn


class DropPath(nn.Module):
    """Leave the branch out with probability `rate` for each sample along `batch_dim`, and scale the rest up.

    >>> import torch
    >>> DropPath(0.5).eval()(torch.ones(2, 3)).sum()
    tensor(6.)
    """

    def __init__(self, rate: float = 0.0, batch_dim: int = 0):
        super().__init__()
        self.rate, self.batch_dim = rate, batch_dim

    def forward(self, x: Tensor) -> Tensor:
        """Same shape."""
        if self.rate == 0.0 or not self.training:
            return x
        shape = [1] * x.ndim
        shape[self.batch_dim] = x.shape[self.batch_dim]
        keep = x.new_empty(shape).bernoulli_(1 - self.rate)
        return x * keep / (1 - self.rate)

    def extra_repr(self) -> str:
        """What `repr` shows."""
        return f"rate={self.rate}"
