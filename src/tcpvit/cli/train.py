"""`tcpvit train`: a recipe becomes a run."""

from __future__ import annotations

import json as json_module
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from tcpvit import training
from tcpvit.cli.shortcuts import default_name, named_set, overrides_of
from tcpvit.cli.show import display_for, show
from tcpvit.data.registry import is_scene
from tcpvit.data.volumes.folder import CLIPS, VOLUMES
from tcpvit.files import check_writable
from tcpvit.models import SegmenterConfig, list_models, model_config
from tcpvit.models.pretrained import CONFIG, WEIGHTS
from tcpvit.overrides import flat
from tcpvit.tables import Table
from tcpvit.training import Recipe, Result, load_recipe
from tcpvit.training.build import GIVEN
from tcpvit.training.distributed import is_main
from tcpvit.training.folder import RunFolder, folder_of
from tcpvit.training.recipe import key_docs

# The recipe for images of one's own.
RECIPES = {"classification": "tuned-classification", "segmentation": "paper-segmentation", "scene": "scene"}


def train(
    recipe: str | None = None,
    *,
    task: Literal["classification", "segmentation", "scene"] | None = None,
    model: str | None = None,
    pretrained: bool = False,
    data: str | None = None,
    scene: str | None = None,
    labels: Path | None = None,
    split: str | None = None,
    window: int | None = None,
    epochs: int | None = None,
    lr: float | None = None,
    batch_size: int | None = None,
    device: str | None = None,
    set: list[str] = [],  # noqa: B006 (typer copies it)
    keys: bool = False,
    name: str | None = None,
    runs: Path = Path("runs"),
    resume: Path | None = None,
    overwrite: bool = False,
    data_root: Path | None = None,
    quiet: bool = False,
    json: bool = False,
) -> Result | Table:
    """Train a model by a recipe.

    Everything goes to RUNS/NAME: the resolved recipe, metrics.csv, checkpoints, the best and the last model. A run that
    was stopped or killed is resumed with --resume and ends in the same weights.

    An option such as --lr is a short form of a recipe key. If --set changes the same key to another value, that is an
    error.

    Args:
        recipe: paper-classification, paper-segmentation, tuned-classification, cifar-classification,
            small-classification, scene, volumes, clips, demo, or a YAML file; it may be left out with --model, --data
            or --scene, which say what the task is.
        task: the task in place of a recipe: classification stands for tuned-classification, segmentation for
            paper-segmentation, scene for scene.
        model: a preset that `tcpvit models` lists, short for --set model.name=MODEL.
        pretrained: fine-tune the weights that come with the package, short for --set model.pretrained=true; for those
            of a run or of a saved model write --set model.pretrained=FOLDER. Positions are resampled to the size of the
            images, and other classes get a new head.
        data: a set in place of the recipe's, as cifar10 or folder:PATH; it comes with its own options.
        scene: a scene of many bands, a file or a name as indian-pines, short for --data scene:FILE.
        labels: the label map of the scene, a file; short for --set data.options.labels=FILE.
        split: split of the scene: disjoint, random, masks, or one that `tcpvit scene split` saved, short for
            --set data.options.split=SPLIT.
        window: width of the window around each pixel of the scene, short for --set data.image_size=WINDOW.
        epochs: short for --set schedule.epochs=EPOCHS.
        lr: the peak learning rate, short for --set optimizer.lr=LR.
        batch_size: short for --set data.batch_size=BATCH_SIZE.
        device: auto, cpu, cuda, cuda:1, mps; short for --set device=DEVICE.
        set: KEY=VALUE, a change to the recipe; may be repeated. A short key is enough where it means one thing, as lr,
            or an option of the model, as attention.
        keys: list all keys with their values in this recipe and their meaning, and train nothing.
        name: name of the run, a folder in RUNS; by default made of recipe, model, data and seed.
        runs: the folder of all runs.
        resume: the folder of a run to resume, instead of a recipe.
        overwrite: replace a run of the same name.
        data_root: the folder that holds the sets, short for --set data.root=FOLDER.
        quiet: show nothing but the result.
        json: print the result as JSON on stdout, and the progress on stderr.

    Examples:
        tcpvit train demo
        tcpvit train demo --model std_vit_cifar --epochs 3 --name short
        tcpvit train paper-classification --data cifar10 --set seed=1
        tcpvit train tuned-classification --data folder:images
        tcpvit train --model tcp_vit_cifar_plus --pretrained --data folder:images --epochs 5
        tcpvit train --task segmentation --data folder:scans --model tcp_vit_pet_full
        tcpvit train --scene cube.npy --labels labels.npy --split random --name field
        tcpvit train --resume runs/short
        tcpvit train --keys
        torchrun --nproc-per-node 2 --max-restarts 3 -m tcpvit train demo --name two
    """
    of_scene: dict[str, Any] = {"labels": labels, "split": split, "window": window}
    data = named_set(data, scene, of_scene)
    flags: dict[str, Any] = {"model": model, "pretrained": pretrained or None, "data": data, "epochs": epochs, "lr": lr}
    flags |= {"batch_size": batch_size, "device": device, "data_root": data_root, **of_scene}
    if [recipe, task, resume].count(None) < 2:
        raise ValueError("a recipe, a --task and a run to --resume exclude each other; give one of them")
    recipe = recipe or _recipe_for(task, model, data)
    if keys:
        return _show_keys(recipe or "defaults", Recipe() if recipe is None else load_recipe(recipe), flags, set, json)
    progress = display_for(quiet=quiet, json=json)
    if resume is not None:
        if name is not None or overwrite:
            raise ValueError("--resume goes on in the folder it names; leave --name and --overwrite out")
        _check_resumable(resume)
        overrides = overrides_of(RunFolder(resume).recipe_to_resume(), flags, set)
        result = training.resume(resume, overrides=overrides, progress=progress)
    elif recipe is not None:
        resolved = load_recipe(recipe, overrides_of(load_recipe(recipe), flags, set))
        chosen = default_name(recipe, resolved.model.name, resolved.data.name, resolved.seed)
        folder = runs / chosen if name is None else folder_of(runs, name)
        check_writable(folder / "config.yaml")
        result = training.train(resolved, folder, overwrite=overwrite, progress=progress)
    else:
        raise ValueError(
            "tell what to train: a recipe, as `tcpvit train demo`, a --model, --data, --scene or --task, or a run to "
            "--resume"
        )
    if is_main():
        show([result.table()], json=json, content=result.to_dict())
    return result


def keys_table(title: str, recipe: Recipe) -> Table:
    """All keys of a recipe with their values in this one and their meaning."""
    table = Table("keys", title, ["key", "value", "meaning"])
    values = recipe.to_dict()
    for key, meaning in key_docs().items():
        table.add(key, _written(flat(values).get(key, {})), meaning)
    return table


def _show_keys(name: str, recipe: Recipe, flags: Mapping[str, Any], words: list[str], json: bool) -> Table:
    resolved = recipe.override(overrides_of(recipe, flags, words))
    table = keys_table(f"Keys of a recipe and their values ({name})", resolved)
    if resolved.model.name in list_models():
        options = ", ".join(model_config(resolved.model.name).to_dict())
        table.notes.append(f"Options of {resolved.model.name}, as --set depth=2: {options}.")
    show([table], json=json)
    return table


def _written(value: Any) -> str:
    """As it would be written behind --set KEY=."""
    return value if isinstance(value, str) else json_module.dumps(value)


def _recipe_for(task: str | None, model: str | None, data: str | None) -> str | None:
    """The recipe of a task, or of the task of a model; None if nothing says what to train."""
    if task is None and model is None and data is None:
        return None
    config = None if model is None else model_config(model)
    if (data or "").startswith((VOLUMES, CLIPS)):
        return "volumes" if str(data).startswith(VOLUMES) else "clips"
    if data is None and len(getattr(config, "image_shape", ())) == 3:
        return "clips" if "video" in str(model) else "volumes"
    if (data is not None and is_scene(data)) or (data is None and getattr(config, "kept", None) is not None):
        return RECIPES[task or "scene"]
    return RECIPES[task or ("segmentation" if isinstance(config, SegmenterConfig) else "classification")]


def _check_resumable(folder: Path) -> None:
    """The run trained a preset; another model, as a distilled one, is known to the command that began the run."""
    name = RunFolder(folder).recipe_to_resume().model.name
    weights_alone = (folder / "last" / WEIGHTS).is_file() and not (folder / "last" / CONFIG).is_file()
    if name.startswith(GIVEN) or (weights_alone and name in list_models()):
        raise ValueError(
            f"{folder} trains a model that was built in Python; go on there with "
            "tcpvit.training.resume(FOLDER, model=MODEL), the model built as it was"
        )
    if name not in list_models():
        raise ValueError(
            f"{folder} trains a {name}, which `tcpvit train` cannot build; go on by repeating the command that began "
            f"it (see {folder / 'environment.json'})"
        )
