"""`tcpvit models`: the presets there are, and how large they are."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch

from tcpvit.analysis.parameters import count_parameters
from tcpvit.analysis.predict import predict_parameters
from tcpvit.analysis.report import encoder_of
from tcpvit.cli.show import show
from tcpvit.errors import did_you_mean
from tcpvit.layers.embed import by
from tcpvit.models.config import ViTConfig
from tcpvit.models.registry import create_model, list_models, model_config, twin_name
from tcpvit.models.segmenter import SegmenterConfig
from tcpvit.models.zoo import list_pretrained
from tcpvit.tables import Ratio, Table


def models(pattern: str = "*", *, json: bool = False, markdown: bool = False, latex: bool = False) -> Table:
    """List the models, with their size and the ratio to their dense twin.

    Args:
        pattern: show only the names that match this wildcard.
        json: print JSON.
        markdown: print Markdown.
        latex: print LaTeX (booktabs).

    Examples:
        tcpvit models
        tcpvit models 'tcp_*'
        tcpvit models '*_tiny_*' --json
    """
    names = list_models(pattern)
    if not names:
        raise ValueError(f"no model matches {pattern!r}{did_you_mean(pattern, list_models())}")
    columns = ["model", "image", "patch", "d", "C", "depth", "heads", "parameters", "of its Std twin"]
    table = Table("models", "Models", columns)
    for name in names:
        table.add(*_line(name))
    table.notes.append("d is the width of a slice, C the tube length, heads are counted in each slice.")
    with_weights = [name for name in names if name in list_pretrained()]
    if with_weights:
        table.notes.append(f"With trained weights, for `tcpvit predict` and `tcpvit eval`: {', '.join(with_weights)}.")
    show([table], json=json, markdown=markdown, latex=latex)
    return table


def _line(name: str) -> list[Any]:
    config = model_config(name)
    encoder, size, twin = encoder_of(config), _size(name), _std_twin(name)
    image = by((config.in_chans, *config.image_shape))
    heads = encoder.num_heads  # of a Swin, for each stage
    heads = ", ".join(map(str, heads)) if isinstance(heads, tuple) else heads
    patch = encoder.patch_size if isinstance(encoder.patch_size, int) else by(encoder.patch_size)
    shape = [patch, encoder.d, encoder.tube_length, encoder.depth, heads]
    return [name, image, *shape, size, Ratio(size / _size(twin)) if twin else None]


def _std_twin(name: str) -> str | None:
    """The Std twin of a TCP model, if it has one."""
    if model_config(name).kind == "tcp":
        with suppress(ValueError):
            return twin_name(name)
    return None


def _size(name: str) -> int:
    """Parameters, by formula where there is one."""
    config = model_config(name)
    if isinstance(config, ViTConfig | SegmenterConfig):
        return predict_parameters(config)
    with torch.device("meta"):  # no weights are drawn
        return count_parameters(create_model(name))
