"""The registry: named presets, found by wildcard, built with overrides."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from tcpvit.algebra.transforms import Transform
from tcpvit.errors import did_you_mean
from tcpvit.layers.bands import GIVEN
from tcpvit.layers.transform import STORED
from tcpvit.models.config import override
from tcpvit.models.presets import PRESETS
from tcpvit.models.pretrained import architecture_of, from_pretrained
from tcpvit.models.size import check_size
from tcpvit.models.zoo import pretrained_folder


def register_model(name: str, config: Any) -> None:
    """Give a preset its name; its config is that of an architecture."""
    if name in PRESETS:
        raise ValueError(f"a model called {name!r} is registered already")
    architecture_of(config)  # or an error
    PRESETS[name] = config


def list_models(pattern: str = "*") -> list[str]:
    """Names of the presets that match a wildcard.

    >>> list_models("*_vit_cifar")
    ['std_vit_cifar', 'tcp_vit_cifar']
    """
    return sorted(fnmatch.filter(PRESETS, pattern))


def model_config(name: str, **options: Any) -> Any:
    """The config of a preset, with fields of it changed; a mapping changes fields of a config inside it.

    >>> model_config("tcp_vit_cifar", depth=2).depth
    2
    """
    if name not in PRESETS:
        raise ValueError(f"no model is called {name!r}{did_you_mean(name, list_models(), 'tcpvit models')}")
    return override(PRESETS[name], options)


def create_model(name: str, *, pretrained: bool = False, **options: Any) -> Any:
    """Build a preset; `options` are fields of its config.

    `transform` may also be a Transform or a matrix, and `band_basis` a matrix of rows such as principal axes.

    `pretrained` loads the weights that come with the package (see `list_pretrained`); of the options only `num_classes`
    goes with it, and means a new head.

    >>> create_model("tcp_vit_cifar", num_classes=5, attention="joint").head
    Linear(in_features=48, out_features=5, bias=True)
    """
    if pretrained:
        return _load_pretrained(name, **options)
    named, given = _name_matrices(options)
    config = model_config(name, **named)
    check_size(config)
    model: Any = architecture_of(config)
    return model(config, **given)


def _load_pretrained(name: str, num_classes: int | None = None, **options: Any) -> Any:
    if options:
        raise ValueError(f"trained weights fit the preset as it is, so leave out {', '.join(options)}")
    model = from_pretrained(pretrained_folder(name))
    if num_classes is not None and num_classes != model.config.num_classes:
        model.reset_classifier(num_classes)
    return model


def _name_matrices(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options with transforms and bases called by their names, and those that are given as objects."""
    named: dict[str, Any] = dict(options)
    given: dict[str, Any] = {}
    for key, value in options.items():
        if isinstance(value, Mapping):
            named[key], inner = _name_matrices(value)
            given = inner | given
        elif key == "transform" and isinstance(value, Transform | Tensor):
            label, given[key] = getattr(value, "name", "matrix"), value
            named[key] = label if label in (*STORED, "learned") else "matrix"
        elif key == "transform" and value in STORED:
            how = "algebra.data_driven(images) or the matrix itself" if value == "data_driven" else "the matrix itself"
            raise ValueError(f"transform={value!r} needs its matrix: pass {how}")
        elif key == "band_basis" and isinstance(value, Tensor):
            named[key], given[key] = GIVEN, value
        elif key == "band_basis" and value == GIVEN:
            raise ValueError(f"band_basis={GIVEN!r} needs its matrix: pass the principal axes, (kept, bands)")
    return named, given


def twin_name(name: str) -> str:
    """The Std twin of a TCP preset, and the other way round; a TCP variant has the twin of the preset it varies.

    >>> twin_name("tcp_vit_cifar"), twin_name("tcp_vit_pet_full")
    ('std_vit_cifar', 'std_vit_pet')
    """
    model_config(name)  # an error if there is no such model
    kind, _, rest = name.partition("_")
    twin = f"{'std' if kind == 'tcp' else 'tcp'}_{rest}"
    found = twin
    while kind == "tcp" and found not in PRESETS and "_" in found:
        found = found.rpartition("_")[0]
    if found not in PRESETS:
        raise ValueError(f"{name!r} has no twin {twin!r}{did_you_mean(twin, list_models())}")
    return found
