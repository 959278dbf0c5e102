"""The verbs `train` and `eval` of the command line."""

from __future__ import annotations

import json as json_module
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from tcpvit.data import Splits
from tcpvit.models import list_models
from tcpvit.models.pretrained import CONFIG, WEIGHTS
from tcpvit.models.zoo import pretrained_folder
from tcpvit.tables import Table, show
from tcpvit.training import engine
from tcpvit.training.build import build_batches, check_fit, find_device, load_splits
from tcpvit.training.distributed import is_main, join
from tcpvit.training.evaluation import evaluate
from tcpvit.training.metrics import LABELS, AnyMetrics, to_json
from tcpvit.training.progress import percent, reporter
from tcpvit.training.recipe import Recipe, load_recipe
from tcpvit.training.run import RunFolder, folder_of
from tcpvit.training.tasks import task_for
from tcpvit.training.trained import Trained, Weights, load_trained

# The recipe for pictures of one's own.
RECIPES = {"classification": "tuned-classification", "segmentation": "paper-segmentation"}


def train(
    recipe: str | None = None,
    *,
    task: Literal["classification", "segmentation"] | None = None,
    data: str | None = None,
    set: list[str] = [],  # noqa: B006 (typer copies it)
    name: str | None = None,
    runs: Path = Path("runs"),
    resume: Path | None = None,
    overwrite: bool = False,
    data_root: Path | None = None,
    quiet: bool = False,
    json: bool = False,
) -> engine.Result:
    """Train a model by a recipe.

    Everything goes to RUNS/NAME: the resolved recipe, metrics.csv, checkpoints, the best and the last model. A run that
    was stopped or killed goes on with --resume and ends in the same weights.

    Args:
        recipe: paper-classification, paper-segmentation, tuned-classification, demo, or a YAML file.
        task: instead of a recipe, that of a task: tuned-classification or paper-segmentation.
        data: a set in place of the recipe's, as cifar10 or folder:PATH; it comes with its own options.
        set: KEY=VALUE, a change to the recipe; may be repeated.
        name: of the folder in RUNS; by default made of recipe, model, data and seed.
        runs: the folder of all runs.
        resume: the folder of a run to go on with, instead of a recipe.
        overwrite: replace a run of the same name.
        data_root: the folder that holds the sets, short for --set data.root=FOLDER.
        quiet: show nothing but the result.
        json: print the result as JSON on stdout, and the progress on stderr.

    Examples:
        tcpvit train demo
        tcpvit train demo --set model.name=std_vit_cifar --set schedule.epochs=3 --name short
        tcpvit train paper-classification --set data.name=cifar10 --set seed=1
        tcpvit train tuned-classification --data folder:pictures --set data.image_size=32
        tcpvit train --task segmentation --data folder:scans --set model.name=tcp_vit_pet_full
        tcpvit train --resume runs/short
        torchrun --nproc-per-node 2 --max-restarts 3 -m tcpvit train demo --name two
    """
    if [recipe, task, resume].count(None) != 2:
        raise ValueError("tell what to train: a recipe, as `tcpvit train demo`, a --task, or a run to --resume")
    report = reporter(quiet=quiet, json=json)
    set = [*_on(data), *set, *_at(data_root)]
    if resume is not None:
        if name is not None or overwrite:
            raise ValueError("--resume goes on in the folder it names; leave --name and --overwrite out")
        _check_resumable(resume)
        result = engine.resume(resume, overrides=set, report=report)
    else:
        recipe = recipe or RECIPES[str(task)]
        resolved = load_recipe(recipe, set)
        folder = runs / default_name(recipe, resolved) if name is None else folder_of(runs, name)
        result = engine.train(resolved, folder, overwrite=overwrite, report=report)
    if not is_main():
        return result
    if json:
        print(json_module.dumps(result.to_dict(), indent=2))
    else:
        show([result_table(result)])
    return result


def measure(
    target: str,
    *,
    dataset: str | None = None,
    part: Literal["test", "val", "train"] = "test",
    weights: Weights = "best",
    pretrained: bool = False,
    set: list[str] = [],  # noqa: B006
    data_root: Path | None = None,
    json: bool = False,
) -> dict[str, Any]:
    """Measure a trained model on a set.

    A run is measured on its own test part unless --dataset names another set. Pictures are normalised as in training.

    Args:
        target: a run folder, a folder written by save_pretrained, or a preset (untrained unless its weights come with
            the package).
        dataset: a set, as for training; needed unless TARGET is a run.
        part: which part of the set; a folder: without test/ and val/ has its held-out fifth for both.
        weights: of a run, those of its best or its last epoch.
        pretrained: TARGET is a preset, and an error if its weights do not come with the package.
        set: KEY=VALUE, a change to the data or device keys of the recipe; may be repeated.
        data_root: the folder that holds the sets, short for --set data.root=FOLDER.
        json: print everything as JSON, per-class numbers and the confusion matrix included.

    Examples:
        tcpvit eval runs/short
        tcpvit eval runs/short --dataset digits-on-photos --set data.options.level=hard
        tcpvit eval runs/short/best --dataset digits-on-photos --json
        tcpvit eval tcp_vit_cifar_plus --pretrained --dataset cifar10
    """
    if pretrained:
        pretrained_folder(target)
    trained = load_trained(target, weights)
    for word in set:
        if not word.startswith(("data.", "device=", "precision=")):
            raise ValueError(
                f"a trained model can be measured with other data.* keys, device or precision, got {word!r}"
            )
    recipe = _recipe_for(trained, dataset).override([*set, *_at(data_root)])
    with join() as world:
        device = world.place(find_device(recipe))
        with world.in_turn():
            splits = load_splits(recipe.data)
        data = trained.prepare({"train": splits.train, "val": splits.val, "test": splits.test}[part])
        if trained.config is not None:
            check_fit(trained.name, trained.config, data)
        else:
            trained.try_on(data)
        task = task_for(data.task, len(data.classes))
        batches = build_batches(recipe, data, device, training=False, rank=world.rank, world_size=world.size)
        begin = time.monotonic()
        metrics = evaluate(trained.model.to(device), batches, task, device, recipe.precision, world)
        seconds = time.monotonic() - begin
    found = {"model": trained.name, "data": data.source, "pictures": len(data), "seconds": round(seconds, 3)}
    found |= {"notes": _notes(trained, data.classes) + _other_pictures(target, recipe, splits), **to_json(metrics)}
    if not world.is_main:
        return found
    if json:
        print(json_module.dumps(found, indent=2))
    else:
        show(evaluation_tables(trained, metrics, data.classes, found))
    return found


def default_name(recipe: str, resolved: Recipe) -> str:
    """The name of a run that was given none.

    >>> default_name("demo", Recipe())
    'demo-tcp_vit_cifar-digits-on-photos-0'
    """
    data = resolved.data.name
    data = Path(data.removeprefix("folder:")).resolve().name if data.startswith("folder:") else data
    return f"{Path(recipe).stem}-{resolved.model.name}-{data}-{resolved.seed}"


def result_table(result: engine.Result) -> Table:
    """The end of a run, for people."""
    table = Table("result", "Result", ["", "", ""])
    named = LABELS[result.metric]
    column = f"val_{result.metric}"
    table.add(f"best validation {named}", percent(result.best[column]), f"epoch {result.best['epoch']}")
    table.add(f"last validation {named}", percent(result.last[column]), f"epoch {result.last['epoch']}")
    table.add(f"test {named}", percent(result.test[result.metric]), "with the best weights", strong=True)
    table.add("parameters", f"{result.parameters:,}", "")
    table.add("model", str(result.folder / "best"), "")
    table.notes += list(result.notes)
    return table


def evaluation_tables(
    trained: Trained, metrics: AnyMetrics, classes: tuple[str, ...], about: dict[str, Any]
) -> list[Table]:
    """The metrics, and those of each class if there are few enough to read."""
    table = Table("metrics", trained.name, ["metric", "value"])
    table.notes.append(f"{about['pictures']:,} pictures of {about['data']} in {about['seconds']:.1f} s")
    for name, value in metrics.summary().items():
        table.add(LABELS[name], f"{value:.4f}" if name == "loss" else percent(value))
    table.notes += about["notes"]
    by_class = metrics.by_class()
    if len(classes) > 20:
        return [table]
    detail = Table("by_class", "by class", ["class", *(LABELS[name] for name in by_class)])
    for row in zip(classes, *by_class.values(), strict=True):
        detail.add(row[0], *map(percent, row[1:]))
    return [table, detail]


def _check_resumable(folder: Path) -> None:
    """The run trained a preset; another model, as a distilled one, is known to the command that began the run."""
    name = RunFolder(folder).recipe_to_go_on().model.name
    if name not in list_models():
        raise ValueError(
            f"{folder} trains a {name}, which `tcpvit train` cannot build; go on by repeating the command that began "
            f"it (see {folder / 'environment.json'})"
        )
    if (folder / "last" / WEIGHTS).is_file() and not (folder / "last" / CONFIG).is_file():
        raise ValueError(
            f"{folder} trains a model that was built in Python; go on there with "
            "tcpvit.training.resume(FOLDER, model=MODEL), the model built as it was"
        )


def _on(data: str | None) -> list[str]:
    """The overrides that name another set; the options of the recipe's set are not its own."""
    return [] if data is None else [f"data.name={json_module.dumps(data)}", "data.options={}"]


def _at(data_root: Path | None) -> list[str]:
    """The override that says where the sets lie; quoted, so that YAML takes any path as text."""
    return [] if data_root is None else [f"data.root={json_module.dumps(str(data_root))}"]


def _recipe_for(trained: Trained, dataset: str | None) -> Recipe:
    """The recipe of the run, or a plain one; another set comes with its own options."""
    recipe = trained.recipe or Recipe()
    if dataset is None:
        if trained.recipe is None:
            raise ValueError(f"{trained.name} does not say what to measure it on; add --dataset NAME")
        return recipe
    if dataset == recipe.data.name:
        return recipe
    size = recipe.data.image_size or trained.side
    known = "fit" in (trained.preprocessing or {}) or (trained.recipe is not None and trained.config is not None)
    options = {"fit": trained.fit} if known and dataset.startswith("folder:") else {}
    return replace(recipe, data=replace(recipe.data, name=dataset, options=options, image_size=size))


def _other_pictures(target: str, recipe: Recipe, splits: Splits) -> list[str]:
    """A note if the set of the run is not what it was: what is held out now may have been trained on."""
    run = RunFolder(target)
    if not run.exists or run.recipe().data.name != recipe.data.name or not (run.path / "data.json").is_file():
        return []
    if run.read_json("data.json") == splits.indices():
        return []
    return [f"these are not the pictures of {run}/data.json: some may have been trained on"]


def _notes(trained: Trained, classes: tuple[str, ...]) -> list[str]:
    """What may make the numbers mean something else than they seem to."""
    if trained.preprocessing is None:
        return ["how this model's pictures were normalised is not known; the set's own statistics were used"]
    known = trained.preprocessing["classes"]
    if known != list(classes) and known != list(map(str, range(len(known)))):  # numbers are no names
        return [f"the model was trained on the classes {', '.join(known)}, this set has {', '.join(classes)}"]
    return []
