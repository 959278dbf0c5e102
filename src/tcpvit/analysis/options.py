"""Options of models that only TCP models have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# What a standard ViT has no choice of.
TCP_OPTIONS = ("tube", "transform", "attention", "activation_domain", "coupling", "patch_embed")


def without_tcp_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options without those that a standard model has no choice of, in the parts of a model too.

    >>> without_tcp_options({"num_classes": 3, "backbone": {"depth": 8, "attention": "joint"}})
    {'num_classes': 3, 'backbone': {'depth': 8}}
    """
    kept = {key: value for key, value in options.items() if key not in TCP_OPTIONS}
    return {key: without_tcp_options(value) if isinstance(value, Mapping) else value for key, value in kept.items()}
