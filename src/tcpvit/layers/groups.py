"""Parameter groups: who decays, and how much faster slices learn.

A slice has fan-in d where its dense twin has d·C. The rule for structured layers (Qiu et al., "Compute Better Spent")
scales Adam's learning rate of such weights by D_in / d_in = C.
"""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from tcpvit.algebra.learned import LearnedTransform
from tcpvit.layers.conv import MapCoupling, TConv2d
from tcpvit.layers.embed import TokenEmbedding
from tcpvit.layers.linear import TLinear, TubalLinear
from tcpvit.layers.norm import TLayerNorm
from tcpvit.layers.window import Windows


def undecayed_names(model: nn.Module) -> set[str]:
    """Parameters that weight decay leaves alone: biases, norms, tokens, positions, mixing matrices, transforms.

    >>> sorted(undecayed_names(TLinear(4, 4, tube=3)))
    ['bias_hat']
    """
    names = {name for name, p in model.named_parameters() if p.ndim < 2}
    for prefix, module in model.named_modules():
        if isinstance(module, TLayerNorm | TokenEmbedding | Windows | LearnedTransform | MapCoupling):
            small = {name for name, _ in module.named_parameters()}
        elif isinstance(module, TLinear):
            small = {name for name in ("bias_hat", "mix") if getattr(module, name, None) is not None}
        else:
            continue
        names |= {f"{prefix}.{name}" if prefix else name for name in small}
    return names


def slice_weight_tubes(model: nn.Module) -> dict[str, int]:
    """Names of the slice-wise weights, each with its tube length C; one that slices share counts as dense, C = 1.

    >>> slice_weight_tubes(TLinear(4, 4, tube=3))
    {'weight_hat': 3}
    """
    tubes: dict[str, int] = {}
    for prefix, module in model.named_modules():
        if isinstance(module, TLinear | TubalLinear):
            for name in ("weight_hat", "second_hat"):
                if hasattr(module, name):
                    tubes[f"{prefix}.{name}" if prefix else name] = len(getattr(module, name))
        elif isinstance(module, TConv2d):
            tubes[f"{prefix}.weight_hat" if prefix else "weight_hat"] = module.tube
    return tubes


def parameter_groups(
    model: nn.Module, lr: float, weight_decay: float, slice_lr_scale: float | str = 1.0
) -> list[dict[str, Any]]:
    """Groups for torch.optim.AdamW. `slice_lr_scale` is a factor, or "sqrt" (√C) or "full" (C) by each layer's tube.

    >>> groups = parameter_groups(TLinear(4, 4, tube=3), lr=0.1, weight_decay=0.05, slice_lr_scale="full")
    >>> [(round(g["lr"], 3), g["weight_decay"]) for g in groups]
    [(0.1, 0.0), (0.3, 0.05)]
    """
    undecayed, tubes = undecayed_names(model), slice_weight_tubes(model)
    groups: dict[tuple[float, float], dict[str, Any]] = {}
    for name, parameter in sorted(model.named_parameters(), key=lambda item: item[0]):
        if not parameter.requires_grad:
            continue
        key = (_scale(slice_lr_scale, tubes.get(name, 1)), 0.0 if name in undecayed else weight_decay)
        group = groups.setdefault(key, {"params": [], "names": [], "lr": lr * key[0], "weight_decay": key[1]})
        group["params"].append(parameter)
        group["names"].append(name)
    return [groups[key] for key in sorted(groups)]


def _scale(rule: float | str, tube: int) -> float:
    """The factor of a weight with that tube; dense weights have tube 1 and factor 1."""
    if tube == 1 or rule == 1:
        return 1.0
    if isinstance(rule, str):
        scales = {"sqrt": math.sqrt(tube), "full": float(tube), "none": 1.0}
        if rule not in scales:
            raise ValueError(f"slice_lr_scale is a factor or one of {sorted(scales)}, got {rule!r}")
        return scales[rule]
    return float(rule)
