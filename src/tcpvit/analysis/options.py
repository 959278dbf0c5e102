"""Options on the command line: "attention=joint" as a field of a config dataclass, read by the field's type."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from tcpvit.errors import did_you_mean


def parse_options(texts: Iterable[str], config_class: type) -> dict[str, Any]:
    """Texts KEY=VALUE as fields of a dataclass; an unknown key is an error that names the nearest one.

    >>> from tcpvit.models import ViTConfig
    >>> parse_options(["depth=8", "attention=joint", "coupling=mix+shuffle", "img_size=64x32"], ViTConfig)
    {'depth': 8, 'attention': 'joint', 'coupling': ('mix', 'shuffle'), 'img_size': (64, 32)}
    >>> from tcpvit.models import SegmenterConfig
    >>> parse_options(["num_classes=3", "backbone.depth=8", "backbone.attention=joint"], SegmenterConfig)
    {'num_classes': 3, 'backbone': {'depth': 8, 'attention': 'joint'}}
    """
    hints = get_type_hints(config_class)
    options: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        part, dot, rest = key.partition(".")
        if not equals:
            raise ValueError(f"an option is written KEY=VALUE, got {text!r}")
        if part not in hints:
            raise ValueError(f"{part!r} is no option of {config_class.__name__}{did_you_mean(part, hints)}")
        if is_dataclass(hints[part]) and dot:
            options.setdefault(part, {}).update(parse_options([f"{rest}={value}"], cast(type, hints[part])))
        else:
            options[key] = _read(key, value, hints[part])
    return options


def _read(key: str, text: str, hint: Any) -> Any:
    """The text as the first type of the hint that takes it."""
    if is_dataclass(hint):
        raise ValueError(f"{key} is a group of options, as {key}.{fields(hint)[0].name}, got {key}={text}")
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    for kind in kinds:
        with suppress(ValueError):
            return _convert(text, kind)
    names = " or ".join(kind.__name__ for kind in kinds if kind is not NoneType)
    raise ValueError(f"{key} is of type {names}, got {text!r}")


def _convert(text: str, kind: Any) -> Any:
    if kind is NoneType:
        if text != "none":
            raise ValueError(text)
        return None
    if kind is bool:
        return bool(["false", "true"].index(text.lower()))
    if get_origin(kind) is tuple:  # 64x32, mix+shuffle
        element = get_args(kind)[0]
        return tuple(element(part) for part in text.split("x" if element is int else "+") if part != "none")
    return kind(text)
