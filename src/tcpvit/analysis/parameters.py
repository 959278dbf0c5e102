"""Parameters of a built model, by component."""

from __future__ import annotations

from collections import Counter

from torch import nn

from tcpvit.analysis.count import Count
from tcpvit.models.segmenter import Segmenter
from tcpvit.models.vit import VisionTransformer

# Parameters of `CoupledTLinear` beside those of `TLinear`.
COUPLING = ("mix", "u_hat", "v_hat", "dense_hat")


def count_parameters(model: nn.Module) -> Count:
    """How many parameters a model has: an int with `.components`; shared parameters count once.

    Components are the parts of the paper's tables for a model of this library, and the top-level modules and
    parameters for any other.

    >>> from tcpvit.models import create_model
    >>> count = count_parameters(create_model("tcp_vit_cifar"))
    >>> count, count.components["head"]
    (43114, 490)
    >>> count_parameters(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))).components
    {'0': 15, '2': 8}
    """
    of_ours = isinstance(model, VisionTransformer | Segmenter)
    counter: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        counter[_component(name) if of_ours else name.split(".")[0]] += parameter.numel()
    return Count.of(counter)


def _component(name: str) -> str:
    """The component of a parameter of `VisionTransformer`, or of a `Segmenter` with one."""
    parts = name.removeprefix("backbone.").split(".")
    if parts[0] == "decoder":
        return decoder_component(parts[1:])
    if parts[-1] in COUPLING and parts[0] != "stem":
        return "coupling"
    if parts[0] == "blocks":  # blocks.0.norm1.weight, blocks.0.attn.qkv.weight
        return "norms" if parts[2].startswith("norm") else parts[3]
    if parts[0] == "embed":
        return parts[1]
    return "final_norm" if parts[0] == "norm" else parts[0]


def decoder_component(parts: list[str]) -> str:
    """The component of a parameter or module of a decoder.

    >>> decoder_component(["stages", "0", "conv", "weight"]), decoder_component(["head", "bias"])
    ('stage_1', 'decoder_head')
    """
    if parts[:1] == ["stages"]:
        return f"stage_{int(parts[1]) + 1}"
    return "decoder_head" if parts[:1] == ["head"] else "decoder_transform"  # what it does itself
