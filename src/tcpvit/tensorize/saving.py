"""Converted models as folders: config.json says where the model comes from and what was converted, no pickle."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as save_bytes
from torch import Tensor, nn

from tcpvit.algebra.learned import LearnedTransform
from tcpvit.files import write_atomically
from tcpvit.layers.linear import TubalLinear
from tcpvit.models.pretrained import CONFIG, FORMATS, WEIGHTS, Fetch, Format, fit_weights, is_converted, read_weights
from tcpvit.tensorize.config import read_config
from tcpvit.tensorize.convert import convert
from tcpvit.tensorize.origin import origin_of, rebuild
from tcpvit.tensorize.origin_rules import import_library
from tcpvit.tensorize.record import conversions_of

CONVERTED = "tensorized"  # what config.json calls models that `tensorize_` converted, ours or foreign


def save(model: nn.Module, folder: Path) -> None:
    """Write `config.json` and `model.safetensors` of a converted model into `folder`.

    Models of sentence-transformers save themselves, with their tokenizer; `build("sentence-transformers/FOLDER")` loads
    them.
    """
    if type(model).__module__.startswith("sentence_transformers."):
        model.save(str(folder))  # type: ignore[operator]
        return
    conversions = conversions_of(model)
    origin = origin_of(model)
    if origin is None:
        warnings.warn(
            f"how this {type(model).__name__} was built is not known: load it with from_pretrained(folder, model=...), "
            f"or build it with tcpvit.tensorize.build",
            stacklevel=3,
        )
    options = {"model": type(model).__name__, "origin": origin, "conversions": conversions, "tied": _tied(model)}
    content = {"library": "tcpvit", "architecture": CONVERTED, "options": options}
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content, indent=2)
    weights = {name: tensor.contiguous() for name, tensor in _once(model).items()}
    write_atomically(folder / WEIGHTS, save_bytes(weights, {"format": "pt"}))
    write_atomically(folder / CONFIG, f"{text}\n".encode())


def load(options: dict[str, Any], fetch: Fetch, model: nn.Module | None = None) -> nn.Module:
    """The model that `save` wrote, in eval mode; `model` is one built as the original was, where that is not known."""
    weights = fetch(WEIGHTS)
    if model is None:
        if options.get("origin") is None:
            raise ValueError(
                f"{weights.parent} holds a converted {options.get('model')} and does not say how to build one; build "
                f"it as the original was and call from_pretrained(folder, model=that)"
            )
        model = rebuild(options["origin"])
    for conversion in options["conversions"]:
        convert(model, read_config(conversion))
    for name, first in options.get("tied", {}).items():
        model.set_submodule(name, model.get_submodule(first))
    found = read_weights(weights)
    _part(model, found)
    fit_weights(model, {**_shared_with(model, found), **found}, weights)
    model.eval()
    return model


def load_by_transformers(content: dict[str, Any], fetch: Fetch, model: nn.Module | None = None) -> nn.Module:
    """The model that transformers saved, as its Trainer does, in eval mode; `content` is its config.json."""
    if model is not None:
        raise ValueError("a model that transformers saved says how it is built; leave model= out")
    import_library("transformers")
    from tcpvit.tensorize.transformers import load_saved  # here, because importing transformers takes its time

    return load_saved(content, fetch)


def _once(model: nn.Module) -> dict[str, Tensor]:
    """The state dict, with tensors that several names share under the first of them."""
    first: dict[int, str] = {}
    state = model.state_dict(keep_vars=True)
    for name, tensor in state.items():
        first.setdefault(id(tensor), name)
    return {name: tensor.detach() for name, tensor in state.items() if first[id(tensor)] == name}


def _tied(model: nn.Module) -> dict[str, str]:
    """Learned transforms that layers share: each further name of one, and its first."""
    first: dict[int, str] = {}
    named = model.named_modules(remove_duplicate=False)
    learned = {
        name: first.setdefault(id(module), name) for name, module in named if isinstance(module, LearnedTransform)
    }
    return {name: its_first for name, its_first in learned.items() if its_first != name}


def _part(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Up to version 0.3.0 tied layers with a rank were parted; where the file has numbers for each, they stay so."""
    first: dict[int, Tensor] = {}
    for name, module in model.named_modules():
        for key, parameter in module._parameters.items() if isinstance(module, TubalLinear) else ():
            given = weights.get(f"{name}.{key}")
            if parameter is not None and given is not None:
                known = first.setdefault(id(parameter), given)
                if known.dtype != given.dtype or not torch.equal(known, given):
                    setattr(module, key, nn.Parameter(parameter.detach().clone(), parameter.requires_grad))


def _shared_with(model: nn.Module, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights for the names that were left out because they share a tensor."""
    state = model.state_dict(keep_vars=True)
    given = {id(tensor): weights[name] for name, tensor in state.items() if name in weights}
    return {name: given[id(tensor)] for name, tensor in state.items() if id(tensor) in given}


FORMATS[CONVERTED] = Format(is_converted, save, load)
FORMATS["transformers"] = Format(lambda _: False, save, load_by_transformers)
