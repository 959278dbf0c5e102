"""Whether the run in a folder is the one that is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tcpvit.training.folder import RunFolder
from tcpvit.training.recipe import Recipe
from tcpvit.training.run import FREE

MAY_DIFFER = (*FREE, "device")  # settings that may differ in the same run
ADVICE = "replace it with --overwrite, or choose another --name"


def check_same(
    recipe: Recipe,
    folder: str | Path,
    *,
    was: Mapping[str, Any] | None = None,
    now: Mapping[str, Any] | None = None,
    advice: str = ADVICE,
) -> None:
    """Raise if `folder` holds a run of another recipe, and name the difference; `was` and `now` hold what else counts.

    What they hold replaces keys of the recipes, as {"model": None} for a model that no recipe describes.
    """
    run = RunFolder(folder)
    if not run.exists:
        return
    before, after = _flat({**run.recipe().to_dict(), **(was or {})}), _flat({**recipe.to_dict(), **(now or {})})
    for key in {**after, **before}:
        if before.get(key) != after.get(key) and key not in MAY_DIFFER:
            raise ValueError(f"{run} was trained with {key}={before.get(key)}, now it is {after.get(key)}; {advice}")


def _flat(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings by dotted keys.

    >>> _flat({"data": {"name": "svhn"}, "seed": 1})
    {'data.name': 'svhn', 'seed': 1}
    """
    found: dict[str, Any] = {}
    for key, value in content.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found
