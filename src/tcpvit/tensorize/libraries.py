"""What other libraries call things: the one place that knows the names of timm, torchvision, transformers and torch.nn.

Names and classes are compared as words, so that none of these libraries is needed here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

# What a model raises when it is called with something that it does not take.
REFUSALS = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)

HEAD = (
    "head head1 head2 heads head_dist aux_head classifier cls_classifier distillation_classifier fc logits last_linear "
    "lm_head score qa_outputs seq_relationship"
)
HEAD_NAME = re.compile(rf"^((?!\d+\.)[^.]+\.)*({HEAD.replace(' ', '|')})(\.|$)")  # outside numbered blocks
HEAD_COUNT = ("num_heads", "num_attention_heads", "n_heads", "n_head")
FUSED = (("qkv|c_attn|query_key_value", 3), ("kv|qk", 2))  # what a fused projection is called, and its parts
PROJECTION = ("q", "k", "v", "query", "key", "value", "q_proj", "k_proj", "v_proj")

# The layers of a module between which features may stand in any order. An attention has its projections, fused or
# q, k and v, and last its output.
MLPS = ("fc1 fc2", "linear1 linear2", "c_fc c_proj", "lin1 lin2", "0 3", "intermediate.dense output.dense")
ATTENTIONS = (
    "qkv proj",
    "c_attn c_proj",
    "q k v proj",
    "q_proj k_proj v_proj out_proj",
    "q_proj k_proj v_proj o_proj",
    "q_lin k_lin v_lin out_lin",
    "attention.query attention.key attention.value output.dense",
    "self.query self.key self.value output.dense",
)
# The residual stream of timm's ViTs: which dimension of which parameter it is.
STREAM = (
    (r"(cls_token|pos_embed|reg_token|dist_token)", -1),
    (r"patch_embed\.proj\.(weight|bias)", 0),
    (r"blocks\.\d+\.(norm[12]|attn\.proj|mlp\.fc2)\.(weight|bias)", 0),
    (r"blocks\.\d+\.(ls[12]\.gamma|gamma_[12])", 0),
    (r"(norm|norm_pre|fc_norm)\.(weight|bias)", 0),
    (r"blocks\.\d+\.(attn\.qkv|mlp\.fc1)\.weight", 1),
    (r"head(_dist)?\.weight", 1),
)


@dataclass(frozen=True)
class Family:
    """An encoder whose structure is known: where a block keeps its parts, as paths, "" for what it does not have."""

    blocks: str  # where the encoder holds them
    block: str  # their class
    num_heads: str
    norms: tuple[str, str]
    qkv: tuple[str, ...]  # one path, or three for separate q, k and v
    proj: str
    fc1: str
    fc2: str
    activation: str
    scales: tuple[str, str] = ("", "")  # layer scales of attention and MLP
    attn_drop: str = ""
    proj_drop: str = ""
    hidden_drop: str = ""  # inside the MLP, after the activation and after fc2
    mlp_drop: str = ""  # after the MLP
    drop_path: str = ""
    post_norm: bool = False  # norm after the residual sum, as in BERT
    in_list: bool = False  # the encoder calls the blocks one by one, from a ModuleList
    classes: dict[str, str] = field(default_factory=dict)  # what these parts have to be
    absent: dict[str, str] = field(default_factory=dict)  # what may not be there, and what to say then


_TIMM, _TV, _HF = "timm.models.vision_transformer", "torchvision.models.vision_transformer", "transformers.models"


def _hf_vit(name: str) -> Family:
    return Family(
        blocks="layers",
        block=f"{_HF}.{name}Layer",
        num_heads="attention.num_attention_heads",
        norms=("layernorm_before", "layernorm_after"),
        qkv=("attention.q_proj", "attention.k_proj", "attention.v_proj"),
        proj="attention.o_proj",
        fc1="mlp.fc1",
        fc2="mlp.fc2",
        activation="mlp.activation_fn",
        attn_drop="attention.attention_dropout",
        proj_drop="dropout",
        mlp_drop="dropout",
        in_list=True,
    )


FAMILIES = {  # by the class of the module that holds the blocks
    f"{_TIMM}.VisionTransformer": Family(
        blocks="blocks",
        block=f"{_TIMM}.Block",
        num_heads="attn.num_heads",
        norms=("norm1", "norm2"),
        qkv=("attn.qkv",),
        proj="attn.proj",
        fc1="mlp.fc1",
        fc2="mlp.fc2",
        activation="mlp.act",
        scales=("ls1", "ls2"),
        attn_drop="attn.attn_drop",
        proj_drop="attn.proj_drop",
        hidden_drop="mlp.drop1",
        drop_path="drop_path1",
        classes={"attn": "timm.layers.attention.Attention", "mlp": "timm.layers.mlp.Mlp"},
        absent={
            "attn.q_norm": "it has norms of q",
            "attn.k_norm": "it has norms of k",
            "attn.norm": "it has a norm in its attention",
            "attn.gate": "it has a gate",
            "mlp.norm": "it has a norm in its MLP",
        },
    ),
    f"{_TV}.Encoder": Family(
        blocks="layers",
        block=f"{_TV}.EncoderBlock",
        num_heads="self_attention.num_heads",
        norms=("ln_1", "ln_2"),
        qkv=("self_attention.in_proj",),
        proj="self_attention.out_proj",
        fc1="mlp.0",
        fc2="mlp.3",
        activation="mlp.1",
        attn_drop="self_attention.dropout",
        proj_drop="dropout",
        hidden_drop="mlp.2",
    ),
    f"{_HF}.vit.modeling_vit.ViTModel": _hf_vit("vit.modeling_vit.ViT"),
    f"{_HF}.deit.modeling_deit.DeiTModel": _hf_vit("deit.modeling_deit.DeiT"),
    f"{_HF}.bert.modeling_bert.BertEncoder": Family(
        blocks="layer",
        block=f"{_HF}.bert.modeling_bert.BertLayer",
        num_heads="attention.self.num_attention_heads",
        norms=("attention.output.LayerNorm", "output.LayerNorm"),
        qkv=("attention.self.query", "attention.self.key", "attention.self.value"),
        proj="attention.output.dense",
        fc1="intermediate.dense",
        fc2="output.dense",
        activation="intermediate.intermediate_act_fn",
        attn_drop="attention.self.dropout",
        proj_drop="attention.output.dropout",
        mlp_drop="output.dropout",
        post_norm=True,
        in_list=True,
        absent={"is_decoder": "it is a decoder"},
    ),
}


# ------------------------------------------------------------------------------------------------ layers and heads


def is_conv1d(module: object) -> bool:
    """Whether it is transformers' Conv1D, a linear layer whose weight is (in, out)."""
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf")


def is_of_transformers(module: nn.Module) -> bool:
    """Whether it is a model of transformers, with a config and a `save_pretrained` of its own."""
    return any(
        c.__name__ == "PreTrainedModel" and c.__module__.startswith("transformers.") for c in type(module).__mro__
    )


def head_count(attention: nn.Module) -> int | None:
    """How many heads an attention says that it has, or a module in it."""
    counts = (getattr(module, name, None) for module in attention.modules() for name in HEAD_COUNT)
    return next((n for n in counts if isinstance(n, int) and n > 0), None)


def heads_of(model: nn.Module) -> dict[int, str]:
    """The modules whose outputs are classes or words, by id, each with the rule that says so.

    1. it is in what the model calls its classifier (timm: `get_classifier()`) or its output embeddings (transformers);
    2. or its name says so, outside numbered blocks;
    3. or it gives as many numbers as the model has classes, outside numbered blocks.
    """
    found = {id(part): "head (the model's classifier)" for root in _declared_heads(model) for part in root.modules()}
    classes = _number_of_classes(model)
    for name, module in model.named_modules():
        if HEAD_NAME.search(name):
            found.setdefault(id(module), "head (by its name)")
        elif classes and not re.search(r"(^|\.)\d+(\.|$)", name) and getattr(module, "out_features", None) == classes:
            found.setdefault(id(module), f"head (gives {classes} classes)")
    return found


def _declared_heads(model: nn.Module) -> Iterator[nn.Module]:
    for method in ("get_classifier", "get_output_embeddings"):
        ask = getattr(model, method, None)
        if not callable(ask):
            continue
        try:
            answer: Any = ask()
        except (AttributeError, NotImplementedError, TypeError):  # models that inherit the method without having one
            continue
        for part in answer if isinstance(answer, tuple | list | nn.ModuleList) else [answer]:
            if isinstance(part, nn.Module):
                yield part


def _number_of_classes(model: nn.Module) -> int | None:
    config = getattr(model, "config", None)
    for owner, name in ((model, "num_classes"), (config, "num_labels"), (config, "num_classes")):
        classes = getattr(owner, name, None)
        if isinstance(classes, int) and classes > 2:  # transformers says 2 where there is no head
            return classes
    return None


def part_widths(model: nn.Module, name: str, width: int) -> list[int]:
    """The widths of what follows one another in the output of a fused projection: q, k and v, or k and v.

    A tube must not cross from one into the next. In some models (LeViT, BLOOM) they alternate head by head.
    """
    path, _, last = name.removesuffix(".linear").removesuffix(".conv").removesuffix(".c").rpartition(".")
    parts = next((n for words, n in FUSED if re.search(words, last)), 1)
    if parts == 1 or width % parts:
        return []
    owner: Any = model.get_submodule(path)
    if hasattr(owner, "key_dim") and hasattr(owner, "val_dim"):
        return [owner.key_dim, owner.val_dim]
    if grouped := _grouped_widths(owner, width):
        return grouped
    heads = head_count(owner) if last == "query_key_value" else None
    return [width // parts // (heads or 1)]


def _grouped_widths(owner: nn.Module, width: int) -> list[int]:
    """Of q, k and v in transformers' models whose queries share keys; none if the owner does not say so."""
    config: Any = getattr(owner, "config", None)
    queries, keys = (getattr(config, f"num_{kind}_heads", None) for kind in ("attention", "key_value"))
    if not queries or not keys or queries == keys or width % (queries + 2 * keys):
        return []
    head = width // (queries + 2 * keys)
    return [queries * head, keys * head, keys * head]


def head_width(model: nn.Module, name: str, width: int) -> int | None:
    """The width of a head, if the layer projects to queries, keys or values."""
    owner, _, last = name.rpartition(".")
    fused = part_widths(model, name, width)
    if not fused and last not in PROJECTION:
        return None
    heads = head_count(model.get_submodule(owner))
    if not heads or (fused and width > 3 * fused[0]):  # parts that alternate lie within heads already
        return None
    return (fused[0] if fused else width) // heads


# ------------------------------------------------------------------------------------------------ blocks of encoders


@dataclass(frozen=True)
class Map:
    """A dense map of a block: its names there (three for separate q, k and v), matrix (out, in) and bias."""

    names: tuple[str, ...]
    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True)
class Parts:
    """What a Transformer block is made of, whoever wrote it; the rates are of dropout, as in Family."""

    num_heads: int
    norm1: nn.LayerNorm
    qkv: Map
    proj: Map
    norm2: nn.LayerNorm
    fc1: Map
    fc2: Map
    activation: Callable[[Tensor], Tensor]
    scale1: Tensor | None
    scale2: Tensor | None
    post_norm: bool
    attn_drop: float
    proj_drop: float
    hidden_drop: float
    mlp_drop: float
    drop_path: float


RATES = ("attn_drop", "proj_drop", "hidden_drop", "mlp_drop", "drop_path")


class Unfit(ValueError):
    """A block that cannot be taken into the hat domain; its text says what of it."""


def full_name(cls: type) -> str:
    """The name of a class with that of its module."""
    return f"{cls.__module__}.{cls.__qualname__}"


def find_encoders(model: nn.Module) -> dict[str, tuple[nn.Module, Family]]:
    """The modules of `model` that hold blocks of a known family, by name; classes made from a known one count."""
    found = {}
    for name, module in model.named_modules():
        for known in set(map(full_name, type(module).__mro__)) & FAMILIES.keys():
            found[name] = (module, FAMILIES[known])
    return found


def read_blocks(holder: nn.Module, family: Family) -> list[Parts]:
    """The blocks of an encoder, or an error that says what of them cannot be kept."""
    blocks = getattr(holder, family.blocks, None)
    if not isinstance(blocks, nn.Sequential | nn.ModuleList):
        raise Unfit(f"{family.blocks} of {type(holder).__name__} is a {type(blocks).__name__}, not a row of blocks")
    if not len(blocks):
        raise Unfit(f"{family.blocks} of {type(holder).__name__} is empty")
    parts = []
    for i, block in enumerate(blocks):
        name = f"{family.blocks}.{i}"
        if full_name(type(block)) != family.block:
            raise Unfit(f"{name} is a {type(block).__name__}, not a {family.block.rpartition('.')[2]}")
        try:
            parts.append(_read(block, family))
        except Unfit as error:
            raise Unfit(f"of {name}, {error}") from error
    return parts


def _read(block: nn.Module, family: Family) -> Parts:
    for path, known in family.classes.items():
        if full_name(type(part := attrgetter(path)(block))) != known:
            raise Unfit(f"it has a {type(part).__name__} where {known} was expected")
    for path, words in family.absent.items():
        owner, _, last = path.rpartition(".")
        part = getattr(attrgetter(owner)(block) if owner else block, last, None)
        if part and not isinstance(part, nn.Identity):
            raise Unfit(words)
    norms = [attrgetter(path)(block) for path in family.norms]
    for norm in norms:
        if not isinstance(norm, nn.LayerNorm):
            raise Unfit(f"the norm is a {type(norm).__name__}, not a LayerNorm")
    return Parts(
        num_heads=attrgetter(family.num_heads)(block),
        norm1=norms[0],
        qkv=_map(block, *family.qkv),
        proj=_map(block, family.proj),
        norm2=norms[1],
        fc1=_map(block, family.fc1),
        fc2=_map(block, family.fc2),
        activation=attrgetter(family.activation)(block),
        scale1=_scale(block, family.scales[0]),
        scale2=_scale(block, family.scales[1]),
        post_norm=family.post_norm,
        **{name: _rate(block, getattr(family, name)) for name in RATES},
    )


def _map(block: nn.Module, *paths: str) -> Map:
    """Plain linear layers or our drop-ins, whose `weight` is dense, as one map."""
    pairs = [_weight_and_bias(block, path) for path in paths]
    if len(pairs) == 1:
        return Map(paths, *pairs[0])
    biases = [bias for _, bias in pairs if bias is not None]
    return Map(paths, torch.cat([weight for weight, _ in pairs]), torch.cat(biases) if biases else None)


def _weight_and_bias(block: nn.Module, path: str) -> tuple[Tensor, Tensor | None]:
    if path.endswith("in_proj"):  # of nn.MultiheadAttention, which has no layer for it
        weight, bias = attrgetter(f"{path}_weight", f"{path}_bias")(block)
        return weight, bias
    layer = attrgetter(path)(block)
    if not hasattr(layer, "in_features"):
        raise Unfit(f"{path} is a {type(layer).__name__}, not a linear layer")
    return layer.weight, layer.bias


def _scale(block: nn.Module, path: str) -> Tensor | None:
    """The gamma of a layer scale."""
    module = attrgetter(path)(block) if path else nn.Identity()
    if isinstance(module, nn.Identity):
        return None
    if not hasattr(module, "gamma"):
        raise Unfit(f"its layer scale is a {type(module).__name__}")
    gamma: Tensor = module.gamma
    return gamma


def _rate(block: nn.Module, path: str) -> float:
    """The rate of a dropout: a number, or a module that has one."""
    part = attrgetter(path)(block) if path else 0.0
    return part if isinstance(part, float) else getattr(part, "p", getattr(part, "drop_prob", None)) or 0.0
