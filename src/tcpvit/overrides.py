"""The one grammar of overrides in all verbs: `key=value`, keys with dots, values as YAML writes them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tcpvit.errors import nearest
from tcpvit.yaml_text import read_yaml

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)[eE][+-]?\d+")  # YAML 1.1 takes 3e-3 for a word


def parse(words: Iterable[str]) -> list[tuple[str, Any]]:
    """Each `key=value` as its key and its value.

    >>> parse(["optimizer.lr=3e-3", "sizes=[40, 20]", "attention=joint"])
    [('optimizer.lr', 0.003), ('sizes', [40, 20]), ('attention', 'joint')]
    """
    pairs = []
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key.strip():
            raise ValueError(f"an override is KEY=VALUE, as optimizer.lr=0.003, got {word!r}")
        pairs.append((key.strip(), read_value(text)))
    return pairs


def read_value(text: str) -> Any:
    """A value as YAML reads it, and 3e-3 as a number.

    >>> [read_value(text) for text in ("3e-3", "true", "null", "[mix, shuffle]", "64x32")]
    [0.003, True, None, ['mix', 'shuffle'], '64x32']
    """
    if NUMBER.fullmatch(text):
        return float(text)
    try:
        return read_yaml(text)
    except ValueError as error:
        raise ValueError(f"{shortened(text)} is no valid YAML value: {error}") from error


def shortened(text: str, length: int = 60) -> str:
    """A word of the user for an error message.

    >>> shortened("x" * 1000, 5)
    "'xxxxx'..."
    """
    return repr(text) if len(text) <= length else f"{text[:length]!r}..."


def nested(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Dotted keys as mappings within mappings.

    >>> nested([("backbone.depth", 8), ("backbone.attention", "joint"), ("num_classes", 3)])
    {'backbone': {'depth': 8, 'attention': 'joint'}, 'num_classes': 3}
    """
    content: dict[str, Any] = {}
    for key, value in pairs:
        put(content, key, value)
    return content


def flat(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Mappings within mappings by dotted keys, the reverse of `nested`.

    >>> flat({"data": {"name": "svhn"}, "seed": 1})
    {'data.name': 'svhn', 'seed': 1}
    """
    found: dict[str, Any] = {}
    for key, value in content.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def put(content: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key in nested mappings."""
    *path, last = key.split(".")
    for name in path:
        content = content.setdefault(name, {})
        if not isinstance(content, dict):
            raise ValueError(f"{name} of {key} holds {content!r}, so nothing can be put inside it")
    content[last] = value


def find_key(key: str, known: Sequence[str], what: str, listing: str | None = None) -> str:
    """The full key that `key` means: itself, something inside a known one, or the only known one that ends so.

    >>> known = ["optimizer.lr", "model.name", "data.name", "model.options", "model.options.depth"]
    >>> find_key("lr", known, "a recipe"), find_key("depth", known, "a recipe")
    ('optimizer.lr', 'model.options.depth')
    >>> find_key("name", known, "a recipe")
    Traceback (most recent call last):
    ValueError: name may mean model.name or data.name; write the one you mean in full
    """
    if any(key == name or key.startswith(f"{name}.") for name in known):
        return key
    first, dot, rest = key.partition(".")
    meant = [name for name in known if _last(name) == first]
    if len(meant) > 1:
        raise ValueError(f"{key} may mean {' or '.join(meant)}; write the one you mean in full")
    if meant:
        return meant[0] + dot + rest
    raise unknown_key(key, known, what, listing)


def unknown_key(key: str, known: Sequence[str], what: str, listing: str | None = None) -> ValueError:
    """The error that names the nearest known key: of a short one by its last part, of one with dots by the whole.

    `listing` says where all keys are listed; without it, the error lists them.
    """
    by_last = {_last(name): name for name in known}
    last = by_last.get(nearest(_last(key), by_last) or "")
    close = (nearest(key, known) or last) if "." in key else (last or nearest(key, known))
    hint = f"did you mean {close!r}?" if close else listing or f"known: {', '.join(known)}"
    return ValueError(f"{what} has no key {key!r}; {hint}")


def _last(key: str) -> str:
    return key.rpartition(".")[2]
