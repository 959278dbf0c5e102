"""What a conversion saves in FLOPs, and where the dense form is the faster one all the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tcpvit.analysis import count_flops
from tcpvit.layers.linear import TubalLinear

Example = Tensor | tuple[Tensor, ...] | dict[str, Tensor] | Literal[False] | None

# Taking a feature through the transform moves memory, and takes as long as about this many FLOPs of a matrix product:
# for tubes of 2 to 24, widths of 48 to 384 and 800 tokens it lies between 40 and 190 on one core, and higher on two.
FLOPS_PER_FEATURE = 150


def faster_dense(layer: nn.Module) -> bool:
    """Whether the dense form of a drop-in computes faster: its slices save less than its transforms take.

    >>> faster_dense(TubalLinear(192, 192, tube=3)), faster_dense(TubalLinear(384, 384, tube=3))
    (True, False)
    """
    maps = [part for part in layer.modules() if isinstance(part, TubalLinear)]  # of an attention, several
    saved = sum(2 * m.in_features * m.out_features * (1 - 1 / m.tube) for m in maps)
    return saved < sum(FLOPS_PER_FEATURE * (m.in_features + m.out_features) for m in maps)


def count_or_none(model: nn.Module, example: Example = None) -> int | None:
    """FLOPs of a forward pass on the example, or on one that can be guessed; None where there is none."""
    if example is False:
        return None
    inputs = guess_example(model) if example is None else example
    if inputs is None:
        return None
    try:
        with _in_eval_mode(model):
            if isinstance(inputs, dict):
                return int(count_flops(_ByName(model, list(inputs)), tuple(inputs.values())))
            return int(count_flops(model, inputs))
    except Exception:
        if example is None:  # what was guessed may be wrong
            return None
        raise


def guess_example(model: nn.Module) -> Tensor | dict[str, Tensor] | None:
    """One image or sentence of the size that a model of timm, transformers, torchvision or this library takes."""
    like = next(model.parameters(), torch.empty(0))
    shape = _image_shape(model)
    if shape is not None:
        images = torch.zeros(1, *shape, dtype=like.dtype, device=like.device)
        return {"pixel_values": images} if hasattr(model, "main_input_name") else images
    if getattr(model, "main_input_name", None) == "input_ids":
        length = min(128, getattr(model.config, "max_position_embeddings", None) or 128)
        return {"input_ids": torch.zeros(1, length, dtype=torch.long, device=like.device)}
    return None


def _image_shape(model: Any) -> tuple[int, int, int] | None:
    """Channels, height and width of the images a model takes."""
    config, timm = getattr(model, "config", None), getattr(model, "pretrained_cfg", None)
    size = getattr(getattr(model, "patch_embed", None), "img_size", None)  # timm's, where it was built for another one
    if getattr(model, "main_input_name", "pixel_values") != "pixel_values":
        return None
    if config is not None and hasattr(config, "image_shape"):
        return config.in_chans, *config.image_shape
    if timm:
        channels, height, width = timm["input_size"]
        return (channels, *_pair(size)) if size else (channels, height, width)
    if config is not None and hasattr(config, "num_channels"):
        return config.num_channels, *_pair(getattr(config, "image_size", 224))
    if type(model).__module__.startswith("torchvision."):
        return 3, *_pair(getattr(model, "image_size", 224))
    return None


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[1])


class _ByName(nn.Module):
    """A model whose inputs have names, called with a tuple."""

    def __init__(self, model: nn.Module, names: list[str]):
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *values: Tensor) -> Any:
        return self.model(**dict(zip(self.names, values, strict=True)))


@contextmanager
def _in_eval_mode(model: nn.Module) -> Iterator[None]:
    """BatchNorm in training would not take one image."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
