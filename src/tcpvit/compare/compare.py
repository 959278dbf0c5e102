"""Train a Std model and its TCP twin alike, and compare what came out.

What is done is kept: a comparison that was interrupted is resumed, and a complete run is not trained again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from tcpvit import training
from tcpvit.compare.comparison import Comparison, Model
from tcpvit.displays import default_display
from tcpvit.files import refuse_links
from tcpvit.models.config import without_tcp_options
from tcpvit.models.registry import model_config, twin_name
from tcpvit.progress import Progress
from tcpvit.training import Recipe
from tcpvit.training.folder import RunFolder, check_same

SHARED = ("model.name", "data.", "seed")  # what both models have in common, or they could not be compared


def compare(
    recipe: Recipe,
    folder: str | Path,
    *,
    set_std: Iterable[str] = (),
    set_tcp: Iterable[str] = (),
    seeds: int = 1,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Comparison:
    """Train the recipe's model and its twin in `folder`, with `seeds` seeds from the recipe's on, and compare them.

    `set_std` and `set_tcp` are `KEY=VALUE` changes for one of the two. The result is kept as comparison.json.
    """
    if seeds < 1:
        raise ValueError(f"seeds is at least 1, got {seeds}")
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise ValueError("a comparison is one process; train its runs with torchrun -m tcpvit train, it will use them")
    home, pair = Path(folder), twins(recipe, set_std, set_tcp)
    refuse_links(home, ("comparison.json", "figures"))
    folders = {side: [home / f"{side}-{recipe.seed + i}" for i in range(seeds)] for side in pair}
    todo = {folders[side][i]: replace(pair[side], seed=recipe.seed + i) for i in range(seeds) for side in pair}
    if not overwrite:
        for each, its_recipe in todo.items():  # all of them before the first hour of training
            check_same(its_recipe, each)
    for each, its_recipe in todo.items():
        train_once(its_recipe, each, overwrite=overwrite, progress=progress)
    comparison = Comparison.of(Model.read(folders["std"]), Model.read(folders["tcp"]))
    comparison.save(home / "comparison.json")
    return comparison


def twins(recipe: Recipe, set_std: Iterable[str] = (), set_tcp: Iterable[str] = ()) -> dict[str, Recipe]:
    """The recipe of the Std model and that of its TCP twin, by "std" and "tcp"; `recipe` names one of the two.

    >>> {side: of_side.model.name for side, of_side in twins(Recipe()).items()}
    {'std': 'std_vit_cifar', 'tcp': 'tcp_vit_cifar'}
    """
    name, options = recipe.model.name, recipe.model.options
    std, tcp = (twin_name(name), name) if name.startswith("tcp_") else (name, twin_name(name))
    plain = without_tcp_options(options)
    pair = {
        "std": replace(recipe, model=replace(recipe.model, name=std, options=plain)),
        "tcp": replace(recipe, model=replace(recipe.model, name=tcp)),
    }
    for side, words in (("std", set_std), ("tcp", set_tcp)):
        words = list(words)
        for word, (key, _) in zip(words, pair[side].resolve(words), strict=True):
            if key.startswith(SHARED):
                raise ValueError(f"both models have the same {key}; write --set {word}")
        pair[side] = pair[side].override(words)
        model = pair[side].model
        model_config(model.name, **model.options)  # what does not fit is said before training
    return pair


def train_once(recipe: Recipe, folder: Path, *, overwrite: bool = False, progress: Progress | None = None) -> None:
    """Train by the recipe unless `folder` holds that run already; one that is not complete is resumed."""
    run, progress = RunFolder(folder), progress or default_display()
    try:
        if overwrite or not run.exists:
            training.train(recipe, folder, overwrite=overwrite, progress=progress)
            return
        check_same(recipe, folder)
        if (folder / "result.json").is_file():
            progress.message(f"{folder} is complete and is not trained again")
            return
        root = recipe.data.root
        overrides = [] if root is None else [f"data.root={json.dumps(root)}"]
        training.resume(folder, overrides=overrides, progress=progress)
    except (KeyboardInterrupt, SystemExit):
        without = " without --overwrite" if overwrite else ""
        progress.message(f"the same command{without} resumes the whole comparison")
        raise
