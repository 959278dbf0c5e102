"""Options that are short forms of recipe keys, as --lr of optimizer.lr, and names of runs that were given none."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tcpvit.data.folder import SIZE
from tcpvit.data.registry import FOLDER, FOLDERS, SCENE, is_scene
from tcpvit.models import SegmenterConfig, list_models, model_config
from tcpvit.training import Recipe
from tcpvit.validation import within

KEYS = {
    "model": "model.name",
    "pretrained": "model.pretrained",
    "data": "data.name",
    "epochs": "schedule.epochs",
    "lr": "optimizer.lr",
    "batch_size": "data.batch_size",
    "device": "device",
    "data_root": "data.root",
    "labels": "data.options.labels",
    "split": "data.options.split",
    "window": "data.image_size",
}


def overrides_of(recipe: Recipe, flags: Mapping[str, Any], words: Sequence[str]) -> list[str]:
    """The overrides of the options that were given (not None), then those of --set; the two may not disagree.

    Images of one's own folder get the size that the model is for, unless another is named.

    >>> overrides_of(Recipe(), {"lr": 0.1, "epochs": None}, ["seed=1"])
    ['optimizer.lr=0.1', 'seed=1']
    """
    given = {KEYS[name]: value for name, value in flags.items() if value is not None}
    short = short_words(flags)
    if given.get("data.name", recipe.data.name) != recipe.data.name:
        short.insert(0, "data.options={}")  # those of the recipe's set are not its own
    options = {key: f"--{name.replace('_', '-')}" for name, key in KEYS.items()}
    both = [*short, *words]
    for word, (key, value) in list(zip(both, recipe.resolve(both), strict=True))[len(short) :]:
        if key in given and value != _plain(given[key]):
            raise ValueError(f"{options[key]} {given[key]} and --set {word} disagree; give one of them")
    return [*both, *_size_of_model(recipe.override(both))]


def _size_of_model(recipe: Recipe) -> list[str]:
    """The image size of a classifier that is not for the size that folders have by default."""
    if not recipe.data.name.startswith(FOLDER) or recipe.data.image_size or recipe.model.name not in list_models():
        return []
    with within("model.options"):
        config = model_config(recipe.model.name, **recipe.model.options)
    is_square = config.ndim == 2 and len(set(config.image_shape)) == 1
    if isinstance(config, SegmenterConfig) or not is_square or config.image_shape[0] == SIZE:
        return []
    return [f"data.image_size={config.image_shape[0]}"]


def short_words(flags: Mapping[str, Any]) -> list[str]:
    """The options that were given as overrides; text is quoted, so that YAML takes any path as text.

    >>> short_words({"data_root": "a: b", "lr": None})
    ['data.root="a: b"']
    """
    return [f"{KEYS[name]}={json.dumps(_plain(value))}" for name, value in flags.items() if value is not None]


def named_set(data: str | None, scene: str | None, of_scene: Mapping[str, Any]) -> str | None:
    """The set that --data or --scene names; options `of_scene` are refused for other sets.

    >>> named_set(None, "field.hdr", {}), named_set("cifar10", None, {})
    ('scene:field.hdr', 'cifar10')
    """
    if scene is not None and data is not None:
        raise ValueError("--scene and --data both name a set; give one of them")
    given = [f"--{name}" for name, value in of_scene.items() if value is not None]
    if given and scene is None and data is not None and not is_scene(data):
        raise ValueError(f"{given[0]} is for scenes, but {data} is none; name one with --scene FILE")
    return data if scene is None else scene_name(scene)


def scene_name(scene: str) -> str:
    """The name of the set that a scene is: its own, or that of its file.

    >>> scene_name("materials"), scene_name("field.hdr")
    ('materials', 'scene:field.hdr')
    """
    return scene if is_scene(scene) else f"{SCENE}{scene}"


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | float) else str(value)


def key_for(option: str) -> str | None:
    """The recipe key that an unknown option such as --weight-decay means, if there is one."""
    try:
        ((key, _),) = Recipe().resolve([f"{option.lstrip('-').replace('-', '_')}=null"])
    except ValueError:
        return None
    return key


def default_name(recipe: str, model: str, data: str, *more: object) -> str:
    """The folder of a run, made of what determines it.

    >>> default_name("demo", "tcp_vit_cifar", "digits-on-photos", 0)
    'demo-tcp_vit_cifar-digits-on-photos-0'
    >>> default_name("recipes/mine.yaml", "vit_cifar", "folder:scans/day1")
    'mine-vit_cifar-day1'
    """
    for prefix in (*FOLDERS, SCENE):
        if data.startswith(prefix):
            data = Path(data.removeprefix(prefix)).resolve().name
    return "-".join(map(str, (Path(recipe).stem, model, data, *more)))
