"""Folding for inference: the scale γ and shift β of a norm go into the linear map that reads it, exactly.

(γ ⊙ n + β) W + b = n (diag(γ) W) + (β W + b), slice by slice. The norm is left with γ = 1 and β = 0, so that a fused
model has the parameters of an unfused one and computes the same when it is saved and loaded.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tcpvit.layers.coupling import CoupledTLinear, TwoFactorTLinear
from tcpvit.layers.linear import TLinear
from tcpvit.layers.norm import TLayerNorm


@torch.no_grad()
def fuse_block_(block: nn.Module) -> None:
    """Fold norm1 into qkv and norm2 into fc1 of a `Block` or `TBlock`, where it is exact."""
    for norm, linear in ((block.norm1, block.attn.qkv), (block.norm2, block.mlp.fc1)):  # type: ignore[union-attr]
        if isinstance(norm, TLayerNorm) and isinstance(linear, TLinear):
            _fold_slices_(norm, linear)
        elif isinstance(norm, nn.LayerNorm) and isinstance(linear, nn.Linear):
            _fold_dense_(norm, linear)


def _fold_slices_(norm: TLayerNorm, linear: TLinear) -> None:
    weights = _weights_by_input(linear)
    if linear.bias_hat is None or not weights:  # nowhere to put β, or γ
        return
    linear.bias_hat.copy_(linear(norm.bias_hat))
    for weight in weights:
        weight.mul_(norm.weight_hat.mT)  # (C, d_in, ·)
    norm.weight_hat.fill_(1)
    norm.bias_hat.zero_()
    norm.fused = True


def _weights_by_input(linear: TLinear) -> list[Tensor]:
    """All weights (C, d_in, ·) that multiply the input; none if it is first mixed across slices or halved."""
    if isinstance(linear, TwoFactorTLinear) or (isinstance(linear, CoupledTLinear) and linear.coupling.mix):
        return []
    return [parameter for name, parameter in linear.named_parameters() if name in ("weight_hat", "v_hat", "dense_hat")]


def _fold_dense_(norm: nn.LayerNorm, linear: nn.Linear) -> None:
    if linear.bias is None:
        return
    linear.bias.copy_(linear(norm.bias))
    linear.weight.mul_(norm.weight)
    norm.weight.fill_(1)
    norm.bias.zero_()
