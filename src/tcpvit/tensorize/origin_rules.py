"""What config.json of a model folder may say of the model's origin: a registered architecture and its numbers.

An origin is read from files of strangers and handed to libraries that load, fetch and unpickle what they are told to.
So it may name only what is listed here; the same rules hold when an origin is written.
"""

from __future__ import annotations

import importlib
import inspect
import math
import re
from typing import Any

from tcpvit.compat import repair_torchvision
from tcpvit.models.pretrained import ARCHITECTURES

EXTRAS = {"timm": "timm", "torchvision": "vision", "transformers": "hf", "sentence_transformers": "text"}
LIBRARIES = ("tcpvit", "timm", "torchvision", "transformers")
MAX_DEPTH = 5  # of lists and dicts in options
WORD = re.compile(r"[\w+|-]{0,64}")  # no dot, slash, colon or space: neither a path nor a repository nor an address
TIMM_NAME = re.compile(r"\w+(\.\w+)?", re.ASCII)  # architecture.tag; hf-hub: and local-dir: have a colon

TIMM_NUMBERS = re.compile(
    r"num_classes|in_chans|img_size|patch_size|embed_dim|embed_dims|depth|depths|num_heads|mlp_ratio|"
    r"mlp_ratios|head_dim|qkv_bias|qk_norm|proj_bias|init_values|class_token|no_embed_class|reg_tokens|"
    r"pre_norm|final_norm|fc_norm|scale_norm|scale_attn_norm|scale_mlp_norm|dynamic_img_size|dynamic_img_pad|"
    r"strict_img_size|always_partition|use_rope|use_abs_pos_emb|use_rel_pos_bias|use_shared_rel_pos_bias|"
    r"use_rot_pos_emb|drop_rate|pos_drop_rate|patch_drop_rate|proj_drop_rate|attn_drop_rate|drop_path_rate|"
    r"drop_block_rate|window_size|window_ratio|output_stride|dims|kernel_sizes|hidden_dim|hidden_dims|"
    r"head_hidden_size|conv_mlp|conv_bias|ls_init_value|layers|channels|cardinality|base_width|stem_width|"
    r"stem_dim|avg_down|num_blocks|num_stages|expand_ratio"
)
TIMM_WORDS = ("global_pool", "act_layer", "norm_layer", "pos_embed", "stem_type")  # keys of timm's own tables
TORCHVISION_NUMBERS = re.compile(
    r"num_classes|image_size|dropout|attention_dropout|stochastic_depth_prob|width_mult|reduced_tail|dilated|"
    r"aux_logits|aux_loss|transform_input|init_weights|growth_rate|num_init_features"
)
NUMBERS = {"timm": TIMM_NUMBERS, "torchvision": TORCHVISION_NUMBERS}

# What configs of transformers say of themselves: it builds nothing, and is taken out before anything is built.
RECORDS = ("_name_or_path", "architectures", "transformers_version", "task_specific_params")
LABELS = ("id2label", "label2id")  # texts of any kind, which nothing is looked up by
FORMS = {  # strings of transformers that are no plain words
    "model_type": re.compile(r"[\w.-]{0,64}"),
    "dtype": re.compile(r"b?float16|float32|float64"),
    "torch_dtype": re.compile(r"b?float16|float32|float64"),
}
COMPUTED = ("stage_names", "out_features", "dense_act_fn", "attention_layers", "down_ops")  # words that configs add
# What makes transformers load, fetch or import something: even as a number, or only as a string.
SWITCHES = re.compile(
    r".*(pretrained|timm)_backbone|backbone_kwargs|.*remote_code|auto_map|.*quantization_config|.*_implementation.*"
    r"|per_layer_config|model_args|detectron2_config_args"
)
SOURCES = re.compile(
    r"_name_or_path|.*(pretrained|checkpoint|hub|repo|revision|dataset|index_name|cache).*|architecture"
    r"|(.*_)?(backbone|path|file|url|uri|dir|weights|code|device)"
)


def check_origin(origin: Any) -> None:
    """An origin that is not of the allowed form is a ValueError; nothing is built, loaded or fetched."""
    if not isinstance(origin, dict) or set(origin) != {"library", "name", "options"}:
        raise _refused("is no object with library, name and options")
    library, name, options = origin["library"], origin["name"], origin["options"]
    if library not in LIBRARIES:
        raise _refused(f"names the library {_short(library)}, which is none of {', '.join(LIBRARIES)}")
    if not isinstance(name, str) or not isinstance(options, dict):
        raise _refused(f"should name a model of {library} and its options, got {_short(name)} and {_short(options)}")
    if not _is_registered(library, name):
        raise _refused(f"names {_short(name)}, which is no architecture that {library} registers")
    if library == "transformers":
        _check_config(getattr(import_library(library), name).config_class, options)
        return
    for key, value in options.items():
        words = key.isidentifier() if library == "tcpvit" else library == "timm" and key in TIMM_WORDS
        _check_key(library, key, words or (library in NUMBERS and NUMBERS[library].fullmatch(key) is not None))
        _check_plain(key, value, words=words)


def import_library(name: str) -> Any:
    """timm, torchvision or transformers; an error that names the extra to install if it is not there."""
    repair_torchvision()
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"this model needs {name}: pip install 'tcpvit[{EXTRAS[name]}]'") from error


def _is_registered(library: str, name: str) -> bool:
    """Whether the library's own tables name the architecture."""
    if library == "tcpvit":
        return name in ARCHITECTURES
    found = import_library(library)
    if library == "timm":
        return TIMM_NAME.fullmatch(name) is not None and bool(found.is_model(name))
    if library == "torchvision":
        return name in found.models.list_models()
    model = getattr(found, name, None) if name in _registered() else None
    return inspect.isclass(model) and issubclass(model, found.PreTrainedModel)


def _registered() -> set[str]:
    """The classes that transformers' own tables name; a table holds strings, nothing is imported for them."""
    tables = vars(importlib.import_module("transformers.models.auto.modeling_auto"))
    classes = [word for table, known in tables.items() if table.endswith("_MAPPING_NAMES") for word in known.values()]
    return {word for entry in classes for word in ([entry] if isinstance(entry, str) else entry)}


def _check_config(config_class: Any, options: dict[str, Any], depth: int = 1) -> None:
    """A config of transformers: what its class declares, in words and numbers, and numbers besides."""
    if config_class.model_type.startswith("timm"):  # they hand their strings to timm.create_model
        raise _refused("asks transformers for a model of timm; convert the model of timm itself")
    if depth > MAX_DEPTH:
        raise _refused(f"nests configs of transformers deeper than {MAX_DEPTH}")
    declared = inspect.signature(config_class).parameters
    if "backbone_config" in declared and not isinstance(options.get("backbone_config"), dict):
        raise _refused("leaves the backbone of its model to transformers, which may fetch one")
    for key, value in options.items():
        if value is None or value == "" or key in RECORDS:  # names nothing
            continue
        _check_key("transformers", key, key.isidentifier() and not SWITCHES.fullmatch(key))
        if key in LABELS:
            _check_labels(key, value)
        elif key in FORMS:
            if not isinstance(value, str) or not FORMS[key].fullmatch(value):
                raise _bad_value(key, value)
        elif key in getattr(config_class, "sub_configs", {}):
            _check_config(_class_of(config_class.sub_configs[key], key, value), value, depth + 1)
        else:
            words = (key in declared or key in COMPUTED) and not SOURCES.fullmatch(key)
            _check_plain(key, value, words=words, keys=words)


def _class_of(config_class: Any, key: str, options: Any) -> Any:
    """The class of a config within another."""
    transformers = import_library("transformers")
    if not isinstance(options, dict):
        raise _bad_value(key, options)
    if issubclass(config_class, transformers.PretrainedConfig):
        return config_class
    kind = options.get("model_type")  # AutoConfig
    if not isinstance(kind, str) or kind not in transformers.CONFIG_MAPPING:
        raise _bad_value(f"{key}.model_type", kind)
    return transformers.CONFIG_MAPPING[kind]


def _check_labels(key: str, value: Any) -> None:
    if not isinstance(value, dict) or any(not isinstance(label, str | int) for label in value.values()):
        raise _bad_value(key, value)


def _check_key(library: str, key: str, allowed: bool) -> None:
    if not allowed:
        raise _refused(f"gives {library} the option {_short(key)}, which a model folder may not set")


def _check_plain(key: str, value: Any, *, words: bool, keys: bool = False, depth: int = 1) -> None:
    """Finite numbers, booleans, None, and lists of them; short words where those are expected, dicts where keys are."""
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return
    if words and isinstance(value, str) and WORD.fullmatch(value):
        return
    if depth > MAX_DEPTH or not isinstance(value, list | dict) or (isinstance(value, dict) and not keys):
        raise _bad_value(key, value)
    for name in value if isinstance(value, dict) else ():
        _check_key("transformers", name, _is_harmless(name))
    for item in value.values() if isinstance(value, dict) else value:
        _check_plain(key, item, words=words, keys=keys, depth=depth + 1)


def _is_harmless(key: str) -> bool:
    return bool(WORD.fullmatch(key)) and not SWITCHES.fullmatch(key) and not SOURCES.fullmatch(key)


def _bad_value(key: str, value: Any) -> ValueError:
    return _refused(f"sets {key} to {_short(value)}, which is not what a model folder may say there")


def _refused(why: str) -> ValueError:
    return ValueError(
        f"the origin in config.json {why}; if you trust it, build the model yourself and call "
        "tcpvit.from_pretrained(folder, model=that)"
    )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
