"""The gradient by slice: does every slice learn? The paper ("Training Considerations") says that none vanishes."""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn

from tcpvit.layers import TLinear, TubalLinear
from tcpvit.progress import Row
from tcpvit.training.sharding import full_tensor

WEIGHTS = ("weight_hat", "second_hat")  # one matrix, or as many, for each slice


def gradient_norms(model: nn.Module) -> Row:
    """‖∂L/∂Ŵ_k‖ of each block and slice k, over the slice-wise weights of the block; dense and shared ones have none.

    >>> layer = nn.ModuleDict({"proj": TLinear(4, 4, tube=2)})
    >>> layer["proj"](torch.stack([torch.ones(5, 4), torch.zeros(5, 4)])).sum().backward()
    >>> gradient_norms(layer)
    {'proj:0': 20.0, 'proj:1': 0.0}
    """
    squares: dict[str, Tensor] = {}
    for name, module in model.named_modules():
        if not isinstance(module, TLinear | TubalLinear):
            continue
        place = block_of(name)
        for weight in (getattr(module, each, None) for each in WEIGHTS):
            if weight is not None and weight.grad is not None and len(weight) >= module.tube:
                grad = full_tensor(weight.grad).reshape(module.tube, -1)
                squares[place] = squares.get(place, torch.zeros((), device=grad.device)) + grad.square().sum(1)
    return {f"{place}:{k}": norm for place, found in squares.items() for k, norm in enumerate(found.sqrt().tolist())}


def block_of(name: str) -> str:
    """The part of a model that a layer lies in: its name up to the first number.

    >>> block_of("blocks.3.attn.qkv"), block_of("patch_embed.proj")
    ('blocks.3', 'patch_embed')
    """
    numbered = re.match(r".*?\.\d+", name)
    return numbered.group() if numbered else name.partition(".")[0]
