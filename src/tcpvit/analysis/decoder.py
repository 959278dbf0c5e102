"""What the decoder of a segmenter costs, predicted from its config alone: parameters and FLOPs by stage."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import prod

from tcpvit.analysis.count import Work
from tcpvit.models.segmenter import SegmenterConfig

BATCH_NORM = 2  # operations an entry at inference: scale, shift

Size = tuple[int, ...]


def decoder_parameters(config: SegmenterConfig) -> dict[str, int]:
    """Parameters of each stage and of the 1×1 head.

    >>> from tcpvit.models import model_config
    >>> decoder_parameters(model_config("tcp_vit_pet_full"))["stage_1"]     # 3 × (64·32·9 + 32 + 64)
    55584
    """
    decoder, tube = config.decoder, _groups(config)
    mixed = tube**2 if decoder.slice_coupling.mix else 0
    found = {
        f"stage_{i}": sum(_filters(config, before, after)) + 3 * after + mixed  # filters; bias, scale and shift
        for i, (before, after) in enumerate(_channels(config), start=1)
    }
    found["decoder_head"] = (decoder.channels[-1] + 1) * config.num_classes
    if decoder.transform == "learned":
        found["decoder_transform"] = tube**2
    return found


def decoder_work(config: SegmenterConfig, size: Size) -> dict[str, Work]:
    """The work of one image whose sides the patch divides; enlarging is not counted.

    Mixing and transforms of feature maps are 1×1 convolutions between all channels.
    """
    decoder, tube = config.decoder, _groups(config)
    mix, spatial = decoder.slice_coupling.mix, decoder.activation_domain == "spatial"
    sizes = list(_sizes(config, size))
    entered = 2 * config.backbone.width**2 * prod(sizes[0]) if decoder.kind == "tcp" else 0
    formed = 2 * tube**3 if decoder.transform == "learned" else 0  # a learned Φ is the product of two C×C matrices
    found = {"decoder_transform": Work(transform=entered + formed)}
    for i, (before, after) in enumerate(_channels(config)):
        given, own = prod(sizes[max(i - 1, 0)]), prod(sizes[i])  # pixels before and after enlarging
        sliced, coupled = _filters(config, before, after)
        found[f"stage_{i + 1}"] = Work(
            products=2 * sliced * own,
            coupling=2 * coupled * own + (2 * before**2 * given if mix else 0),
            transform=2 * (before**2 * given * (i > 0) + after**2 * own) if spatial else 0,
            norm=BATCH_NORM * after * own,
            activation=after * own,
        )
    found["decoder_head"] = Work(products=2 * decoder.channels[-1] * config.num_classes * prod(sizes[-1]))
    return found


def _filters(config: SegmenterConfig, before: int, after: int) -> tuple[int, int]:
    """Weights of a stage's convolution, each a multiply-add for a pixel: of single slices, and across them."""
    tube, coupling = _groups(config), config.decoder.slice_coupling
    dense = tube * coupling.dense_features(after // tube)  # features that read all slices
    taps = 3**config.ndim  # of a filter
    low_rank = coupling.low_rank * (taps * before + after)
    return taps * before * (after - dense) // tube, taps * before * dense + low_rank


def _groups(config: SegmenterConfig) -> int:
    return config.decoder_tube if config.decoder.kind == "tcp" else 1


def _channels(config: SegmenterConfig) -> Iterator[tuple[int, int]]:
    return pairwise((config.backbone.width, *config.decoder.channels))


def _sizes(config: SegmenterConfig, size: Size) -> Iterator[Size]:
    """The size of each stage: the grid of patches, then twice the one before, at most the image's."""
    grid = config.backbone.grid_of(*size)
    for _ in config.decoder.channels:
        yield grid
        grid = tuple(min(2 * places, side) for places, side in zip(grid, size, strict=True))
