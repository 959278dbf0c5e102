"""Which blocks go through the operators of `kernels.halves`: each half of a block in one call instead of five.

A half is taken only if nobody can tell the difference: its layers are the plain ones, nothing is dropped, and nobody
has hooked into them or put something else in their place.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules import module as torch_module

from tcpvit.layers.attention import Attention, TAttention
from tcpvit.layers.kernels import halves, ops
from tcpvit.layers.linear import TLinear
from tcpvit.layers.norm import TLayerNorm

DENSE, SLICED = (nn.LayerNorm, nn.Linear, nn.Linear), (TLayerNorm, TLinear, TLinear)


def attention_half(block: Any, x: Tensor) -> Tensor | None:
    """x + attn(norm1(x)) of a `Block` or `TBlock`, or None where it goes layer by layer."""
    parts = block._modules
    norm, attn, drop_path = parts["norm1"], parts["attn"], parts["drop_path"]
    if type(attn) not in (Attention, TAttention) or block.pool != 1 or attn.along is not None:
        return None
    parts, dense = attn._modules, type(attn) is Attention
    qkv, proj, drop = parts["qkv"], parts["proj"], parts["proj_drop"]
    joint = not dense and attn.joint
    if x.ndim != (3 if dense else 4) or (not dense and attn.shuffle) or (attn.training and attn.attn_drop):
        return None
    parameters = _parameters(norm, qkv, proj, dense)
    if parameters is None or not halves.can_use_half("attention_half", x, parameters[2]):
        return None
    shared = not dense and len(parameters[2]) == 1 < len(x)
    width = attn.head_dim * (len(x) if joint else 1)
    if width > ops.MAX_HEAD_WIDTH or (joint and shared) or _drops(drop, drop_path):
        return None
    if _is_watched(norm, attn, qkv, proj, drop, drop_path):
        return None
    slices = x.unsqueeze(0) if dense else x.flatten(0, 1).unsqueeze(0) if shared else x  # (C, B, N, d)
    options = attn.num_heads, joint, dense, norm.eps, torch.is_grad_enabled()
    return halves.attention_half(slices, *parameters, *options)[0].view(x.shape)


def ffn_half(block: Any, x: Tensor, kind: type[Any]) -> Tensor | None:
    """x + mlp(norm2(x)) of a `Block` or `TBlock` with an FFN of that kind, or None where it goes layer by layer."""
    parts = block._modules
    norm, mlp, drop_path = parts["norm2"], parts["mlp"], parts["drop_path"]
    if type(mlp) is not kind or mlp.gated or mlp.local is not None:
        return None
    parts = mlp._modules
    fc1, fc2, drop = parts["fc1"], parts["fc2"], parts["drop"]
    dense = "spatial" not in vars(mlp)  # an Mlp, whose layers may have been replaced, and no TMlp
    if not dense and (mlp.activation is not F.gelu or mlp.spatial or mlp.shuffle):
        return None
    parameters = _parameters(norm, fc1, fc2, dense)
    if parameters is None or not halves.can_use_half("ffn_half", x, parameters[2]):
        return None
    if parameters[3] is None or _drops(drop, drop_path) or _is_watched(norm, mlp, fc1, fc2, drop, drop_path):
        return None
    rows = x.reshape(1 if dense else len(parameters[2]), -1, x.shape[-1])  # (C, B·N, d)
    return halves.ffn_half(rows, *parameters, dense, norm.eps).view(x.shape)


def _parameters(norm: Any, first: Any, second: Any, dense: bool) -> tuple[Any, ...] | None:
    """γ, β, and weight and bias of both maps; None if a layer is no plain one, or lacks more than the first bias."""
    if (type(norm), type(first), type(second)) != (DENSE if dense else SLICED) or (not dense and norm.joint):
        return None
    weight, bias = ("weight", "bias") if dense else ("weight_hat", "bias_hat")
    scale, one, two = norm._parameters, first._parameters, second._parameters
    found = scale[weight], scale[bias], one.get(weight), one.get(bias), two.get(weight), two.get(bias)
    gamma, beta, w1, _, w2, b2 = found
    return None if gamma is None or beta is None or w1 is None or w2 is None or b2 is None else found


def _drops(drop: Any, drop_path: Any) -> bool:
    return (drop.training and drop.p > 0) or (drop_path.training and drop_path.rate > 0)


def _is_watched(*layers: Any) -> bool:
    """Whether somebody hooked into a layer, or replaced its forward. It is asked of every call, and has to be quick."""
    for layer in layers:
        own = vars(layer)
        if own["_forward_hooks"] or own["_forward_pre_hooks"] or own["_backward_hooks"] or own["_backward_pre_hooks"]:
            return True
        if "forward" in own:
            return True
    return bool(torch_module._has_any_global_hook())
