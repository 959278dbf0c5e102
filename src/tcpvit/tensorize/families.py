"""Encoders whose structure is known, read block by block: what `mode="encoder"` builds its own blocks from.

timm's VisionTransformer (DeiT with it), torchvision's, and transformers' ViT, DeiT and BERT. Classes are known by name,
so that none of these libraries is needed here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Map:
    """A dense map of a block: its names there (three for separate q, k and v), matrix (out, in) and bias."""

    names: tuple[str, ...]
    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True)
class Parts:
    """What a Transformer block is made of, whoever wrote it."""

    num_heads: int
    norm1: nn.LayerNorm
    qkv: Map
    proj: Map
    norm2: nn.LayerNorm
    fc1: Map
    fc2: Map
    activation: Callable[[Tensor], Tensor]
    scale1: Tensor | None = None  # layer scale of the attention
    scale2: Tensor | None = None  # and of the MLP
    post_norm: bool = False  # norm after the residual sum, as in BERT
    attn_drop: float = 0.0
    proj_drop: float = 0.0
    hidden_drop: float = 0.0  # inside the MLP, after the activation and after fc2
    mlp_drop: float = 0.0  # after the MLP
    drop_path: float = 0.0


@dataclass(frozen=True)
class Family:
    """A module that holds the blocks under `attribute`; `in_list`: it calls them one by one, from a ModuleList."""

    attribute: str
    block: str
    read: Callable[[Any], Parts]
    in_list: bool = False


class Unfit(ValueError):
    """A block that encoder mode cannot keep; its text says what of it."""


def class_names(module: nn.Module) -> set[str]:
    """The full names of a module's class and of the classes it is made from.

    >>> "torch.nn.modules.module.Module" in class_names(nn.Linear(1, 1))
    True
    """
    return {f"{c.__module__}.{c.__qualname__}" for c in type(module).__mro__}


def find_encoders(model: nn.Module) -> dict[str, tuple[nn.Module, Family]]:
    """The modules of `model` that hold blocks of a known family, by name."""
    found = {}
    for name, module in model.named_modules():
        for known in class_names(module) & FAMILIES.keys():
            found[name] = (module, FAMILIES[known])
    return found


def _linear(name: str, layer: Any) -> Map:
    """A plain linear layer, or one of our drop-ins, whose `weight` is dense."""
    if not hasattr(layer, "in_features"):
        raise Unfit(f"{name} is a {type(layer).__name__}, not a linear layer")
    return Map((name,), layer.weight, layer.bias)


def _stack(names: tuple[str, ...], layers: tuple[Any, ...]) -> Map:
    """Separate q, k and v as one map."""
    maps = [_linear(name, layer) for name, layer in zip(names, layers, strict=True)]
    biases = [m.bias for m in maps if m.bias is not None]
    return Map(names, torch.cat([m.weight for m in maps]), torch.cat(biases) if biases else None)


def _keep_nothing(block: nn.Module, **features: nn.Module | None) -> None:
    """These should not be there."""
    for name, module in features.items():
        if module is not None and not isinstance(module, nn.Identity):
            raise Unfit(f"it has {name.replace('_', ' ')} ({type(module).__name__})")


def _scale(module: Any) -> Tensor | None:
    """The gamma of a layer scale."""
    if isinstance(module, nn.Identity):
        return None
    if not hasattr(module, "gamma"):
        raise Unfit(f"its layer scale is a {type(module).__name__}")
    gamma: Tensor = module.gamma
    return gamma


def _read_timm(block: Any) -> Parts:
    attn, mlp = block.attn, block.mlp
    for part, known in ((attn, "timm.layers.attention.Attention"), (mlp, "timm.layers.mlp.Mlp")):
        if f"{type(part).__module__}.{type(part).__qualname__}" != known:
            raise Unfit(f"it has a {type(part).__name__} where {known} was expected")
    _keep_nothing(
        block,
        norms_of_q=attn.q_norm,
        norms_of_k=attn.k_norm,
        a_norm_in_its_attention=attn.norm,
        a_gate=getattr(attn, "gate", None),
        a_norm_in_its_MLP=mlp.norm,
    )
    return Parts(
        num_heads=attn.num_heads,
        norm1=block.norm1,
        qkv=_linear("attn.qkv", attn.qkv),
        proj=_linear("attn.proj", attn.proj),
        norm2=block.norm2,
        fc1=_linear("mlp.fc1", mlp.fc1),
        fc2=_linear("mlp.fc2", mlp.fc2),
        activation=mlp.act,
        scale1=_scale(block.ls1),
        scale2=_scale(block.ls2),
        attn_drop=attn.attn_drop.p,
        proj_drop=attn.proj_drop.p,
        hidden_drop=mlp.drop1.p,
        drop_path=getattr(block.drop_path1, "drop_prob", 0.0) or 0.0,
    )


def _read_torchvision(block: Any) -> Parts:
    attn, mlp = block.self_attention, block.mlp
    return Parts(
        num_heads=attn.num_heads,
        norm1=block.ln_1,
        qkv=Map(("self_attention.in_proj",), attn.in_proj_weight, attn.in_proj_bias),
        proj=_linear("self_attention.out_proj", attn.out_proj),
        norm2=block.ln_2,
        fc1=_linear("mlp.0", mlp[0]),
        fc2=_linear("mlp.3", mlp[3]),
        activation=mlp[1],
        attn_drop=attn.dropout,
        proj_drop=block.dropout.p,
        hidden_drop=mlp[2].p,
    )


def _read_hf_vit(block: Any) -> Parts:
    attn, mlp = block.attention, block.mlp
    names = ("attention.q_proj", "attention.k_proj", "attention.v_proj")
    return Parts(
        num_heads=attn.num_attention_heads,
        norm1=block.layernorm_before,
        qkv=_stack(names, (attn.q_proj, attn.k_proj, attn.v_proj)),
        proj=_linear("attention.o_proj", attn.o_proj),
        norm2=block.layernorm_after,
        fc1=_linear("mlp.fc1", mlp.fc1),
        fc2=_linear("mlp.fc2", mlp.fc2),
        activation=mlp.activation_fn,
        attn_drop=attn.attention_dropout,
        proj_drop=block.dropout.p,
        mlp_drop=block.dropout.p,
    )


def _read_bert(block: Any) -> Parts:
    if block.is_decoder:
        raise Unfit("it is a decoder")
    attn, output = block.attention.self, block.attention.output
    names = tuple(f"attention.self.{name}" for name in ("query", "key", "value"))
    return Parts(
        num_heads=attn.num_attention_heads,
        norm1=output.LayerNorm,
        qkv=_stack(names, (attn.query, attn.key, attn.value)),
        proj=_linear("attention.output.dense", output.dense),
        norm2=block.output.LayerNorm,
        fc1=_linear("intermediate.dense", block.intermediate.dense),
        fc2=_linear("output.dense", block.output.dense),
        activation=block.intermediate.intermediate_act_fn,
        post_norm=True,
        attn_drop=attn.dropout.p,
        proj_drop=output.dropout.p,
        mlp_drop=block.output.dropout.p,
    )


_TIMM, _TV, _HF = "timm.models.vision_transformer", "torchvision.models.vision_transformer", "transformers.models"
FAMILIES = {
    f"{_TIMM}.VisionTransformer": Family("blocks", f"{_TIMM}.Block", _read_timm),
    f"{_TV}.Encoder": Family("layers", f"{_TV}.EncoderBlock", _read_torchvision),
    f"{_HF}.vit.modeling_vit.ViTModel": Family("layers", f"{_HF}.vit.modeling_vit.ViTLayer", _read_hf_vit, True),
    f"{_HF}.deit.modeling_deit.DeiTModel": Family("layers", f"{_HF}.deit.modeling_deit.DeiTLayer", _read_hf_vit, True),
    f"{_HF}.bert.modeling_bert.BertEncoder": Family("layer", f"{_HF}.bert.modeling_bert.BertLayer", _read_bert, True),
}


def read_blocks(holder: nn.Module, family: Family) -> list[Parts]:
    """The blocks of an encoder, or an error that says what of them cannot be kept."""
    blocks = getattr(holder, family.attribute, None)
    if not isinstance(blocks, nn.Sequential | nn.ModuleList):
        raise Unfit(f"{family.attribute} of {type(holder).__name__} is a {type(blocks).__name__}, not a row of blocks")
    if not len(blocks):
        raise Unfit(f"{family.attribute} of {type(holder).__name__} is empty")
    parts = []
    for i, block in enumerate(blocks):
        name = f"{family.attribute}.{i}"
        kind = f"{type(block).__module__}.{type(block).__qualname__}"
        if kind != family.block:
            raise Unfit(f"{name} is a {type(block).__name__}, not a {family.block.rpartition('.')[2]}")
        try:
            found = family.read(block)
        except Unfit as error:
            raise Unfit(f"of {name}, {error}") from error
        if not (isinstance(found.norm1, nn.LayerNorm) and isinstance(found.norm2, nn.LayerNorm)):
            raise Unfit(f"of {name}, the norm is a {type(found.norm1).__name__}, not a LayerNorm")
        parts.append(found)
    return parts
