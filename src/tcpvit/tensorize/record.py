"""What was converted in a model, as a record from which the conversion is done again on a model built anew.

It goes into our own config.json, and into the config of a model of transformers, so that `save_pretrained` and Trainer
of transformers write it too.
"""

from __future__ import annotations

import glob
from typing import Any

from torch import nn

from tcpvit.layers.linear import TubalLinear
from tcpvit.models.pretrained import ENCODER_NOTE, METHOD
from tcpvit.tensorize.config import TensorizeConfig
from tcpvit.tensorize.drop_ins import TubalMultiheadAttention
from tcpvit.tensorize.libraries import is_of_transformers

# transformers skips a quantisation method that it does not know, and draws the missing weights at random with no more
# than a warning. An attention that it does not know is an error, whose text is this; our loader takes it out again.
UNKNOWN_ATTENTION = "tcpvit: import tcpvit.tensorize.transformers first, or load the folder by tcpvit.from_pretrained"


def drop_ins_of(model: nn.Module) -> dict[str, nn.Module]:
    """The drop-ins in a model by name; the projections inside an attention belong to it."""
    found: dict[str, nn.Module] = {}
    inside: set[int] = set()
    for name, module in model.named_modules():
        if isinstance(module, TubalLinear | TubalMultiheadAttention) and id(module) not in inside:
            found[name] = module
            inside |= {id(part) for part in module.modules()}
    return found


def conversions_of(model: nn.Module) -> list[dict[str, Any]]:
    """The configs that bring a model built anew into this one's form; weights are drawn, then loaded."""
    encoder = [{**getattr(model, ENCODER_NOTE), "init": "fresh"}] if hasattr(model, ENCODER_NOTE) else []
    layers: dict[tuple[int, str], list[str]] = {}
    fitted: dict[str, list[str]] = {}  # layers that are not one tube's slices alone, by transform
    forms: dict[str, dict[str, tuple[int, int]]] = {}  # of the maps of these
    for name, module in drop_ins_of(model).items():
        maps = {label: m for label, m in module.named_modules() if isinstance(m, TubalLinear)}
        layer = maps.get("out_proj") or maps[""]
        if any(m.rank or m.tube != layer.tube for m in maps.values()):
            phi = next((m.transform.name for m in maps.values() if m.tube > 1), "dct")  # low rank alone uses none
            names = {label: ".".join(word for word in (name, label) if word) for label in maps}
            fitted.setdefault(phi, []).append(glob.escape(name))
            forms.setdefault(phi, {}).update({names[label]: (m.tube, m.rank) for label, m in maps.items()})
        else:
            layers.setdefault((layer.tube, layer.transform.name), []).append(glob.escape(name))
    common: dict[str, Any] = {"init": "fresh", "heads": True, "convs": "all"}
    found = [TensorizeConfig(tube, phi, include=those, **common) for (tube, phi), those in layers.items()]
    found += [TensorizeConfig(2, phi, include=those, forms=forms[phi], **common) for phi, those in fitted.items()]
    return encoder + [config.to_dict() for config in found]


def note_in_config(model: nn.Module) -> None:
    """Write the conversions of every model of transformers in `model` into its config, or take them out of it."""
    inside: set[int] = set()  # a model within another has its layers in the note of the outer one
    for module in model.modules():
        if id(module) not in inside and is_of_transformers(module):
            inside |= {id(part) for part in module.modules()}
            write_note(module.config, conversions_of(module))


def write_note(config: Any, conversions: list[dict[str, Any]]) -> None:
    """The note in a config of transformers, as a method of quantisation: what changes layers before they are loaded."""
    if conversions:
        config.quantization_config = {"quant_method": METHOD, "conversions": conversions}
        config.attn_implementation = UNKNOWN_ATTENTION
    elif getattr(config, "attn_implementation", None) == UNKNOWN_ATTENTION:
        del config.quantization_config, config.attn_implementation
