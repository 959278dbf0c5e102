"""Models as folders for `tcpvit.from_pretrained`, with what it takes to feed them."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import nn

from tcpvit.data import Images
from tcpvit.data.images import Fit
from tcpvit.models import save_pretrained
from tcpvit.models.pretrained import CONFIG, WEIGHTS, can_save
from tcpvit.training.checkpoint import write_atomically
from tcpvit.training.recipe import DataRecipe
from tcpvit.training.run import read_json

PREPROCESSING = "preprocessing.json"
NEEDED = ("task", "classes", "image_shape", "mean", "std")  # of what it holds


def export(model: nn.Module, folder: Path, preprocessing: dict[str, Any] | None = None) -> None:
    """Write the model into `folder`, file by file whole or not at all; of foreign models, the weights alone."""
    folder.mkdir(parents=True, exist_ok=True)
    if preprocessing is not None:
        write_atomically(folder / PREPROCESSING, (json.dumps(preprocessing, indent=2) + "\n").encode())
    if not can_save(model):
        weights = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
        write_atomically(folder / WEIGHTS, save(weights))
        return
    with tempfile.TemporaryDirectory() as temporary:
        save_pretrained(model, temporary)
        for name in (CONFIG, WEIGHTS):
            write_atomically(folder / name, (Path(temporary) / name).read_bytes())


def describe_preprocessing(data: Images, recipe: DataRecipe) -> dict[str, Any]:
    """How images are made ready for a model trained on `data`, and what its classes are called."""
    return {
        "source": data.source,
        "task": data.task,
        "classes": list(data.classes),
        "image_shape": list(data.image_shape),
        "fit": fit_of(recipe, data.task),
        "mean": list(data.mean),
        "std": list(data.std),
        "dtype": str(data.dtype).removeprefix("torch."),
        "bands": recipe.options.get("bands", "all"),
    }


def fit_of(recipe: DataRecipe | None, task: str) -> Fit:
    """How images become square: as the recipe says, else masks' images of known sets are squashed, all cropped.

    >>> fit_of(DataRecipe("oxford-pet"), "segmentation"), fit_of(DataRecipe("folder:scans"), "segmentation")
    ('squash', 'crop')
    """
    own = recipe is not None and recipe.name.startswith("folder:")
    habit: Fit = "squash" if task == "segmentation" and not own else "crop"
    return recipe.options.get("fit", habit) if recipe is not None else habit


def read_preprocessing(folder: Path) -> dict[str, Any] | None:
    """What `export` wrote beside the model; None if nothing."""
    path = folder / PREPROCESSING
    if not path.is_file():
        return None
    found = read_json(path)
    if missing := [name for name in NEEDED if not isinstance(found, dict) or name not in found]:
        raise ValueError(f"{path} does not say {', '.join(missing)}; bring back what it was, or export the model again")
    return found
