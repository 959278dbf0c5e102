"""The verb `tensorize` of the command line."""

from __future__ import annotations

import copy
import json as json_module
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
import yaml
from torch import nn

from tcpvit.data import Splits
from tcpvit.models import list_models, save_pretrained
from tcpvit.models.pretrained import CONFIG, WEIGHTS
from tcpvit.tables import Table, Written, show
from tcpvit.tensorize.config import TensorizeConfig
from tcpvit.tensorize.convert import tensorize_
from tcpvit.tensorize.distill import check_labels, check_same
from tcpvit.tensorize.distill import distill as distil
from tcpvit.tensorize.libraries import nearest_name, preparation
from tcpvit.tensorize.origin import build
from tcpvit.tensorize.report import Report
from tcpvit.training import Recipe, Trained, evaluate, load_trained
from tcpvit.training.build import build_batches, find_device, load_splits
from tcpvit.training.checkpoint import write_atomically
from tcpvit.training.export import PREPROCESSING
from tcpvit.training.links import refuse_links
from tcpvit.training.progress import percent, reporter
from tcpvit.training.run import RunFolder
from tcpvit.training.tasks import task_for


def tensorize(
    model: str,
    *,
    tube: int = 3,
    transform: str = "dct",
    init: Literal["project", "fresh"] = "project",
    mode: Literal["drop_in", "encoder"] = "drop_in",
    arrange: Literal["none", "inside", "all"] = "inside",
    convs: Literal["none", "pointwise", "patch", "all"] = "none",
    include: list[str] = [],  # noqa: B006 (typer copies it)
    exclude: list[str] = [],  # noqa: B006
    heads: bool = False,
    strict: bool = False,
    option: list[str] = [],  # noqa: B006
    out: Path | None = None,
    distill: str | None = None,
    set: list[str] = [],  # noqa: B006
    overwrite: bool = False,
    quiet: bool = False,
    json: bool = False,
) -> Report:
    """Convert a model to its c-product counterpart, say what became of each layer, and win accuracy back.

    The converted model goes to OUT, for `tcpvit eval`, `tcpvit predict` and `tcpvit.from_pretrained`. With --distill it
    learns from the original before, by the training engine, and OUT is the folder of that run. If it is stopped, the
    same command goes on with it.

    Args:
        model: a preset, a run or saved model (a folder), timm/NAME, torchvision/NAME or transformers/REPOSITORY.
        tube: the tube length C; layers whose widths it does not divide are left.
        transform: the tube transform, as dct or haar.
        init: project the weights that are there, or draw them anew.
        mode: replace layer by layer, or take the whole encoder into the hat domain.
        arrange: reorder features before projecting, inside MLPs and heads, or also along the residual stream.
        convs: convert convolutions too, of pixels or of patches.
        include: convert only layers whose names match this wildcard; may be repeated.
        exclude: leave layers whose names match this wildcard; may be repeated.
        heads: convert classifier heads too.
        strict: fail if the tube does not fit a layer.
        option: KEY=VALUE, an option for the library that builds MODEL, as pretrained=true; may be repeated.
        out: the folder to write to.
        distill: the set to learn from the original on, as cifar10 or folder:PATH.
        set: KEY=VALUE, a change to the recipe of the distillation, as schedule.epochs=10; may be repeated.
        overwrite: replace another distillation in OUT.
        quiet: show nothing but the results.
        json: print the report as JSON.

    Examples:
        tcpvit tensorize timm/vit_tiny_patch16_224 --tube 3
        tcpvit tensorize timm/deit_small_patch16_224 --option pretrained=true --tube 4 --out deit-tube4
        tcpvit tensorize timm/deit_tiny_patch16_224 --mode encoder
        tcpvit tensorize runs/std --tube 4 --distill cifar10 --set schedule.epochs=10 --out runs/std-tube4
    """
    config = TensorizeConfig(
        tube, transform, init, include, exclude, heads=heads, convs=convs, arrange=arrange, strict=strict, mode=mode
    )
    if distill is not None and out is None:
        raise ValueError("--distill trains the model, which takes a folder to keep it in; add --out FOLDER")
    if set and distill is None:
        raise ValueError("--set changes the recipe of the distillation; add --distill DATASET")
    options = _options(option)
    recipe = Recipe(data=replace(Recipe().data, name=distill or Recipe().data.name)).override(set)
    about = {"original": model, "options": options, **config.to_dict()}
    splits = None
    if out is not None and Path(model).is_dir():
        original = Path(model).resolve()
        replaced = [original, original / "best", original / "last"] + [original.parent] * (distill is not None)
        if out.resolve() in replaced:
            raise ValueError(f"--out {out} holds the original, which would be replaced; choose another --out")
    if distill is not None and out is not None:
        splits = _pictures(recipe, out, about, overwrite)
    elif out is not None and RunFolder(out).exists:
        raise ValueError(f"{out} holds a run, which a saved model would lie beside; choose another --out")
    elif out is not None:
        refuse_links(out, (CONFIG, WEIGHTS, PREPROCESSING))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)  # a repeated command has the same model, also where that is drawn
        trained = _find(model, options)
        if splits is not None:
            splits = _fitting(trained, splits)
        teacher = copy.deepcopy(trained.model) if splits is not None else None
        report = tensorize_(trained.model, config)
    if not json and not quiet:
        show([report.table()])
    found: dict[str, float] = {}
    if teacher is not None and splits is not None and out is not None:
        display = reporter(quiet=quiet, json=json)
        found = _win_back(
            teacher, trained.model, splits, out, recipe=recipe, about=about, overwrite=overwrite, report=display
        )
    elif out is not None:
        _save(trained, out)
    if json:
        print(json_module.dumps({**report.to_dict(), **({"top1": found} if found else {})}, indent=2))
    elif found:
        show([_top1_table(found, f"{distill}; the model is in {out}/best")])
    return report


def _options(words: Sequence[str]) -> dict[str, Any]:
    """KEY=VALUE words, with values as YAML reads them."""
    options: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise ValueError(f"--option is KEY=VALUE, as pretrained=true, got {word!r}")
        try:
            options[key] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ValueError(f"--option {key} should be a value as YAML writes it, got {value!r}") from error
    return options


def _pictures(recipe: Recipe, out: Path, about: dict[str, Any], overwrite: bool) -> Splits:
    """The pictures to learn from; what can be wrong is said before the conversion, which may take minutes."""
    if not overwrite:
        check_same(out, recipe, about)
    find_device(recipe)
    splits = load_splits(recipe.data)
    check_labels(splits)
    return splits


def _find(name: str, options: dict[str, Any]) -> Trained:
    """The model that a user means."""
    if Path(name).is_dir() or (name in list_models() and not options):
        if options:
            raise ValueError(f"--option is for models that are built anew, {name} is a folder")
        return load_trained(name)
    try:
        model = build(name, **options)
    except ValueError as error:
        raise ValueError(f"{error}{nearest_name(name)}") from error
    model.eval()
    return Trained(name, model, preprocessing=preparation(name, model))


def _fitting(trained: Trained, splits: Splits) -> Splits:
    """The pictures as the original knows them, if it takes them at all."""
    library = "tcpvit" if trained.name in list_models() else trained.name.partition("/")[0]
    key = {"tcpvit": "img_size", "timm": "img_size", "torchvision": "image_size"}.get(library)
    size = splits.test.image_shape[1]
    logits = trained.try_on(splits.test, f", or build the model for them with --option {key}={size}" if key else "")
    task_for(splits.test.task, len(splits.test.classes)).check_logits(logits, torch.zeros(1))
    return _prepared(trained, splits)


def _save(trained: Trained, out: Path) -> None:
    """The converted model, with how its pictures are prepared if that is known."""
    save_pretrained(trained.model, out)
    if trained.preprocessing is None:
        (out / PREPROCESSING).unlink(missing_ok=True)
    else:
        write_atomically(out / PREPROCESSING, (json_module.dumps(trained.preprocessing, indent=2) + "\n").encode())


def _win_back(
    teacher: nn.Module, student: nn.Module, splits: Splits, out: Path, *, recipe: Recipe, **options: Any
) -> dict[str, float]:
    """Distil: top-1 of the original, the converted and the distilled model on the test part."""
    device, task = find_device(recipe), task_for(splits.test.task, len(splits.test.classes))
    batches = build_batches(recipe, splits.test, device, training=False)

    def top1(model: nn.Module) -> float:
        return evaluate(model.to(device), batches, task, device, recipe.precision).summary()[task.metric]

    before = {"original": top1(teacher), "converted": top1(student)}
    result = distil(teacher, student, splits, out, recipe=recipe, **options)
    return {**before, "distilled": result.test[task.metric]}


def _top1_table(found: dict[str, float], note: str) -> Table:
    table = Table("distillation", "Top-1 on the test part", ["model", "top-1"], notes=[note])
    for name, value in found.items():
        table.add(name, Written(percent(value)), strong=name == "distilled")
    return table


def _prepared(trained: Trained, splits: Splits) -> Splits:
    """The pictures as the original knows them."""
    val = trained.prepare(splits.val)
    test = val if splits.test is splits.val else trained.prepare(splits.test)
    return replace(splits, train=trained.prepare(splits.train), val=val, test=test)
