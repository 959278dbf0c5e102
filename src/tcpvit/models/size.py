"""How much memory a model takes, from its config alone: what no machine can hold is refused before it is built."""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import Any

import torch

from tcpvit.memory import check_memory, machine_memory

TRAINED = 4  # weights, gradients and two moments of AdamW
MODULES = 40_000  # bytes that the modules of a block take in Python, however narrow it is
SAVED = 8  # numbers for each feature of a token that a block keeps at least for the way back


def check_size(config: Any, *, batch: int = 0, available: int | None = None, where: str = "") -> None:
    """Raise if the weights, or a training step on a `batch`, need more memory than there is.

    The numbers are lower bounds, exact enough to tell a mistake from a model: `analysis` counts exactly.
    """
    if torch.get_default_device().type == "meta":
        return
    weights, features = weight_bytes(config), SAVED * feature_bytes(config)
    there: dict[str, Any] = {"available": available, "where": where}
    modules = MODULES * _blocks(config)
    check_memory(weights + modules, "this model", "choose a smaller width, depth, tube or image size", **there)
    if batch:
        fits = ((available or machine_memory() or 0) - TRAINED * weights) // features
        smaller = f"data.batch_size={fits} or a larger optimizer.accumulate" if fits > 0 else "a smaller model"
        needed = TRAINED * weights + batch * features
        check_memory(needed, f"a training step on {batch:,} images", f"choose {smaller}", **there)


def weight_bytes(config: Any) -> int:
    """Bytes of float32 weights, without what is small beside them.

    >>> from tcpvit.models.presets import PRESETS
    >>> weight_bytes(PRESETS["std_vit_base_patch16_224"]) / 4e6          # millions of numbers; analysis: 86.6
    86.4...
    """
    backbone = getattr(config, "backbone", config)
    tube, width, tokens = backbone.tube_length, backbone.width, _tokens(backbone)
    blocks = 0
    for i, depth in enumerate(getattr(backbone, "depths", [backbone.depth])):
        d = 2**i * backbone.d
        blocks += depth * int((4 + 2 * backbone.mlp_ratio) * tube * d * (d + backbone.slice_coupling.low_rank))
    shared = tube if backbone.slice_coupling.shared else 1
    pixels = backbone.pixels * (backbone.in_chans if getattr(backbone, "embedding", "linear") == "linear" else 1)
    numbers = blocks // shared + tube**2 + tokens * width + pixels * backbone.d + width * config.num_classes
    return 4 * (numbers + 3**backbone.ndim * sum(a * b for a, b in _stages(config)))


def feature_bytes(config: Any) -> int:
    """Bytes of one float32 feature map at the end of each block, of one image."""
    backbone = getattr(config, "backbone", config)
    if hasattr(backbone, "depths"):
        return 4 * sum(depth * _tokens(backbone) * backbone.width // 2**i for i, depth in enumerate(backbone.depths))
    return 4 * backbone.depth * _tokens(backbone) * backbone.width


def _blocks(config: Any) -> int:
    backbone = getattr(config, "backbone", config)
    return sum(getattr(backbone, "depths", [backbone.depth]))


def _tokens(config: Any) -> int:
    return prod(config.grid_of(*config.image_shape))


def _stages(config: Any) -> list[tuple[int, int]]:
    """Channels in and out of the convolutions of a decoder."""
    decoder = getattr(config, "decoder", None)
    if decoder is None:
        return []
    channels = (config.backbone.width, *decoder.channels)
    return [(a // (config.decoder_tube if decoder.kind == "tcp" else 1), b) for a, b in pairwise(channels)]
