"""Where a model comes from: enough to build it again without its weights.

Models of transformers and of this library carry their configs. Those of timm and torchvision do not say how they were
built: `build` notes it; for others the nearest guess is built and compared part by part, and counts only if all agrees.
`preparation` is how the library prepares images for it.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import json
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.torch_version import TorchVersion

from tcpvit.analysis.dry_run import find_example
from tcpvit.errors import nearest
from tcpvit.models.pretrained import ARCHITECTURES, Pretrained
from tcpvit.models.registry import create_model, list_models
from tcpvit.tensorize.libraries import REFUSALS
from tcpvit.tensorize.origin_rules import LABELS, RECORDS, check_origin, import_library
from tcpvit.tensorize.record import drop_ins_of, write_note
from tcpvit.training.evaluation import unwrapped

NOTE = "tcpvit_origin"  # the attribute in which `build` notes what it did
OLDEST_TIMM = "1.0.26"  # loads checkpoints as weights only, 1.0.20 ran what their pickles said
OF_WEIGHTS = ("pretrained", "weights", "weights_backbone", "checkpoint_path", "cache_dir", "progress")
Origin = dict[str, Any]


def build(name: str, **options: Any) -> nn.Module:
    """A model by name: a preset of ours, or one of timm, torchvision, transformers and sentence-transformers.

    Theirs are written "timm/NAME", "torchvision/NAME", "transformers/REPOSITORY", "sentence-transformers/REPOSITORY".

    `options` go to the library that builds it, as `pretrained=True` for timm; from transformers the model comes with
    its weights. The model remembers them, so that `save_pretrained` can say how to build it again.

    >>> build("tcp_vit_cifar", depth=1).config.depth
    1
    """
    library, slash, rest = name.partition("/")
    if not slash:
        return create_model(name, **options)
    if library == "transformers":
        return _from_transformers(rest, options)
    if library == "sentence-transformers":
        found = import_library("sentence_transformers").SentenceTransformer
        import tcpvit.tensorize.transformers  # noqa: F401  # lets it load converted models; slow, so only here

        return found(rest, **{"device": "cpu", **options})
    if library not in ("timm", "torchvision"):
        raise ValueError(
            f"{name!r} is no model: give a preset ({', '.join(list_models('*cifar'))}, ...), timm/NAME, "
            f"torchvision/NAME, transformers/REPOSITORY or sentence-transformers/NAME"
        )
    model = _create(library, rest, options)
    without_weights = {key: value for key, value in options.items() if key not in OF_WEIGHTS}
    setattr(model, NOTE, {"library": library, "name": rest, "options": without_weights})
    return model


def _from_transformers(name: str, options: dict[str, Any]) -> nn.Module:
    """A classifier of images if the architecture has one, else the model without a head."""
    transformers = import_library("transformers")
    config = transformers.AutoConfig.from_pretrained(name)
    images = transformers.AutoModelForImageClassification
    kind = images if type(config) in images._model_mapping else transformers.AutoModel
    return kind.from_pretrained(name, **options)


def origin_of(model: nn.Module) -> Origin | None:
    """How to build the model again, JSON-ready; None if that is not known, or not what a file may say."""
    told = _allowed(_told(model))
    if told is not None and _is_rebuilt_alike(model, told):
        return told
    library = type(model).__module__.partition(".")[0]
    guesses = {"timm": _timm_guesses, "torchvision": _torchvision_guesses}.get(library)
    for name, options in guesses(model) if guesses else ():
        guess = _allowed({"library": library, "name": name, "options": options})
        if guess is not None and _built_as(model, guess):
            return guess
    return None


def rebuild(origin: Any) -> nn.Module:
    """The model that `origin_of` described, with other weights; `origin` may come from a file that nobody trusts."""
    check_origin(origin)
    if origin["library"] == "timm":
        _check_timm_version()
    with _one_sentence(origin):
        return _rebuild(**origin)


def class_and_config(origin: Any) -> tuple[Any, Any]:
    """The class of a model of transformers and its config, from an origin that nobody trusts."""
    check_origin(origin)
    cls = getattr(import_library("transformers"), origin["name"])
    with _one_sentence(origin):
        return cls, cls.config_class.from_dict(_without_records(origin["options"]))


@contextlib.contextmanager
def _one_sentence(origin: Origin) -> Iterator[None]:
    """Numbers that do not fit each other are an error of any class: transformers has one that is a bare Exception."""
    try:
        yield
    except Exception as error:
        said = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ValueError(
            f"{origin['library']} cannot build the {origin['name']} that config.json describes ({said}); save the "
            "model again"
        ) from error


def _told(model: nn.Module) -> Origin | None:
    """The origin that `build` noted or that the model's config holds."""
    if hasattr(model, NOTE):
        note = getattr(model, NOTE)
        # reset_classifier of timm changes the head of a model that is built.
        head = {"num_classes": model.num_classes} if note["library"] == "timm" else {}
        return {**note, "options": {**note["options"], **head}}
    if isinstance(model, Pretrained):
        return {"library": "tcpvit", "name": type(model).__name__, "options": model.config.to_dict()}
    if type(model).__module__.partition(".")[0] == "transformers":
        config: Any = copy.copy(model.config)
        write_note(config, [])
        return {"library": "transformers", "name": type(model).__name__, "options": _without_records(config.to_dict())}
    return None


def _without_records(options: dict[str, Any]) -> dict[str, Any]:
    """A config of transformers without the notes of where it was and who wrote it, in the configs within it too."""
    return {
        key: _without_records(value) if isinstance(value, dict) and key not in LABELS else value
        for key, value in options.items()
        if key not in RECORDS
    }


def _allowed(origin: Origin | None) -> Origin | None:
    """The origin as JSON gives it back, if a file may say it."""
    try:
        plain = json.loads(json.dumps(origin))
        check_origin(plain)
    except (TypeError, ValueError):
        return None
    return plain


def _is_rebuilt_alike(model: nn.Module, origin: Origin) -> bool:
    """torchvision freezes norms where a backbone comes with weights: there the model is compared with a new one."""
    return "weights_backbone" not in _without_fetching(origin["library"], origin["name"]) or _built_as(model, origin)


def _built_as(model: nn.Module, origin: Origin) -> bool:
    # Without memory, unless the model computes something while it is built; a guess may be refused in any way.
    for device in ("meta", "cpu"):
        with contextlib.suppress(Exception), torch.device(device):
            return _built_alike(model, _rebuild(**origin))
    return False


def _rebuild(library: str, name: str, options: dict[str, Any]) -> nn.Module:
    if library == "tcpvit":
        architecture: Any = ARCHITECTURES[name]
        return architecture(architecture.config_class.from_dict(options))
    if library == "transformers":
        cls = getattr(import_library("transformers"), name)
        return cls(cls.config_class.from_dict(_without_records(options)))
    model = _create(library, name, {**options, **_without_fetching(library, name)})
    setattr(model, NOTE, {"library": library, "name": name, "options": options})
    return model


def _check_timm_version() -> None:
    version = import_library("timm").__version__
    if TorchVersion(version) < OLDEST_TIMM:
        raise ValueError(
            f"models of timm are built from folders with timm {OLDEST_TIMM} or newer, this is {version}: "
            "pip install --upgrade 'tcpvit[timm]'"
        )


def _without_fetching(library: str, name: str) -> dict[str, None]:
    """The options that keep torchvision from fetching weights of backbones, which it does by default."""
    if library != "torchvision":
        return {}
    taken = inspect.signature(import_library("torchvision").models.get_model_builder(name)).parameters
    return {key: None for key in ("weights", "weights_backbone") if key in taken}


def _create(library: str, name: str, options: dict[str, Any]) -> nn.Module:
    found = import_library(library)
    try:
        return found.create_model(name, **options) if library == "timm" else found.models.get_model(name, **options)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"{library} cannot build {name!r}: {error}{_nearest(found, library, name)}") from error


def _nearest(found: Any, library: str, name: str) -> str:
    """The end of an error about a name that its library does not know: the nearest that it does."""
    known = (found if library == "timm" else found.models).list_models()
    close = nearest(name, known) if name.partition(".")[0] not in known else None  # timm names weights after a dot
    return f"; did you mean {library}/{close}?" if close else ""


def _timm_guesses(model: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """What timm.create_model was likely called with."""
    name = (getattr(model, "pretrained_cfg", None) or {}).get("architecture")
    if not name:
        return
    options = {"num_classes": model.num_classes}
    yield name, options
    size = getattr(getattr(model, "patch_embed", None), "img_size", None)
    if size is not None:
        yield name, {**options, "img_size": list(size)}


def _torchvision_guesses(model: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    kind = type(model).__name__
    pattern = {"VisionTransformer": "vit_*", "SwinTransformer": "swin_*"}.get(kind)
    sizes = [{}, {"image_size": model.image_size}] if hasattr(model, "image_size") else [{}]
    head = [layer.out_features for layer in model.modules() if isinstance(layer, nn.Linear)][-1:]
    for name in import_library("torchvision").models.list_models(include=pattern) if pattern else ():
        for size in sizes:
            yield name, {"num_classes": head[0] if head else 1000, **size}


def _built_alike(model: nn.Module, other: nn.Module) -> bool:
    """The same modules with the same settings and shapes, but for the layers that were converted."""
    converted = list(drop_ins_of(model))
    return _settings(model, converted) == _settings(other, converted)


def _settings(model: nn.Module, but: list[str]) -> dict[str, Any]:
    """The type, the plain attributes and the shapes of every module that is not below one of those."""
    return {
        name: (type(module), _plain(vars(module)), {n: p.shape for n, p in module.named_parameters(recurse=False)})
        for name, module in model.named_modules()
        if not any(name == word or name.startswith(f"{word}.") for word in but)
    }


def _plain(attributes: dict[str, Any]) -> dict[str, Any]:
    kinds = (bool, int, float, str, torch.Size, tuple, type(None))
    return {
        name: value
        for name, value in attributes.items()
        if not name.startswith("_") and name != "training" and isinstance(value, kinds)
    }


@torch.no_grad()
def preparation(name: str, model: Any) -> dict[str, Any] | None:
    """How the model's library prepares its images, as `export` writes it; None if it does not say."""
    found, example = _statistics(name, model), find_example(model)
    images = example.get("pixel_values") if isinstance(example, dict) else example
    if found is None or images is None:
        return None
    try:
        _, classes = unwrapped(model(images)).shape
    except REFUSALS:  # it takes other images than it says, or gives something else than logits
        return None
    named = getattr(getattr(model, "config", None), "id2label", {})
    return {
        "source": name,
        "task": "classification",
        "classes": [str(named.get(k, k)) for k in range(classes)],
        "image_shape": list(images.shape[1:]),
        "mean": list(found[0]),
        "std": list(found[1]),
    }


def _statistics(name: str, model: Any) -> tuple[Sequence[float], Sequence[float]] | None:
    """Mean and standard deviation by which images are normalised."""
    library, _, rest = name.partition("/")
    if library == "timm":
        return model.pretrained_cfg["mean"], model.pretrained_cfg["std"]
    if library == "torchvision":
        transforms: Any = import_library(library).models.get_model_weights(rest).DEFAULT.transforms()
        return transforms.mean, transforms.std
    if library == "transformers":
        try:
            processor: Any = import_library(library).AutoImageProcessor.from_pretrained(rest)
        except (OSError, ValueError, ImportError):
            return None
        return processor.image_mean, processor.image_std
    return None
