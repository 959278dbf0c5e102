"""The slice product as an operator: on a GPU a kernel for small slices, elsewhere torch's batched product.

On a CPU `slice_linear` does not come here: torch's own product is the fastest there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from tcpvit.layers.kernels import gpu
from tcpvit.layers.kernels.build import refuse_second_derivatives


def can_use_product(x: Tensor, weight: Tensor) -> bool:
    """True if the kernel takes x (C, R, d_in) and weight (C, d_in, d_out) and is worth it."""
    if not x.is_cuda or weight.dtype != x.dtype or torch.is_autocast_enabled("cuda"):
        return False
    return max(weight.shape[1:]) <= gpu.MAX_PRODUCT and gpu.can_use_gpu(x)


@torch.library.custom_op("tcpvit::slice_product", mutates_args=())
def slice_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x (C, R, d_in) times weight (C, d_in, d_out), plus bias (C, 1, d_out): (C, R, d_out)."""
    return torch.bmm(x, weight) if bias is None else torch.baddbmm(bias, x, weight)


@slice_product.register_kernel("cuda")
def _(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    from tcpvit.layers.kernels.gpu import product

    return product.forward(x, weight, bias)


@slice_product.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty(*x.shape[:2], weight.shape[2])


@torch.library.custom_op("tcpvit::slice_product_backward", mutates_args=())
def slice_product_backward(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, weight and bias."""
    return torch.bmm(grad, weight.mT), torch.bmm(x.mT, grad), grad.sum(1, keepdim=True)


@slice_product_backward.register_kernel("cuda")
def _(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    from tcpvit.layers.kernels.gpu import product

    return product.backward(grad, x, weight)


@slice_product_backward.register_fake
def _(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), weight.new_empty(weight.shape), weight.new_empty(len(weight), 1, weight.shape[2])


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
    x, weight, bias = inputs
    ctx.has_bias = bias is not None
    ctx.save_for_backward(x, weight)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    d_x, d_weight, d_bias = slice_product_backward(grad, *ctx.saved_tensors)
    return d_x, d_weight, d_bias if ctx.has_bias else None


slice_product.register_autograd(_backward, setup_context=_save)
slice_product_backward.register_autograd(refuse_second_derivatives)


@register_flop_formula(torch.ops.tcpvit.slice_product)
def _flops(x_shape: tuple[int, int, int], weight_shape: tuple[int, int, int], *_: Any, **__: Any) -> int:
    """2·R·d_in·d_out for each slice."""
    return 2 * x_shape[0] * x_shape[1] * weight_shape[1] * weight_shape[2]
