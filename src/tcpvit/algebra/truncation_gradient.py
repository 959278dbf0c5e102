"""The truncated SVD of every slice as one differentiable function, also where singular values repeat.

The derivative of singular vectors divides by the gaps between all singular values. The product that a truncation
leaves depends only on the gaps between what is kept and what is left out, and so should its gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Truncation(torch.autograd.Function):
    """U (S∘kept) Vᴴ as a function of Â = U S Vᴴ; (C…, ..., m, n), with kept (C…, ..., k) true for the leading values.

    The factors come with their slices, `differentiable(Truncation).apply(A_hat, U, S, V, kept)`, and are no part of the
    graph: their own derivative is what this one replaces. Only second derivatives need distinct singular values.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(A_hat: Tensor, U: Tensor, S: Tensor, V: Tensor, kept: Tensor) -> Tensor:
        """The product of what is kept."""
        return (U * (S * kept)[..., None, :]) @ V.mH

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Keep the factors, which both derivatives need, and the slices, which second ones need."""
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """The gradient of the slices."""
        A_hat, U, S, V, kept = ctx.saved_tensors
        if torch.is_grad_enabled():  # it will be differentiated again, through the factors
            U, S, Vh = torch.linalg.svd(A_hat, full_matrices=False)
            V = Vh.mH
        return derivative(grads[0], U, S, V, kept), None, None, None, None

    @staticmethod
    def tangent(ctx: Any, tangent: Tensor, *_: Any) -> Tensor:
        """The derivative in the direction of the tangent."""
        _, *factors = ctx.saved_tensors
        return derivative(tangent, *factors)


def derivative(dA: Tensor, U: Tensor, S: Tensor, V: Tensor, kept: Tensor) -> Tensor:
    """The derivative of a truncation in the direction dA. It is self-adjoint, so it takes gradients back as well.

    With M = Uᴴ dA V, an entry of a kept pair stays and one of a pair left out vanishes. Between σ that is kept and τ
    that is not, the entry and its mirror image mix with σ²/(σ² − τ²) and στ/(σ² − τ²).
    """
    M = U.mH @ dA @ V  # (C…, ..., k, k)
    row, column = S[..., :, None], S[..., None, :]
    kept_row, kept_column = kept[..., :, None], kept[..., None, :]
    across = kept_row != kept_column
    large, small = torch.maximum(row, column), torch.minimum(row, column)
    gap = torch.where(across, (large - small) * (large + small), 1.0)
    own = torch.where(across, large**2 / gap, (kept_row & kept_column).to(S))
    mirrored = torch.where(across, large * small / gap, 0.0)
    inside = U @ (own * M + mirrored * M.mH) @ V.mH
    # what dA has outside of the ranges of U and V, where the singular values are 0
    below = ((dA @ V - U @ M) * kept[..., None, :]) @ V.mH
    beside = U @ ((U.mH @ dA - M @ V.mH) * kept[..., :, None])
    return inside + below + beside
