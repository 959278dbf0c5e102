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
from tcpvit.layers.coupling import CoupledTLinear
from tcpvit.layers.kernels import halves, ops
from tcpvit.layers.linear import TLinear
from tcpvit.layers.local import Grid, TokenConv
from tcpvit.layers.norm import TLayerNorm

DENSE, SLICED = (nn.LayerNorm, nn.Linear, nn.Linear), (TLayerNorm, TLinear, TLinear)
MIXED = (TLayerNorm, CoupledTLinear, CoupledTLinear)


def attention_half(block: Any, x: Tensor, grid: Grid | None = None) -> Tensor | None:
    """x + attn(norm1(x)) of a `Block` or `TBlock`, or None where it goes layer by layer."""
    parts, pool = block._modules, block.pool
    norm, attn, drop_path = parts["norm1"], parts["attn"], parts["drop_path"]
    if type(attn) not in (Attention, TAttention) or attn.along is not None:
        return None
    parts, dense = attn._modules, type(attn) is Attention
    qkv, proj, drop = parts["qkv"], parts["proj"], parts["proj_drop"]
    joint, shuffle = not dense and attn.joint, not dense and attn.shuffle
    if x.ndim != (3 if dense else 4) or (attn.training and attn.attn_drop):
        return None
    parameters = _parameters(norm, qkv, proj, dense)
    if parameters is None:
        return None
    mixes = _mixes(qkv, proj)
    coupled = shuffle or bool(mixes) or (not dense and norm.joint)
    plain = not coupled and pool == 1
    if not halves.can_use_half("attention_half", x, parameters[2], plain, coupled or joint):
        return None
    if _drops(drop, drop_path) or _is_watched(norm, attn, qkv, proj, drop, drop_path):
        return None
    if pool > 1 and not _divides(pool, grid, x.shape[-2]):
        return None
    head = attn.head_dim * (len(x) if joint else 1)
    numbers = x.shape[-1] * x.shape[-2] * (len(x) if coupled or joint else 1)
    if head > halves.MAX_HEAD_WIDTH:
        return None
    if (not plain or head > ops.MAX_HEAD_WIDTH) and not halves.can_couple(x, numbers):
        return None
    slices = x.unsqueeze(0) if dense else x  # (C, B, N, d)
    if not dense and len(parameters[2]) == 1 < len(x):  # one weight for all slices
        if joint or coupled:
            parameters = _for_each_slice(parameters, len(x))
        else:
            slices = x.flatten(0, 1).unsqueeze(0)
    options: tuple[Any, ...] = attn.num_heads, joint, dense, norm.eps, torch.is_grad_enabled()
    if not plain:
        options = (*options, not dense and norm.joint, shuffle, pool, 0 if grid is None else grid[-1], *mixes)
    return halves.attention_half(slices, *parameters, *options)[0].view(x.shape)


def ffn_half(block: Any, x: Tensor, grid: Grid | None, kind: type[Any]) -> Tensor | None:
    """x + mlp(norm2(x)) of a `Block` or `TBlock` with an FFN of that kind, or None where it goes layer by layer."""
    parts = block._modules
    norm, mlp, drop_path = parts["norm2"], parts["mlp"], parts["drop_path"]
    if type(mlp) is not kind or mlp.gated:
        return None
    parts = mlp._modules
    fc1, fc2, drop, local = parts["fc1"], parts["fc2"], parts["drop"], mlp.local
    dense = "spatial" not in vars(mlp)  # an Mlp, whose layers may have been replaced, and no TMlp
    if not dense and (mlp.activation is not F.gelu or mlp.spatial):
        return None
    parameters = _parameters(norm, fc1, fc2, dense)
    if parameters is None:
        return None
    mixes, joint, shuffle = _mixes(fc1, fc2), not dense and norm.joint, not dense and mlp.shuffle
    coupled = joint or shuffle or bool(mixes)
    plain = not coupled and local is None
    if not halves.can_use_half("ffn_half", x, parameters[2], not coupled, coupled):
        return None
    if parameters[3] is None or _drops(drop, drop_path) or _is_watched(norm, mlp, fc1, fc2, drop, drop_path):
        return None
    if plain:
        rows = x.reshape(1 if dense else len(parameters[2]), -1, x.shape[-1])  # (C, B·N, d)
        return halves.ffn_half(rows, *parameters, dense, norm.eps).view(x.shape)
    filters = (None, None, 0, 0) if local is None else _filters(local, x, grid)
    if filters is None:
        return None
    if coupled and len(parameters[2]) == 1 < len(x):  # one weight for all slices
        parameters = _for_each_slice(parameters, len(x))
        filters = tuple(f.repeat(len(x), *[1] * (f.ndim - 1)) if isinstance(f, Tensor) else f for f in filters)
    rows = x.reshape(1 if dense else len(parameters[2]), -1, x.shape[-1])  # (C, B·N, d)
    tokens = halves.TILE if local is None else x.shape[-2]
    if not halves.can_couple(x, tokens * parameters[3].numel() // (1 if coupled else len(rows))):
        return None
    return halves.ffn_half(rows, *parameters, dense, norm.eps, *filters, joint, shuffle, *mixes).view(x.shape)


def _filters(local: Any, x: Tensor, grid: Grid | None) -> tuple[Any, ...] | None:
    """Weight and bias of depthwise filters with the grid they act on; None if they are no plain ones."""
    if type(local) is not TokenConv or grid is None or not _divides(1, grid, x.shape[-2]) or _is_watched(local):
        return None
    found = local._parameters.get("weight_hat"), local._parameters.get("bias_hat"), *grid
    return None if found[0] is None or found[1] is None else found


def _mixes(first: Any, second: Any) -> tuple[Any, ...]:
    """The matrices that mix the slices before both maps, if there are."""
    coupled = type(first) is CoupledTLinear and type(second) is CoupledTLinear
    return (first._parameters["mix"], second._parameters["mix"]) if coupled else ()


def _for_each_slice(parameters: tuple[Any, ...], slices: int) -> tuple[Any, ...]:
    """Parameters that all slices share, (1, ·, ·), once for each."""
    return tuple(None if p is None else p.expand(slices, -1, -1) for p in parameters)


def _divides(pool: int, grid: Grid | None, tokens: int) -> bool:
    """Whether so many tokens lie on a grid that pools tile."""
    return grid is not None and grid[0] * grid[1] == tokens and grid[0] % pool == 0 and grid[1] % pool == 0


def _parameters(norm: Any, first: Any, second: Any, dense: bool) -> tuple[Any, ...] | None:
    """γ, β, and weight and bias of both maps; None if a layer is no plain one, or lacks more than the first bias."""
    types = type(norm), type(first), type(second)
    mixed = not dense and types == MIXED and _only_mixes(first) and _only_mixes(second)
    if not mixed and types != (DENSE if dense else SLICED):
        return None
    weight, bias = ("weight", "bias") if dense else ("weight_hat", "bias_hat")
    scale, one, two = norm._parameters, first._parameters, second._parameters
    found = scale[weight], scale[bias], one.get(weight), one.get(bias), two.get(weight), two.get(bias)
    gamma, beta, w1, _, w2, b2 = found
    return None if gamma is None or beta is None or w1 is None or w2 is None or b2 is None else found


def _only_mixes(layer: Any) -> bool:
    return "mix" in layer._parameters and not layer.coupling.low_rank and not layer.d_dense


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
