"""t-LayerNorm (paper, Def. t-LayerNorm): each token is normalised in each hat slice by itself.

PyTorch's √(σ² + ε) stands in place of the paper's σ + ε; `reference.literal_t_layer_norm` has the latter.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tcpvit.layers.kernels import ops

EPS = 1e-6  # timm's, for Std and TCP alike


class TLayerNorm(nn.Module):
    """LayerNorm over the d features of every slice, slices first: (C, ..., d) -> (C, ..., d).

    `joint` takes mean and variance over all slices of a token together (the coupling `norm`); `shared` has one γ and
    one β for all slices (the coupling `shared`).

    >>> y = TLayerNorm(16, tube=3)(torch.randn(3, 2, 65, 16))
    >>> y.mean(-1).abs().max() < 1e-5
    tensor(True)
    """

    def __init__(self, d: int, tube: int, eps: float = EPS, *, joint: bool = False, shared: bool = False):
        super().__init__()
        self.d, self.tube, self.eps, self.joint = d, tube, eps, joint
        own = 1 if shared else tube
        self.weight_hat = nn.Parameter(torch.ones(own, 1, d))  # γ
        self.bias_hat = nn.Parameter(torch.zeros(own, 1, d))  # β
        self.fused = False  # True: γ and β were folded into the next layer and are 1 and 0

    def forward(self, x_hat: Tensor) -> Tensor:
        """(C, ..., d) -> (C, ..., d)."""
        rows = x_hat.flatten(1, -2)  # (C, B·N, d)
        if self.joint:
            return self._jointly(rows).view(x_hat.shape)
        rows = rows.reshape(len(self.weight_hat), -1, self.d)  # all slices as one if they share γ and β
        if ops.can_use_layer_norm(rows, self.weight_hat):
            return ops.slice_layer_norm(rows, self.weight_hat, self.bias_hat, self.eps)[0].view(x_hat.shape)
        return self._scale(F.layer_norm(rows, (self.d,), eps=self.eps)).view(x_hat.shape)

    def _jointly(self, rows: Tensor) -> Tensor:
        if ops.can_use_joint_norm(rows, self.weight_hat):
            return ops.joint_layer_norm(rows, self.weight_hat, self.bias_hat, self.eps)[0]
        wide = rows.to(torch.promote_types(rows.dtype, torch.float32))
        variance, mean = torch.var_mean(wide, dim=(0, 2), correction=0, keepdim=True)  # (1, B·N, 1)
        return self._scale((wide - mean) * torch.rsqrt(variance + self.eps)).to(rows.dtype)

    def _scale(self, normed: Tensor) -> Tensor:
        return normed if self.fused else torch.addcmul(self.bias_hat, normed, self.weight_hat)

    def _load_from_state_dict(self, *args: Any) -> None:
        """Weights that are loaded bring a γ and β of their own, which are no longer 1 and 0."""
        super()._load_from_state_dict(*args)
        self.fused = False

    def extra_repr(self) -> str:
        """What `repr` shows."""
        return f"d={self.d}, tube={self.tube}, eps={self.eps}"
