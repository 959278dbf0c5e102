"""Whether a run that lies in a folder is the one that is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tcpvit.overrides import flat
from tcpvit.training.folder import RunFolder
from tcpvit.training.recipe import Recipe
from tcpvit.training.run import FREE

MAY_DIFFER = (*FREE, "device")  # what a run may have been trained with and still be the same
ADVICE = "replace it with --overwrite, or choose another --name"


def check_same(
    recipe: Recipe,
    folder: str | Path,
    *,
    was: Mapping[str, Any] | None = None,
    now: Mapping[str, Any] | None = None,
    advice: str = ADVICE,
) -> None:
    """A run of another recipe in `folder` is an error that names the difference; `was` and `now` hold what else counts.

    What they hold takes the place of keys of the recipes, as {"model": None} for a model that no recipe describes.
    """
    run = RunFolder(folder)
    if not run.exists:
        return
    before, after = flat({**run.recipe().to_dict(), **(was or {})}), flat({**recipe.to_dict(), **(now or {})})
    for key in {**after, **before}:
        if before.get(key) != after.get(key) and key not in MAY_DIFFER:
            raise ValueError(f"{run} was trained with {key}={before.get(key)}, now it is {after.get(key)}; {advice}")
