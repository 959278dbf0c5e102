"""Options on the command line: "attention=joint" as a field of a config dataclass, read by the field's type."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from tcpvit.algebra.checks import nearest


def parse_options(texts: Iterable[str], config_class: type) -> dict[str, Any]:
    """Texts KEY=VALUE as fields of a dataclass; an unknown key is an error that names the nearest one.

    >>> from tcpvit.models import ViTConfig
    >>> parse_options(["depth=8", "attention=joint", "coupling=mix+shuffle", "img_size=64x32"], ViTConfig)
    {'depth': 8, 'attention': 'joint', 'coupling': ('mix', 'shuffle'), 'img_size': (64, 32)}
    """
    hints = get_type_hints(config_class)
    options = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"an option is written KEY=VALUE, got {text!r}")
        if key not in hints:
            raise ValueError(f"{key!r} is no option of {config_class.__name__}{nearest(key, hints)}")
        options[key] = _read(key, value, hints[key])
    return options


def _read(key: str, text: str, hint: Any) -> Any:
    """The text as the first type of the hint that takes it."""
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
