"""`tcpvit compare`: train a Std model and its TCP twin alike, and show what came out.

What is done is kept: a comparison that was interrupted goes on where it stood, a complete run is not trained again.
"""

from __future__ import annotations

import json as json_module
import os
import sys
from collections.abc import Iterable
from dataclasses import replace
from functools import reduce
from pathlib import Path

from tcpvit.analysis.options import without_tcp_options
from tcpvit.models.registry import model_config, twin_name
from tcpvit.studies.comparison import Comparison, Model
from tcpvit.tables import show
from tcpvit.training import Recipe, engine, load_recipe
from tcpvit.training.links import refuse_links
from tcpvit.training.progress import Silent, reporter
from tcpvit.training.recipe import known_keys
from tcpvit.training.run import RunFolder, folder_of

SHARED = ("model.name", "data.", "seed")  # what both models have in common, or they could not be compared
MAY_DIFFER = (*engine.FREE, "device")  # what a run may have been trained with and still be the one that is asked for


def compare(
    recipe: str = "demo",
    *,
    set: list[str] = [],  # noqa: B006 (typer copies it)
    set_std: list[str] = [],  # noqa: B006
    set_tcp: list[str] = [],  # noqa: B006
    seeds: int = 1,
    name: str | None = None,
    runs: Path = Path("runs"),
    overwrite: bool = False,
    data_root: Path | None = None,
    quiet: bool = False,
    json: bool = False,
) -> Comparison:
    """Train a Std model and its TCP twin on the same data and seed, and compare them.

    Prints the paper's table: the metric on the test part, parameters, their difference and ratio, and the time. Draws
    training curves, parameter bars and confusion matrices into RUNS/NAME/figures. The same command goes on where it was
    stopped; runs that are complete are not trained again.

    Args:
        recipe: paper-classification, paper-segmentation, tuned-classification, demo, or a YAML file.
        set: KEY=VALUE, a change to the recipe; may be repeated. model.name is one of the two, the other is its twin;
            options that only a TCP-ViT has reach only that one.
        set_std: KEY=VALUE, a change for the Std model alone, as its learning rate.
        set_tcp: KEY=VALUE, a change for the TCP model alone.
        seeds: how many seeds to train, from the recipe's on; the table then has means and deviations.
        name: of the folder in RUNS; by default made of recipe, models and data.
        runs: the folder of all runs.
        overwrite: train again what is there.
        data_root: the folder that holds the sets, short for --set data.root=FOLDER.
        quiet: show nothing but the result.
        json: print everything as JSON on stdout, and the progress on stderr.

    Examples:
        tcpvit compare
        tcpvit compare demo --set data.options.level=hard --set schedule.epochs=40 --name hard
        tcpvit compare demo --set model.options.attention=joint --name joint
        tcpvit compare paper-classification --set data.name=cifar10 --seeds 3
        tcpvit compare tuned-classification --set data.name=folder:pictures --set data.image_size=32
    """
    if seeds < 1:
        raise ValueError(f"seeds is at least 1, got {seeds}")
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise ValueError("a comparison is one process; train its runs with torchrun -m tcpvit train, it will use them")
    at = [] if data_root is None else [f"data.root={json_module.dumps(str(data_root))}"]
    resolved = load_recipe(recipe, [*set, *at])
    pair = twins(resolved, set_std, set_tcp)
    home = runs / default_name(recipe, resolved) if name is None else folder_of(runs, name)
    refuse_links(home, ("comparison.json", "figures"))
    folders = {side: [home / f"{side}-{resolved.seed + i}" for i in range(seeds)] for side in pair}
    todo = {folders[side][i]: replace(pair[side], seed=resolved.seed + i) for i in range(seeds) for side in pair}
    if not overwrite:
        for folder, its_recipe in todo.items():  # all of them before the first hour of training
            check_same(its_recipe, folder)
    for folder, its_recipe in todo.items():
        train_once(its_recipe, folder, overwrite=overwrite, report=reporter(quiet=quiet, json=json))
    comparison = Comparison.of(Model.read(folders["std"]), Model.read(folders["tcp"]))
    comparison.save(home / "comparison.json")
    figures = _draw(comparison, home / "figures")
    if json:
        print(json_module.dumps({**comparison.to_dict(), "figures": list(map(str, figures))}, indent=2))
    else:
        show([comparison.table()])
        for file in figures:
            if file.suffix == ".png":
                print(file)
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
        for word in words:
            if word.startswith(SHARED):
                raise ValueError(f"both models have the same {word.partition('=')[0]}; write --set {word}")
        pair[side] = pair[side].override(words)
        model = pair[side].model
        model_config(model.name, **model.options)  # what does not fit is said before training
    return pair


def train_once(recipe: Recipe, folder: Path, *, overwrite: bool = False, report: Silent | None = None) -> None:
    """Train by the recipe unless `folder` holds that run already; one that is not complete goes on."""
    run, report = RunFolder(folder), report or Silent()
    try:
        if overwrite or not run.exists:
            engine.train(recipe, folder, overwrite=overwrite, report=report)
            return
        check_same(recipe, folder)
        if (folder / "result.json").is_file():
            report.say(f"{folder} is complete and is not trained again")
            return
        root = recipe.data.root
        overrides = [] if root is None else [f"data.root={json_module.dumps(root)}"]
        engine.resume(folder, overrides=overrides, report=report)
    except (KeyboardInterrupt, SystemExit):
        without = " without --overwrite" if overwrite else ""
        print(f"tcpvit: the same command{without} goes on with the whole comparison", file=sys.stderr)
        raise


def check_same(recipe: Recipe, folder: Path) -> None:
    """A run of another recipe that lies in `folder` is no part of this comparison."""
    run = RunFolder(folder)
    if not run.exists:
        return
    there, here = run.recipe().to_dict(), recipe.to_dict()
    for key in known_keys():
        before, now = (reduce(lambda values, part: values[part], key.split("."), content) for content in (there, here))
        if before != now and key not in MAY_DIFFER:
            raise ValueError(
                f"{folder} was trained with {key}={before}, now it is {now}; replace it with --overwrite, or choose "
                f"another --name"
            )


def default_name(recipe: str, resolved: Recipe) -> str:
    """The name of a comparison that was given none.

    >>> default_name("demo", Recipe())
    'demo-vit_cifar-digits-on-photos'
    """
    data = resolved.data.name
    data = Path(data.removeprefix("folder:")).resolve().name if data.startswith("folder:") else data
    return f"{Path(recipe).stem}-{resolved.model.name.partition('_')[2]}-{data}"


def _draw(comparison: Comparison, folder: Path) -> list[Path]:
    try:
        return comparison.draw(folder)
    except ImportError as error:  # no reason to lose the table
        print(f"tcpvit: {error}", file=sys.stderr)
        return []
