"""Models that were trained: found by run folder, saved folder or preset, with what it takes to feed them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

import tcpvit.tensorize  # noqa: F401  # registers how converted models are loaded
from tcpvit.data import Images, ImageSet
from tcpvit.data.augment import normalise
from tcpvit.data.image_set import IMAGENET_MEAN, IMAGENET_STD, PIXEL_SCALE
from tcpvit.data.images import Fit
from tcpvit.data.scenes import Scene, WindowSet, resample_scene
from tcpvit.errors import did_you_mean
from tcpvit.models import create_model, from_pretrained, list_models, list_pretrained
from tcpvit.models.pretrained import CONFIG, WEIGHTS, Pretrained, load_weights
from tcpvit.models.segmenter import EncoderDecoder, SegmenterConfig
from tcpvit.models.zoo import RECIPE, card_facts, pretrained_folder
from tcpvit.training.evaluation import unwrapped
from tcpvit.training.folder import RunFolder
from tcpvit.training.preprocessing import default_fit, read_preprocessing
from tcpvit.training.recipe import Recipe, load_recipe

Weights = Literal["best", "last"]


@dataclass(frozen=True)
class LoadedModel:
    """A model in eval mode, the recipe it was trained by, and how its images are prepared (None: not known).

    `facts` are those of its card, if it comes with the package.
    """

    name: str
    model: nn.Module
    recipe: Recipe | None = None
    preprocessing: dict[str, Any] | None = None
    facts: Mapping[str, str] = field(default_factory=dict)

    def prepare(self, data: Images) -> Images:
        """`data`, normalised as the model's training images were."""
        if self.preprocessing is None:
            return data
        mean, std = (tuple(self.preprocessing[name]) for name in ("mean", "std"))
        if isinstance(data, WindowSet):
            data = replace(data, scene=self.fit_scene(data.scene))
        return replace(self._of_its_type(data), mean=mean, std=std)

    def _of_its_type(self, data: Images) -> Images:
        """The pixels in the type of the training images, on whose scale the mean and the deviation are."""
        if data.dtype == self.dtype or "dtype" not in self.preparation():
            return data
        if isinstance(data, ImageSet) and self.dtype == torch.float32:
            return replace(data, images=data.images.float())
        found, wanted = (str(dtype).removeprefix("torch.") for dtype in (data.dtype, self.dtype))
        raise ValueError(
            f"{data.source} holds {found}, but {self.name} was trained on {wanted}; convert the files as the training "
            f"{data.unit} were"
        )

    def fit_scene(self, scene: Scene) -> Scene:
        """The scene with the bands that the model was trained on: chosen, or interpolated between wavelengths."""
        about = self.preparation().get("scene")
        if about is None:
            raise ValueError(f"{self.name} was not trained on a scene; train one with `tcpvit train --scene FILE`")
        wavelengths = self.wavelengths
        if wavelengths is not None and scene.wavelengths is not None:
            return resample_scene(scene, wavelengths)
        used = np.asarray(about["used"])
        if scene.bands == about["bands"]:  # of the same sensor, as far as can be known: the same bands
            if lacking := np.setdiff1d(used, scene.good_bands).tolist():
                raise ValueError(
                    f"{scene.name} marks band {lacking[0] + 1} as bad, in all {len(lacking)} of the {len(used)} bands "
                    f"that {self.name} looks at; take a scene that has them"
                )
            unused = np.isin(np.arange(scene.bands), used, invert=True)
            return replace(scene, bad_bands=unused) if unused.any() else scene
        if len(scene.good_bands) != len(used):
            raise ValueError(
                f"{scene.name} has {len(scene.good_bands)} bands in use, {self.name} was trained on {len(used)}; "
                f"without the wavelengths of both they cannot be fitted to each other"
            )
        return scene

    def preparation(self) -> dict[str, Any]:
        """How the model's images are prepared; without a record of that, as ImageNet's are."""
        config = self.config
        if self.preprocessing is None and config.in_chans != len(IMAGENET_MEAN):
            raise ValueError(
                f"{self.name} takes images of {config.in_chans} channels, and no record says how they are prepared; "
                "take the folder of its run"
            )
        return self.preprocessing or {
            "task": "segmentation" if isinstance(config, SegmenterConfig) else "classification",
            "classes": [str(k) for k in range(config.num_classes)],
            "image_shape": [config.in_chans, *config.image_shape],
            "mean": IMAGENET_MEAN,
            "std": IMAGENET_STD,
        }

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of its classes; their numbers where no names are recorded."""
        return tuple(map(str, self.preparation()["classes"]))

    @property
    def image_shape(self) -> tuple[int, ...]:
        """(C, H, W) of its images, (C, T, H, W) of volumes and clips."""
        return tuple(self.preparation()["image_shape"])

    @property
    def device(self) -> torch.device:
        """Where its parameters are."""
        first = next(self.model.parameters(), None)
        return torch.device("cpu") if first is None else first.device

    def move_to(self, device: torch.device) -> nn.Module:
        """The model in eval mode, moved there; with ordinary tensors, of which gradients can be taken later."""
        with torch.inference_mode(False):
            return self.model.to(device).eval()

    def normalise(self, pixels: Tensor) -> Tensor:
        """Pixels (B, C, ...) of the type of its images as the model takes them."""
        about = self.preparation()
        return normalise(pixels, tuple(about["mean"]), tuple(about["std"]), PIXEL_SCALE[pixels.dtype])

    @property
    def fit(self) -> Fit:
        """How images of any shape become the model's, if nothing else is asked for: as in its training."""
        about = self.preparation()
        return about.get("fit") or default_fit(
            self.recipe.data if self.recipe else None, about["task"], about.get("unit", "images")
        )

    @property
    def stride(self) -> int | None:
        """Of clips, every which frame is taken; None where frames are spread over the clip. Once the recipe's alone."""
        options = self.recipe.data.options if self.recipe and self.takes_clips else {}
        return (self.preprocessing or {}).get("stride") or options.get("stride")

    @property
    def wavelengths(self) -> tuple[float, ...] | None:
        """Of the bands that it was trained on, in nanometres, where they are known. Once the config's alone."""
        recorded = (self.preprocessing or {}).get("wavelengths")
        return tuple(recorded) if recorded else getattr(self.config, "wavelengths", None)

    def full_record(self) -> dict[str, Any] | None:
        """Its record with what earlier versions left to the recipe and the config, which do not go with it."""
        if self.preprocessing is None:
            return None
        of_scene = "scene" in self.preprocessing
        left = {"stride": self.stride, "wavelengths": list(self.wavelengths or ()) if of_scene else None}
        return {**self.preprocessing, **{name: value for name, value in left.items() if value}}

    @property
    def dtype(self) -> torch.dtype:
        """The type of the pixels of its images: uint8 where nothing else is recorded."""
        name = self.preparation().get("dtype", "uint8")
        known = {str(dtype).removeprefix("torch."): dtype for dtype in PIXEL_SCALE}
        if name not in known:
            raise ValueError(f"{self.name} was trained on images of type {name!r}{did_you_mean(str(name), known)}")
        return known[name]

    @property
    def segments(self) -> bool:
        """Whether it labels every pixel."""
        if self.config is not None:
            return isinstance(self.model, EncoderDecoder)
        return (self.preprocessing or {}).get("task") == "segmentation" or isinstance(self.model, EncoderDecoder)

    @property
    def takes_volumes(self) -> bool:
        """Whether its images have three axes."""
        if self.preprocessing:
            return len(self.preprocessing["image_shape"]) == 4
        return getattr(self.config, "ndim", 2) == 3

    @property
    def takes_clips(self) -> bool:
        """Whether they are clips."""
        return self.takes_volumes and (self.preprocessing or {}).get("unit") == "clips"

    @property
    def side(self) -> int | None:
        """The side of the square images that it was trained on, if that is known."""
        sides = set(self.preprocessing["image_shape"][1:]) if self.preprocessing else set()
        return sides.pop() if len(sides) == 1 else None

    @property
    def config(self) -> Any:
        """That of a model of this library; None for others, whose configs are of another kind."""
        return self.model.config if isinstance(self.model, Pretrained) else None

    def check_classes(self, outputs: int) -> None:
        """Raise unless the model gives a number for each of its classes."""
        if outputs != len(self.classes):
            raise ValueError(
                f"{self.name} gives {outputs} numbers for an image, but its record names {len(self.classes)} classes; "
                "name as many in its preprocessing.json, or export the model again"
            )

    @torch.no_grad()
    def try_on(self, data: Images, hint: str = "") -> Tensor:
        """The logits of one blank image of the set's shape; a model that refuses it is an error that says so."""
        channels, *size = data.image_shape
        like = next(self.model.parameters())
        try:
            return unwrapped(self.model(torch.zeros(1, channels, *size, dtype=like.dtype, device=like.device)))
        except (AssertionError, RuntimeError, ValueError) as error:
            wanted = self.preprocessing["image_shape"][1] if self.preprocessing else "SIZE"
            said = str(error).partition("\n")[0].rstrip(".")
            raise ValueError(
                f"{self.name} does not take the images of {data.source}, which are "
                f"{'×'.join(map(str, (*size, channels)))} ({said}); resize them with --set data.image_size={wanted}"
                f"{hint}"
            ) from error


def load_model(target: str | Path, weights: Weights = "best", *, model: nn.Module | None = None) -> LoadedModel:
    """The model of a run folder (its best or last weights), of a saved folder or exported file, or a preset.

    A preset comes with the weights of the zoo if it has any there, else with random ones and without recipe and
    preprocessing. `model` is for a run of a model that was built in Python: one built as it was, with any weights.
    """
    from tcpvit.inference.exported import is_exported, load_exported

    if is_exported(Path(target)):
        return load_exported(Path(target))
    loaded = _find(target, weights, model)
    loaded = replace(loaded, preprocessing=loaded.full_record())
    outputs = getattr(loaded.config, "num_classes", 0)  # a model without a head has 0
    if outputs and loaded.preprocessing is not None:
        loaded.check_classes(outputs)
    return loaded


def _find(target: str | Path, weights: Weights, model: nn.Module | None) -> LoadedModel:
    folder = Path(target)
    run = RunFolder(folder)
    if run.exists:
        if not (folder / weights).is_dir():
            raise ValueError(f"{folder} has no {weights} weights yet; resume it with `tcpvit train --resume {folder}`")
        saved = folder / weights
        return LoadedModel(folder.name, _load(saved, model), run.recipe(), read_preprocessing(saved))
    if folder.is_dir():
        return LoadedModel(folder.name, _load(folder, model), None, read_preprocessing(folder))
    if str(target) in list_pretrained():
        saved = pretrained_folder(str(target))
        recipe, preprocessing = load_recipe(saved / RECIPE), read_preprocessing(saved)
        return LoadedModel(str(target), _load(saved, None), recipe, preprocessing, card_facts(str(target)))
    if str(target) not in list_models():
        raise ValueError(
            f"{str(target)!r} is no run folder, no saved model and no preset"
            f"{did_you_mean(str(target), list_models(), 'tcpvit models')}"
        )
    return LoadedModel(str(target), create_model(str(target)).eval())


def _load(saved: Path, model: nn.Module | None) -> nn.Module:
    """The model of a folder in float32, as its images are; of one that was built in Python it has the weights only."""
    if (saved / CONFIG).is_file() or not (saved / WEIGHTS).is_file():
        return cast(nn.Module, from_pretrained(saved, model=model)).float()
    if model is None:
        raise ValueError(
            f"{saved} has the weights of a model that was built in Python, and not how; load it there with "
            "tcpvit.inference.load_model(FOLDER, model=MODEL), the model built as it was"
        )
    load_weights(model, saved / WEIGHTS)
    return model.float().eval()
