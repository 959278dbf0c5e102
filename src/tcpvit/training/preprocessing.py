"""preprocessing.json beside a saved model: how images are made ready for it, and what its classes are called."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any, Literal

from typing_extensions import NotRequired, TypedDict

from tcpvit.data import Images
from tcpvit.data.decode import Bands
from tcpvit.data.image_set import Task
from tcpvit.data.images import Fit
from tcpvit.data.scenes import WindowSet
from tcpvit.memory import check_memory
from tcpvit.training.recipe import DataRecipe
from tcpvit.validation import Count, Natural, NonNegative, Number, Text, read_checked

PREPROCESSING = "preprocessing.json"


class SceneAbout(TypedDict):
    """What else there is to know of a scene: how many bands it has, which are used (from 0), colours of the classes."""

    bands: Count
    used: list[Natural]
    colours: list[tuple[Natural, Natural, Natural]]


class Preprocessing(TypedDict):
    """preprocessing.json; version 0.1.0 wrote what is required."""

    task: Task
    classes: list[Text]
    image_shape: tuple[Count, Count, Count] | tuple[Count, Count, Count, Count]
    mean: list[Number]
    std: list[NonNegative]
    source: NotRequired[Text]
    dtype: NotRequired[Literal["uint8", "uint16", "float32"]]
    bands: NotRequired[Bands]
    fit: NotRequired[Fit]
    unit: NotRequired[Text]
    stride: NotRequired[Count]  # of clips: every which frame is taken; without it they are spread over the clip
    wavelengths: NotRequired[list[Number]]  # of the bands in use, in nanometres
    scene: NotRequired[SceneAbout]


def describe_preprocessing(data: Images, recipe: DataRecipe) -> dict[str, Any]:
    """How images are made ready for a model trained on `data`, and what its classes are called."""
    about = {
        "source": data.source,
        "task": data.task,
        "classes": list(data.classes),
        "image_shape": list(data.image_shape),
        "dtype": str(data.dtype).removeprefix("torch."),
        "bands": recipe.options.get("bands", "all"),
        "fit": default_fit(recipe, data.task, data.unit),
        "unit": data.unit,
        "mean": list(data.mean),
        "std": list(data.std),
    }
    if data.unit == "clips" and recipe.options.get("stride"):
        about["stride"] = recipe.options["stride"]
    if isinstance(data, WindowSet):
        if data.wavelengths is not None and all(wavelength > 0 for wavelength in data.wavelengths):
            about["wavelengths"] = list(data.wavelengths)
        scene = data.scene
        used, colours = scene.good_bands.tolist(), list(map(list, scene.colours))
        about["scene"] = {"bands": scene.bands, "used": used, "colours": colours}
    return about


def default_fit(recipe: DataRecipe | None, task: str, unit: str = "images") -> Fit:
    """How images get their size: as the recipe says, else squashed if they have masks and are of a built-in set.

    Volumes are squashed if they have no masks, and cut into windows if they do.

    >>> default_fit(DataRecipe("oxford-pet"), "segmentation"), default_fit(DataRecipe("folder:scans"), "segmentation")
    ('squash', 'crop')
    """
    own = recipe is not None and recipe.name.startswith("folder:")
    segments = task == "segmentation"
    squashed = not segments if unit == "volumes" else segments and not own
    fit: Fit = "squash" if squashed else "crop"
    return (recipe.options.get("fit") or fit) if recipe is not None else fit


def read_preprocessing(folder: Path) -> dict[str, Any] | None:
    """The content of preprocessing.json beside a model; None if there is none."""
    path = folder / PREPROCESSING
    if not path.is_file():
        return None
    found = read_checked(path, Preprocessing)
    channels = found["image_shape"][0]
    if not len(found["mean"]) == len(found["std"]) == channels:
        raise ValueError(f"{path} should have a mean and a std for each of {channels} channels; save the model again")
    scene = found.get("scene")
    if scene is not None and not (
        len(scene["used"]) == channels
        and max(scene["used"]) < scene["bands"]
        and len(scene["colours"]) == len(found["classes"])
    ):
        raise ValueError(f"{path} should name {channels} bands and a colour for each class; save the model again")
    wavelengths = found.get("wavelengths")
    if wavelengths is not None and (len(wavelengths) != channels or min(wavelengths) <= 0):
        raise ValueError(f"{path} should have a positive wavelength for each of {channels} bands; save the model again")
    check_memory(4 * prod(found["image_shape"]), f"an image of {path}", "restore it from a copy")
    return found
