"""Plain values from YAML or the command line into typed dataclasses, with errors that name the key."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints


def typed(value: Any, hint: Any, key: str) -> Any:
    """`value` as the type `hint` asks for.

    YAML reads `3e-3` as a string, so numbers are also taken from text; so are lists, as 64x32 and mix+shuffle.

    >>> typed("3e-3", float, "optimizer.lr"), typed([0.9, 1], tuple[float, float], "optimizer.betas")
    (0.003, (0.9, 1.0))
    >>> typed("64x32", int | tuple[int, int], "img_size"), typed("mix+shuffle", tuple[str, ...], "coupling")
    ((64, 32), ('mix', 'shuffle'))
    >>> typed("fast", float, "optimizer.lr")
    Traceback (most recent call last):
    ValueError: optimizer.lr should be a number, got 'fast'
    """
    if hint is Any:
        return value
    if is_dataclass(hint):
        return _dataclass(value, hint, key)
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return _first_that_fits(value, get_args(hint), key)
    if origin is Literal:
        return _choice(value, get_args(hint), key)
    if origin is Sequence:  # of any length
        return list(_tuple(value, (*get_args(hint), Ellipsis), key))
    if origin is dict and isinstance(value, dict) and get_args(hint):
        of_key, of_value = get_args(hint)
        return {typed(k, of_key, f"a key of {key}"): typed(v, of_value, f"{key}[{k}]") for k, v in value.items()}
    if origin is tuple:
        return _tuple(_split(value, get_args(hint)[0]) if isinstance(value, str) else value, get_args(hint), key)
    return _scalar(value, origin or hint, key)


def typed_fields(options: Mapping[str, Any], config: type, key: str) -> dict[str, Any]:
    """Options as the fields of `config` declare them; one that it lacks is left for it to refuse."""
    hints = get_type_hints(config)
    found = {}
    for name, value in options.items():
        hint = hints.get(name, Any)
        if isinstance(value, Mapping) and is_dataclass(hint):
            found[name] = typed_fields(value, cast(type, hint), f"{key}.{name}")
        else:
            free = hint is Any or is_dataclass(hint) or name == "coupling"  # which may be written in several ways
            found[name] = value if free else typed(value, hint, f"{key}.{name}")
    return found


def _dataclass(value: Any, hint: Any, key: str) -> Any:
    if not isinstance(value, Mapping):
        raise ValueError(f"{key or 'a recipe'} should hold keys and values, got {value!r}")
    hints = get_type_hints(hint)
    prefix = f"{key}." if key else ""
    return hint(
        **{f.name: typed(value[f.name], hints[f.name], prefix + f.name) for f in fields(hint) if f.name in value}
    )


def _first_that_fits(value: Any, hints: tuple[Any, ...], key: str) -> Any:
    complaints = []
    for hint in hints:
        try:
            return typed(value, hint, key)
        except ValueError as error:
            complaints.append(str(error).partition(" should be ")[2].partition(", got ")[0])
    raise ValueError(f"{key} should be {' or '.join(complaints)}, got {value!r}")


def _choice(value: Any, choices: tuple[Any, ...], key: str) -> Any:
    if value not in choices:
        raise ValueError(f"{key} should be one of {', '.join(map(str, choices))}, got {value!r}")
    return value


def _tuple(value: Any, hints: tuple[Any, ...], key: str) -> Any:
    if hints[-1] is Ellipsis and isinstance(value, list | tuple):
        hints = hints[:1] * len(value)
    if not isinstance(value, list | tuple) or len(value) != len(hints):
        raise ValueError(f"{key} should be a list of {len(hints)}, got {value!r}")
    return tuple(typed(item, hint, f"{key}[{i}]") for i, (item, hint) in enumerate(zip(value, hints, strict=True)))


def _split(text: str, hint: Any) -> list[Any] | str:
    """64x32 as numbers, mix+shuffle as words, none as no word; other text as it is."""
    if hint is int and all(part.isdecimal() for part in text.split("x")):
        return [int(part) for part in text.split("x")]
    return ([] if text == "none" else text.split("+")) if hint is str else text


_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", dict: "keys and values"}


def _scalar(value: Any, kind: type, key: str) -> Any:
    if kind is type(None):
        if value is None or value == "none":
            return None
        raise ValueError(f"{key} should be null, got {value!r}")
    if kind is float and isinstance(value, int | str) and not isinstance(value, bool):
        try:
            return float(value)
        except ValueError:
            pass
    if isinstance(value, kind) and not (kind in (int, float) and isinstance(value, bool)):
        return value
    raise ValueError(f"{key} should be {_KINDS[kind]}, got {value!r}")
