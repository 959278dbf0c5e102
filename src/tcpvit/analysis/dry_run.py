"""A pass through a model that computes nothing: shapes alone go through, so that it costs neither time nor memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.nn.utils import parametrize

from tcpvit.memory import check_memory
from tcpvit.models.pretrained import Pretrained

ImageSize = int | tuple[int, ...]
Example = Tensor | dict[str, Tensor]


def example_images(model: nn.Module, image_size: ImageSize | None, batch: int) -> Example:
    """A batch of the size a model is made for; an error for a model that does not say it."""
    if batch < 1:
        raise ValueError(f"batch is at least 1, got {batch}")
    found = find_example(model, image_size, batch)
    if found is None:
        raise ValueError(f"the input of a {type(model).__name__} is not known; pass inputs=torch.zeros(1, 3, 224, 224)")
    return found


def find_example(model: Any, image_size: ImageSize | None = None, batch: int = 1) -> Example | None:
    """Images or sentences as a model of this library, timm, torchvision or transformers says that it takes; or None."""
    like = next(model.parameters(), torch.empty(0))
    name = getattr(model, "main_input_name", None)  # transformers calls inputs by name
    if name == "input_ids":
        length = min(128, getattr(model.config, "max_position_embeddings", None) or 128)
        return {name: torch.zeros(batch, length, dtype=torch.long, device=like.device)}
    shape = _image_shape(model) if name in (None, "pixel_values") else None
    if shape is None:
        return None
    size = shape[1:] if image_size is None else _sides(image_size, len(shape) - 1)
    needed = like.element_size() * batch * shape[0] * prod(size)
    check_memory(needed, f"a batch of {batch:,} images", "take a smaller batch")
    images = torch.zeros(batch, shape[0], *size, dtype=like.dtype, device=like.device)
    return images if name is None else {name: images}


def _image_shape(model: Any) -> tuple[int, ...] | None:
    """Channels, height and width of the images that a model is made for; of volumes channels and three sides."""
    config: Any = getattr(model, "config", None)
    if isinstance(model, Pretrained):  # ours
        return config.in_chans, *config.image_shape
    if timm := getattr(model, "pretrained_cfg", None):
        embed = getattr(model, "patch_embed", None)  # it may have been built for other images than the weights were
        channels, height, width = timm["input_size"]
        channels = getattr(getattr(embed, "proj", None), "in_channels", channels)
        return channels, *_sides(getattr(embed, "img_size", None) or (height, width))
    if hasattr(config, "num_channels"):
        return config.num_channels, *_sides(getattr(config, "image_size", 224))
    if type(model).__module__.startswith("torchvision."):
        return 3, *_sides(getattr(model, "image_size", 224))
    return None


def _sides(size: ImageSize, ndim: int = 2) -> tuple[int, ...]:
    return (size,) * ndim if isinstance(size, int) else tuple(size)


def dry_run(model: nn.Module, inputs: Example | tuple[Tensor, ...]) -> tuple[Any, list[Tensor]]:
    """`model(*inputs)` on tensors without data: the output, and the tensors that were there before the pass.

    Inputs in a dict are passed by name. The model keeps its own tensors. A parametrised weight is formed once.
    """
    named = {
        f"{prefix}.{name}" if prefix else name: tensor
        for prefix, module in model.named_modules()  # each once: torch would leave one that has two names without data
        for tensors in (module._parameters, module._buffers)
        for name, tensor in tensors.items()
        if tensor is not None
    }
    args = inputs if isinstance(inputs, tuple) else () if isinstance(inputs, dict) else (inputs,)
    # A model may hold tensors that are neither parameters nor buffers.
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, parametrize.cached(), _without_fast_path():
        weights: dict[str, Tensor] = {name: mode.from_tensor(tensor) for name, tensor in named.items()}
        given = tuple(mode.from_tensor(x) for x in args)
        by_name = {name: mode.from_tensor(x) for name, x in inputs.items()} if isinstance(inputs, dict) else {}
        outputs = functional_call(model, weights, given, by_name, tie_weights=False)
        return outputs, [*weights.values(), *given, *by_name.values()]


@contextmanager
def _without_fast_path() -> Iterator[None]:
    """torch's own encoder layers in eval mode are one opaque kernel, which no counter can see into."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)
