"""From a recipe to its data, model and loaders; what does not fit is an error before the first step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeGuard

import torch
from torch import nn

from tcpvit import algebra
from tcpvit.data import IGNORE, Batches, Images, ImageSet, Splits, load_dataset
from tcpvit.data.mask_classes import MASK_VALUES_HINT
from tcpvit.layers.bands import GIVEN as PCA
from tcpvit.layers.bands import BandDCT
from tcpvit.models import SegmenterConfig, create_model, list_models, model_config
from tcpvit.models.size import check_size
from tcpvit.progress import Progress
from tcpvit.training.finetune import start_from
from tcpvit.training.recipe import DataRecipe, ModelRecipe, Recipe
from tcpvit.validation import within

GIVEN = "given from Python"  # the name of a model or a set that no recipe can name
TRANSFORM_IMAGES = 10_000  # images that a data-driven transform is computed from


def load_splits(data: DataRecipe, progress: Progress | None = None) -> Splits:
    """The parts of the recipe's set."""
    _check_named("data", data.name)
    for key in ("name", "root", "image_size"):
        if key in data.options:
            raise ValueError(f"data.options.{key} should be data.{key}")
    if "progress" in data.options:
        raise ValueError(f"{data.name} has no option 'progress'")
    with within("data.options"):
        return load_dataset(data.name, data.root, image_size=data.image_size, progress=progress, **data.options)


def recipe_as_used(recipe: Recipe, splits: Splits | None, model: nn.Module | None) -> Recipe:
    """The recipe with what was given from Python in the place of the set and the preset that it names.

    A name that is no preset was given to that model by the caller, and stays.
    """
    if splits is not None and splits.name != recipe.data.name:
        data = replace(recipe.data, name=f"{GIVEN} ({splits.name})", root=None, options={}, image_size=None)
        recipe = replace(recipe, data=data)
    if model is not None and recipe.model.name in list_models():
        recipe = replace(recipe, model=ModelRecipe(f"{GIVEN} ({type(model).__name__})"))
    return recipe


def _check_named(key: str, name: str) -> None:
    """Raise if the recipe of a run cannot say where its model or its images came from."""
    if name.startswith(GIVEN):
        what, argument = ("images", "splits=SPLITS") if key == "data" else ("model", "model=MODEL")
        other = ", or name another set with --data NAME to measure it on" if key == "data" else ""
        raise ValueError(
            f"{key}.name is {name!r}: the {what} of this run cannot be found by name; resume it from Python with "
            f"tcpvit.training.resume(FOLDER, {argument}){other}"
        )


def check_masks(splits: Splits) -> None:
    """Raise if no pixel of the training or validation masks counts, as far as these are in memory."""
    for part in (splits.train, splits.val):
        if _has_masks(part) and not (part.targets != IGNORE).any():
            renaming = f", or {MASK_VALUES_HINT}" if splits.name.startswith("folder:") else ""
            raise ValueError(
                f"every pixel of the masks of {part.source} is {IGNORE}, which is ignored, so that nothing can be "
                f"learned from them or measured on them; correct them{renaming}"
            )


def missing_classes(train: Images) -> tuple[str, ...]:
    """A note if a class is in no training mask that is in memory, as where the list of classes is a wrong one."""
    if not _has_masks(train):
        return ()
    counts = torch.bincount(train.targets.flatten(), minlength=IGNORE + 1).tolist()
    absent = [name for name, count in zip(train.classes, counts, strict=False) if not count]
    note = (
        f"at {'×'.join(map(str, train.image_shape[1:]))} pixels no training mask holds {', '.join(absent)}; "
        f"{100 * counts[IGNORE] / train.targets.numel():.1f} % of the pixels are {IGNORE}, which is ignored"
    )
    return (note,) if absent else ()


def _has_masks(part: Images) -> TypeGuard[ImageSet]:
    return isinstance(part, ImageSet) and part.task == "segmentation"


def build_model(recipe: Recipe, train: Images, device: torch.device | None = None, processes: int = 1) -> nn.Module:
    """The recipe's model for the classes and images of `train`, weights drawn by its seed or pretrained."""
    _check_named("model", recipe.model.name)
    options = _for_images(recipe.model.options, recipe.model.name, train)
    with within("model.options"):
        config = model_config(recipe.model.name, **options)
    classes = options.setdefault("num_classes", len(train.classes))
    if classes != len(train.classes):
        raise ValueError(
            f"model.options.num_classes is {classes}, but {train.source} has {len(train.classes)} classes; leave it out"
        )
    check_fit(recipe.model.name, config, train)
    on_gpu = device is not None and device.type == "cuda"
    available = torch.cuda.get_device_properties(device).total_memory if on_gpu else None
    batch = min(recipe.data.batch_size, len(train)) // (recipe.optimizer.accumulate * processes)
    check_size(config, batch=max(batch, 1), available=available, where=str(device) if available else "")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        model: nn.Module = create_model(recipe.model.name, **_with_transforms(options, train, config.tube_length))
    if recipe.model.pretrained:
        start_from(model, recipe.model.name, recipe.model.pretrained)
    elif isinstance(bands := getattr(model, "bands", None), BandDCT) and len(train) > 1:
        bands.standardise_(training_spectra(train))
    return model


def _for_images(options: Mapping[str, Any], name: str, train: Images) -> dict[str, Any]:
    """The options with what the images determine, unless they name it: channels; of scenes the window and spectra."""
    channels = train.image_shape[0]
    config = model_config(name)
    if isinstance(config, SegmenterConfig):
        inside = {"in_chans": channels} if config.in_chans != channels else {}
        return {**options, "backbone": inside | dict(options.get("backbone", {}))} if inside else dict(options)
    found = dict(options) if config.in_chans == channels else {"in_chans": channels, **options}
    if getattr(config, "kept", None) is None or options.get("kept", 0) is None:
        return found
    found = {"img_size": train.image_shape[1:], "kept": min(config.kept, channels), **found}
    if config.tube_length == config.kept and isinstance(found["kept"], int):
        found.setdefault("embed_dim", config.d * found["kept"])  # slices as wide as those of the preset
    return {"wavelengths": train.wavelengths, **found}


def check_fit(name: str, config: Any, data: Images) -> None:
    """The model takes the set's images, or the error says what to change."""
    channels, *size = data.image_shape
    segments = isinstance(config, SegmenterConfig)
    labeller = "tcp_vit_volume_small" if len(size) == 3 else "tcp_vit_cifar"
    if segments and data.task == "classification":
        raise ValueError(
            f"{data.source} has labels, but {name} labels every pixel; take another model, as {labeller}, or a set "
            f"with masks (a folder of your own needs images/ and masks/)"
        )
    if not segments and data.task == "segmentation":
        other = "tcp_vit_volume_segmenter" if len(size) == 3 else "tcp_vit_pet"
        raise ValueError(
            f"{data.source} has masks, but {name} labels whole {data.unit}; take another model, as {other}"
        )
    where = "model.options.backbone" if segments else "model.options"
    if config.in_chans != channels:
        raise ValueError(
            f"{name} takes {config.in_chans} channels, but the images of {data.source} have {channels}; to train "
            f"one for them add --set {where}.in_chans={channels}"
        )
    if len(config.image_shape) != len(size):
        takes, has = ("images", "volumes") if len(size) == 3 else ("volumes", "images")
        raise ValueError(f"{name} takes {takes}, but {data.source} has {has}; take another model, as {labeller}")
    if list(config.image_shape) != size and not segments:  # segmenters take any size
        wanted, found = ("×".join(map(str, pair)) for pair in (config.image_shape, size))
        raise ValueError(
            f"{name} takes images of {wanted}, but those of {data.source} have {found}; resize them with "
            f"--set data.image_size={_as_word(config.image_shape)}, or train a model for them with "
            f"--set {where}.img_size={_as_word(size) if len(size) == 2 else list(size)}"
        )


def _as_word(size: Sequence[int]) -> int | list[int]:
    """A size as a recipe writes it: one number if all sides are the same."""
    return size[0] if len(set(size)) == 1 else list(size)


def _with_transforms(options: Mapping[str, Any], train: Images, tube: int) -> dict[str, Any]:
    """The options, with the matrix of a data-driven transform or basis wherever one is asked for."""
    found = dict(options)
    for key, value in options.items():
        if isinstance(value, Mapping):
            found[key] = _with_transforms(value, train, tube)
        elif key == "transform" and value == "data_driven":
            if options.get("patch_embed") == "sub_patch":
                raise ValueError(
                    "transform=data_driven is that of the channels, but with patch_embed=sub_patch the tube runs "
                    "through the parts of a patch; take transform=dct or another"
                )
            found[key] = data_driven_transform(train, tube)
        elif key == "band_basis" and value == PCA:
            found[key] = principal_axes(train)
    return found


def training_spectra(train: Images) -> torch.Tensor:
    """Spectra (n, bands), normalised: that in the middle of each training image, which in a window has the label."""
    height, width = train.image_shape[1:]
    rows = torch.linspace(0, len(train) - 1, min(len(train), TRANSFORM_IMAGES)).long()
    return torch.cat([images[:, :, height // 2, width // 2].clone() for images, _ in Batches(train.subset(rows), 500)])


def principal_axes(train: Images) -> torch.Tensor:
    """Rows (n, bands) by falling variance of the training spectra."""
    spectra = training_spectra(train).double()
    return torch.linalg.eigh((spectra - spectra.mean(0)).mT.cov()).eigenvectors.flip(1).mT


def data_driven_transform(train: Images, tube: int) -> algebra.Transform:
    """The transform whose slices hold most of the energy of the training images (normalised, not augmented)."""
    channels = train.image_shape[0]
    if tube != channels:
        raise ValueError(f"a data-driven transform is that of the {channels} channels, but the model's tube is {tube}")
    rows = torch.linspace(0, len(train) - 1, min(len(train), TRANSFORM_IMAGES)).long()
    gram = torch.zeros(channels, channels, dtype=torch.float64)
    for images, _ in Batches(train.subset(rows), 500):
        pixels = images.movedim(1, -1).reshape(-1, channels).double()  # (B·H·W, C)
        gram += pixels.mT @ pixels
    values, vectors = torch.linalg.eigh(gram)
    # A C×C matrix with the Gram matrix of all the pixels stands for them.
    return algebra.data_driven((vectors * values.clamp(min=0).sqrt()).mT)


def build_batches(
    recipe: Recipe, part: Images, device: torch.device, *, training: bool, rank: int = 0, world_size: int = 1
) -> Batches:
    """A loader: shuffled and augmented for training, in order and as they are for evaluation."""
    return Batches(
        part,
        recipe.data.batch_size if training else recipe.data.eval_batch_size * world_size,
        augment=recipe.augment if training else None,
        shuffle=training,
        seed=recipe.seed,
        rank=rank,
        world_size=world_size,
        device=device,
        workers=recipe.data.workers,
    )


def find_device(recipe: Recipe) -> torch.device:
    """The recipe's device, which must be there and know the recipe's precision."""
    name = recipe.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(1, device=device).item()  # "meta" has no numbers
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device={name!r} is not available here; take device=cpu") from error
    if recipe.precision == "float16" and device.type != "cuda":
        raise ValueError(f"precision=float16 needs a CUDA GPU, this run is on {device}; take bfloat16 or float32")
    return device
