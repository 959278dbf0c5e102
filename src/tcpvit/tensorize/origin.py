"""Where a model comes from: enough to build it again without its weights.

Models of transformers and of this library carry their configs. Those of timm and torchvision do not say how they were
built: `build` notes it; for others the nearest guess is built and compared part by part, and counts only if all agrees.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from tcpvit.compat import repair_torchvision
from tcpvit.models.pretrained import ARCHITECTURES, Pretrained
from tcpvit.models.registry import create_model, list_models
from tcpvit.tensorize.convert import drop_ins_of

NOTE = "tcpvit_origin"  # the attribute in which `build` notes what it did
Origin = dict[str, Any]


def build(name: str, **options: Any) -> nn.Module:
    """A model by name: a preset of ours, "timm/NAME", "torchvision/NAME" or "transformers/REPOSITORY".

    `options` go to the library that builds it, as `pretrained=True` for timm; from transformers the model comes with
    its weights. The model remembers them, so that `save_pretrained` can say how to build it again.

    >>> build("tcp_vit_cifar", depth=1).config.depth
    1
    """
    library, slash, rest = name.partition("/")
    if not slash:
        return create_model(name, **options)
    if library == "transformers":
        return _transformers().AutoModelForImageClassification.from_pretrained(rest, **options)
    if library not in ("timm", "torchvision"):
        raise ValueError(
            f"{name!r} is no model: give a preset ({', '.join(list_models('*cifar'))}, ...), timm/NAME, "
            f"torchvision/NAME or transformers/REPOSITORY"
        )
    model = _create(library, rest, options)
    without_weights = {key: value for key, value in options.items() if key not in ("pretrained", "weights")}
    setattr(model, NOTE, {"library": library, "name": rest, "options": without_weights})
    return model


def origin_of(model: nn.Module) -> Origin | None:
    """How to build the model again, JSON-ready; None if that is not known."""
    if hasattr(model, NOTE):
        note = getattr(model, NOTE)
        # reset_classifier of timm changes the head of a model that is built.
        head = {"num_classes": model.num_classes} if note["library"] == "timm" else {}
        return {**note, "options": {**note["options"], **head}}
    if isinstance(model, Pretrained):
        return {"library": "tcpvit", "name": type(model).__name__, "options": model.config.to_dict()}
    library = type(model).__module__.partition(".")[0]
    if library == "transformers" and hasattr(_transformers(), type(model).__name__):
        config: Any = model.config
        return {"library": library, "name": type(model).__name__, "options": config.to_dict()}
    guesses = {"timm": _timm_guesses, "torchvision": _torchvision_guesses}.get(library)
    for name, options in guesses(model) if guesses else ():
        # Without memory, unless the model computes something while it is built; a guess may be refused in any way.
        for device in ("meta", "cpu"):
            with contextlib.suppress(Exception), torch.device(device):
                if _built_alike(model, _create(library, name, options)):
                    return {"library": library, "name": name, "options": options}
                break
    return None


def rebuild(origin: Origin) -> nn.Module:
    """The model that `origin_of` described, with other weights."""
    library, name, options = origin["library"], origin["name"], origin["options"]
    if library == "tcpvit":
        architecture: Any = ARCHITECTURES[name]
        return architecture(architecture.config_class.from_dict(options))
    if library == "transformers":
        cls = getattr(_transformers(), name)
        return cls(cls.config_class.from_dict(options))
    model = _create(library, name, options)
    setattr(model, NOTE, origin)
    return model


def _create(library: str, name: str, options: dict[str, Any]) -> nn.Module:
    repair_torchvision()
    try:
        if library == "timm":
            import timm

            return timm.create_model(name, **options)
        import torchvision

        return torchvision.models.get_model(name, **options)
    except ImportError as error:
        extra = "timm" if library == "timm" else "vision"
        raise ImportError(f"building {name} needs {library}: pip install 'tcpvit[{extra}]'") from error
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"{library} cannot build {name!r}: {error}") from error


def _transformers() -> Any:
    repair_torchvision()
    try:
        import transformers
    except ImportError as error:
        raise ImportError("this model needs transformers: pip install 'tcpvit[hf]'") from error
    return transformers


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
    import torchvision

    kind = type(model).__name__
    pattern = {"VisionTransformer": "vit_*", "SwinTransformer": "swin_*"}.get(kind)
    sizes = [{}, {"image_size": model.image_size}] if hasattr(model, "image_size") else [{}]
    head = [layer.out_features for layer in model.modules() if isinstance(layer, nn.Linear)][-1:]
    for name in torchvision.models.list_models(include=pattern) if pattern else ():
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
