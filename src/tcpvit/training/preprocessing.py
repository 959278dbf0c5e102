"""preprocessing.json beside a saved model: how images are made ready for it, and what its classes are called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tcpvit.data import Images
from tcpvit.data.images import Fit
from tcpvit.files import read_json
from tcpvit.training.recipe import DataRecipe

PREPROCESSING = "preprocessing.json"
REQUIRED = ("task", "classes", "image_shape", "mean", "std")


def describe_preprocessing(data: Images, recipe: DataRecipe) -> dict[str, Any]:
    """How images are made ready for a model trained on `data`, and what its classes are called."""
    return {
        "source": data.source,
        "task": data.task,
        "classes": list(data.classes),
        "image_shape": list(data.image_shape),
        "dtype": str(data.dtype).removeprefix("torch."),
        "bands": recipe.options.get("bands", "all"),
        "fit": default_fit(recipe, data.task),
        "mean": list(data.mean),
        "std": list(data.std),
    }


def default_fit(recipe: DataRecipe | None, task: str) -> Fit:
    """How images become square: as the recipe says, else squashed if they have masks and are of a built-in set.

    >>> default_fit(DataRecipe("oxford-pet"), "segmentation"), default_fit(DataRecipe("folder:scans"), "segmentation")
    ('squash', 'crop')
    """
    own = recipe is not None and recipe.name.startswith("folder:")
    fit: Fit = "squash" if task == "segmentation" and not own else "crop"
    return recipe.options.get("fit", fit) if recipe is not None else fit


def read_preprocessing(folder: Path) -> dict[str, Any] | None:
    """The content of preprocessing.json beside a model; None if there is none."""
    path = folder / PREPROCESSING
    if not path.is_file():
        return None
    found = read_json(path)
    if missing := [name for name in REQUIRED if not isinstance(found, dict) or name not in found]:
        raise ValueError(f"{path} does not say {', '.join(missing)}; restore it from a copy, or save the model again")
    return found
