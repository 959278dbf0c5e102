"""Lets transformers load the converted models that it saved: `import tcpvit.tensorize.transformers` is all.

transformers changes layers before it loads weights for methods of quantisation, and takes new ones by registration.
Ours makes the layers that config.json notes (record.py) c-products again. Nothing is quantised.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import nn
from transformers.quantizers import HfQuantizer, register_quantization_config, register_quantizer
from transformers.utils import logging
from transformers.utils.quantization_config import QuantizationConfigMixin

from tcpvit.files import read_json
from tcpvit.layers.transform import HatTransform
from tcpvit.models.pretrained import CONFIG, METHOD, WEIGHTS, Fetch, read_weights, refuse_weights
from tcpvit.tensorize.config import read_config
from tcpvit.tensorize.convert import convert
from tcpvit.tensorize.origin import class_and_config
from tcpvit.tensorize.record import UNKNOWN_ATTENTION, note_in_config, write_note

SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors", re.ASCII)


@register_quantization_config(METHOD)
class Conversions(QuantizationConfigMixin):
    """What config.json notes."""

    quant_method: Any

    def __init__(self, conversions: list[dict[str, Any]], quant_method: str = METHOD):
        self.quant_method, self.conversions = quant_method, conversions


@register_quantizer(METHOD)
class Converter(HfQuantizer):
    """Converts a model that transformers has built before it loads its weights."""

    quantization_config: Conversions

    def is_serializable(self) -> bool:
        """Whether the model can be saved."""
        return True

    @property
    def is_trainable(self) -> bool:
        """Whether the model can be trained."""
        return True

    def update_attn_implementation(self, config: Any) -> Any:
        """The attention that nobody knows was for those who do not know us."""
        if config._attn_implementation == UNKNOWN_ATTENTION:
            config._attn_implementation = None
        return config

    def _process_model_before_weight_loading(self, model: Any, **_: Any) -> None:
        for conversion in self.quantization_config.conversions:
            here = _with_names_in(model, conversion)
            if here.get("include") or not conversion.get("include"):  # else it was of the head's layers alone
                convert(model, read_config(here))

    def _process_model_after_weight_loading(self, model: Any, **_: Any) -> None:
        for part in model.modules():
            if isinstance(part, HatTransform):  # transformers knows neither computed matrices nor how to judge stored
                part._apply(lambda tensor: tensor)
                part.load_state_dict(part.state_dict())
        self.remove_quantization_config(model)  # the model may be cast and trained as any other
        for part in model.modules():
            if hasattr(part, "config"):
                part.config._is_quantized = False
        note_in_config(model)


def load_saved(content: dict[str, Any], fetch: Fetch) -> nn.Module:
    """The model that transformers saved, from its config.json, of which nobody knows who wrote it, and its weights."""
    named, noted = content.get("architectures"), content["quantization_config"].get("conversions")
    if not isinstance(named, list) or len(named) != 1 or not isinstance(noted, list):
        raise ValueError(f"{fetch(CONFIG)} should name one architecture and its conversions; save the model again")
    options = {key: content[key] for key in content if key not in ("quantization_config", "attn_implementation")}
    cls, config = class_and_config({"library": "transformers", "name": named[0], "options": options})
    write_note(config, [read_config(conversion).to_dict() for conversion in noted])
    config.attn_implementation = None
    weights = {name: tensor for path in _weight_files(fetch) for name, tensor in read_weights(path).items()}
    with _quiet():  # what it would report is an error below
        model, info = cls.from_pretrained(
            None, config=config, state_dict=weights, ignore_mismatched_sizes=True, output_loading_info=True
        )
    problems = [f"{name} is missing" for name in sorted(info["missing_keys"])]
    problems += [f"{name} is unknown" for name in sorted(info["unexpected_keys"])]
    problems += [f"{name} has shape {tuple(a)}, the model {tuple(b)}" for name, a, b in sorted(info["mismatched_keys"])]
    problems += [f"{name} holds NaN or infinity" for name, tensor in weights.items() if not tensor.isfinite().all()]
    refuse_weights(problems, fetch(CONFIG).parent)
    loaded: nn.Module = model.eval()
    return loaded


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the progress bars and reports of transformers."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _weight_files(fetch: Fetch) -> list[Path]:
    """One file, or those that an index names."""
    with contextlib.suppress(ValueError):  # it is not there
        return [fetch(WEIGHTS)]
    index = read_json(fetch(f"{WEIGHTS}.index.json"))
    places = index.get("weight_map") if isinstance(index, dict) else None
    names = sorted({str(name) for name in places.values()}) if isinstance(places, dict) else []
    if not names or not all(SHARD.fullmatch(name) for name in names):
        raise ValueError(f"{WEIGHTS}.index.json should name files as model-00001-of-00002.safetensors, got {names[:3]}")
    return [fetch(name) for name in names]


def _with_names_in(model: Any, conversion: dict[str, Any]) -> dict[str, Any]:
    """The conversion with the names that layers have here: transformers loads models with a head into those without."""
    prefix, known = f"{model.base_model_prefix}.", {name for name, _ in model.named_modules()}
    names: list[str] = []
    forms: dict[str, Any] = {}
    for name in conversion.get("include", ()):
        here = next((n for n in (name, prefix + name, name.removeprefix(prefix)) if n in known), name)
        if here in known or model.base_model is not model:  # a model without a head has no use for the head's layers
            names.append(here)
            here_forms = {key: form for key, form in conversion.get("forms", {}).items() if _is_within(key, name)}
            forms |= {here + key[len(name) :]: form for key, form in here_forms.items()}
    return {**conversion, "include": names, "forms": forms} if "include" in conversion else conversion


def _is_within(name: str, owner: str) -> bool:
    return name == owner or name.startswith(f"{owner}.")
