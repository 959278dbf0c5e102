"""The registry: named presets, found by wildcard, built with overrides."""

from __future__ import annotations

import fnmatch
from dataclasses import replace
from typing import Any

from torch import Tensor

from tcpvit.algebra.checks import nearest
from tcpvit.algebra.transforms import Transform
from tcpvit.layers.transform import STORED
from tcpvit.models.config import ViTConfig, check_keys
from tcpvit.models.presets import PRESETS
from tcpvit.models.vit import VisionTransformer


def register_model(name: str, config: ViTConfig) -> None:
    """Give a preset its name."""
    if name in PRESETS:
        raise ValueError(f"a model called {name!r} is registered already")
    PRESETS[name] = config


def list_models(pattern: str = "*") -> list[str]:
    """Names of the presets that match a wildcard.

    >>> list_models("*_vit_cifar")
    ['std_vit_cifar', 'tcp_vit_cifar']
    """
    return sorted(fnmatch.filter(PRESETS, pattern))


def model_config(name: str, **options: Any) -> ViTConfig:
    """The config of a preset, with options of `ViTConfig` changed.

    >>> model_config("tcp_vit_cifar", depth=2).depth
    2
    """
    if name not in PRESETS:
        raise ValueError(f"no model is called {name!r}{nearest(name, list_models())}")
    check_keys(options, ViTConfig)
    return replace(PRESETS[name], **options)


def create_model(name: str, **options: Any) -> VisionTransformer:
    """Build a preset; `options` are fields of `ViTConfig`, and `transform` may also be a Transform or a matrix.

    >>> create_model("tcp_vit_cifar", num_classes=5, attention="joint").head
    Linear(in_features=48, out_features=5, bias=True)
    """
    transform = options.get("transform")
    if isinstance(transform, str) and transform in STORED:
        raise ValueError(
            f"transform={transform!r} needs its matrix: pass algebra.{transform}(images) or the matrix itself"
        )
    if not isinstance(transform, Transform | Tensor):
        return VisionTransformer(model_config(name, **options))
    label = getattr(transform, "name", "matrix")
    stored = label if label in (*STORED, "learned") else "matrix"
    return VisionTransformer(model_config(name, **{**options, "transform": stored}), transform)


def twin_name(name: str) -> str:
    """The Std twin of a TCP preset, and the other way round.

    >>> twin_name("tcp_vit_cifar")
    'std_vit_cifar'
    """
    kind, _, rest = name.partition("_")
    twin = f"{'std' if kind == 'tcp' else 'tcp'}_{rest}"
    if twin not in PRESETS:
        raise ValueError(f"{name!r} has no twin {twin!r}{nearest(twin, list_models())}")
    return twin
