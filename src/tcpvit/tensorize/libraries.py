"""What other libraries know of their models: the names, and how images are prepared for them."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

import torch

from tcpvit.tensorize.flops import guess_example
from tcpvit.training.evaluation import unwrapped


def nearest_name(name: str) -> str:
    """The end of an error about a name that its library does not know: the nearest that it does."""
    library, _, rest = name.partition("/")
    known = _names_of(library)
    base = rest.partition(".")[0]  # timm names weights after a dot
    close = difflib.get_close_matches(rest, known, n=1) if base not in known else []
    return f"; did you mean {library}/{close[0]}?" if close else ""


def _names_of(library: str) -> list[str]:
    if library == "timm":
        import timm

        return list(timm.list_models())
    if library == "torchvision":
        import torchvision

        return list(torchvision.models.list_models())
    return []


@torch.no_grad()
def preparation(name: str, model: Any) -> dict[str, Any] | None:
    """How the model's library prepares its images, as `export` writes it; None if it does not say."""
    found, example = _statistics(name, model), guess_example(model)
    if found is None or example is None:
        return None
    images = example["pixel_values"] if isinstance(example, dict) else example
    try:
        _, number = unwrapped(model(images)).shape
    except Exception:  # what was guessed may be wrong
        return None
    named = getattr(getattr(model, "config", None), "id2label", {})
    return {
        "source": name,
        "task": "classification",
        "classes": [str(named.get(k, k)) for k in range(number)],
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
        import torchvision

        transforms: Any = torchvision.models.get_model_weights(rest).DEFAULT.transforms()
        return transforms.mean, transforms.std
    if library == "transformers":
        from transformers import AutoImageProcessor

        try:
            processor: Any = AutoImageProcessor.from_pretrained(rest)
        except (OSError, ValueError, ImportError):
            return None
        return processor.image_mean, processor.image_std
    return None
