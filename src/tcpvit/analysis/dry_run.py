"""A pass through a model that computes nothing: shapes alone go through, so that it costs neither time nor memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.nn.utils import parametrize

from tcpvit.models.pretrained import Pretrained

ImageSize = int | tuple[int, int]


def example_images(model: nn.Module, image_size: ImageSize | None, batch: int) -> Tensor:
    """A batch of the size a model is made for: one of ours, or timm's, which say it."""
    if batch < 1:
        raise ValueError(f"batch is at least 1, got {batch}")
    if isinstance(model, Pretrained):
        shape = (model.config.in_chans, *model.config.image_shape)
    elif cfg := getattr(model, "pretrained_cfg", None):
        embed = getattr(model, "patch_embed", None)  # it may have been built for other images than the weights were
        channels = getattr(getattr(embed, "proj", None), "in_channels", cfg["input_size"][0])
        shape = (channels, *(getattr(embed, "img_size", None) or cfg["input_size"][1:]))
    else:
        raise ValueError(f"the input of a {type(model).__name__} is not known; pass inputs=torch.zeros(1, 3, 224, 224)")
    if image_size is not None:
        shape = (shape[0], *((image_size, image_size) if isinstance(image_size, int) else image_size))
    like = next(model.parameters(), torch.empty(0))
    return torch.zeros(batch, *shape, dtype=like.dtype, device=like.device)


def dry_run(model: nn.Module, inputs: Tensor | tuple[Tensor, ...]) -> tuple[Any, list[Tensor]]:
    """`model(*inputs)` on tensors without data: the output, and the tensors that were there before the pass.

    The model keeps its own tensors. A parametrised weight is formed once.
    """
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    # A model may hold tensors that are neither parameters nor buffers.
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, parametrize.cached(), _without_fast_path():
        weights: dict[str, Tensor] = {name: mode.from_tensor(tensor) for name, tensor in named}
        given = tuple(mode.from_tensor(x) for x in (inputs if isinstance(inputs, tuple) else (inputs,)))
        return functional_call(model, weights, given), [*weights.values(), *given]


@contextmanager
def _without_fast_path() -> Iterator[None]:
    """torch's own encoder layers in eval mode are one opaque kernel, which no counter can see into."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)
