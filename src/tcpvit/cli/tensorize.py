"""The verb `tensorize` of the command line."""

from __future__ import annotations

import copy
import json as json_module
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from tcpvit.cli.show import display_for, show
from tcpvit.data import Splits
from tcpvit.files import check_writable, refuse_links, write_json
from tcpvit.inference import LoadedModel, load_model
from tcpvit.inference.calibration import calibration_inputs
from tcpvit.models import list_models, save_pretrained
from tcpvit.models.pretrained import CONFIG, WEIGHTS
from tcpvit.overrides import parse
from tcpvit.tables import Table, Written, percent
from tcpvit.tensorize.config import make_config
from tcpvit.tensorize.convert import tensorize_
from tcpvit.tensorize.origin import build, preparation
from tcpvit.tensorize.quality import compare
from tcpvit.tensorize.refine import refine as refine_model
from tcpvit.tensorize.report import Report
from tcpvit.training import Recipe, evaluate
from tcpvit.training.build import build_batches, find_device, load_splits
from tcpvit.training.distill import check_distilled, check_labels
from tcpvit.training.distill import distill as distil
from tcpvit.training.folder import RunFolder
from tcpvit.training.preprocessing import PREPROCESSING
from tcpvit.training.tasks import task_for


def tensorize(
    model: str,
    *,
    keep: float | None = None,
    calibrate: str | None = None,
    samples: int = 512,
    budget: Literal["parameters", "time"] | None = None,
    refine: float = 0.0,
    tube: int = 3,
    transform: str = "dct",
    init: Literal["project", "fresh"] = "project",
    mode: Literal["drop_in", "encoder"] = "drop_in",
    arrange: Literal["none", "inside", "all"] | None = None,
    convs: Literal["none", "pointwise", "patch", "all"] | None = None,
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
    """Convert a model to its c-product counterpart, or make a trained one smaller.

    With --keep and --calibrate a trained model is made smaller and still works: its layers are fitted to real inputs,
    under one budget, and both models are compared on inputs that were held out.
    The converted model goes to OUT, for `tcpvit eval`, `tcpvit predict` and `tcpvit.from_pretrained`. With --distill
    the converted model is first trained to imitate the original, and OUT is the folder of that run. If either is
    stopped, the same command goes on with it.

    Args:
        model: a preset, a run or saved model (a folder), timm/NAME, torchvision/NAME, transformers/REPOSITORY or
            sentence-transformers/NAME.
        keep: the share of the layers' weights to keep, as 0.5; the data decide what each layer gets of it.
        calibrate: real inputs to fit the layers to: a folder of images, a text file (one text a line) or a set.
        samples: how many inputs to fit to; a quarter as many judge the result.
        budget: what --keep is a share of, parameters or measured time; by default parameters.
        refine: minutes of training on the same inputs, without labels.
        tube: the tube length C; layers whose widths it does not divide are left.
        transform: the tube transform, as dct or haar.
        init: project the weights that are there, or draw them anew.
        mode: replace layer by layer, or take the whole encoder into the hat domain.
        arrange: reorder features before projecting, inside MLPs and heads, or also along the residual stream; by
            default inside.
        convs: convert convolutions too, of pixels or of patches; by default none.
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
        tcpvit tensorize runs/std --keep 0.5 --calibrate cifar10 --out runs/std-half
        tcpvit tensorize timm/vit_tiny_patch16_224 --tube 3
        tcpvit tensorize timm/deit_small_patch16_224 --option pretrained=true --tube 4 --out deit-tube4
        tcpvit tensorize timm/deit_tiny_patch16_224 --mode encoder
        tcpvit tensorize runs/std --tube 4 --distill cifar10 --set schedule.epochs=10 --out runs/std-tube4
    """
    layers = {
        "arrange": arrange,
        "convs": convs,
        "include": include,
        "exclude": exclude,
        "keep": keep,
        "budget": budget,
    }
    switches = {"heads": heads, "strict": strict}
    given = {
        name: value for name, value in (layers | switches).items() if value
    }  # a method refuses what it has no use for
    config = make_config(options={"mode": mode, "tube": tube, "transform": transform, "init": init, **given})
    _check_calibration(keep, calibrate, samples, refine)
    if distill is not None and out is None:
        raise ValueError("--distill trains the model, which takes a folder to keep it in; add --out FOLDER")
    if set and distill is None:
        raise ValueError("--set changes the recipe of the distillation; add --distill DATASET")
    options = dict(parse(option))
    recipe = Recipe(data=replace(Recipe().data, name=distill or Recipe().data.name)).override(set)
    about = {"original": model, "options": options, **config.to_dict()}
    splits = None
    if out is not None and Path(model).is_dir():
        original = Path(model).resolve()
        replaced = [original, original / "best", original / "last"] + [original.parent] * (distill is not None)
        if out.resolve() in replaced:
            raise ValueError(f"--out {out} holds the original, which would be replaced; choose another --out")
    if out is not None:
        check_writable(out / CONFIG)
    if distill is not None and out is not None:
        splits = _images(recipe, out, about, overwrite)
    elif out is not None and RunFolder(out).exists:
        raise ValueError(f"{out} holds a run, which a saved model would lie beside; choose another --out")
    elif out is not None:
        refuse_links(out, (CONFIG, WEIGHTS, PREPROCESSING))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)  # a repeated command has the same model, also where that is drawn
        trained = _find(model, options)
        if splits is not None:
            splits = _fitting(trained, splits)
        inputs = None if calibrate is None else calibration_inputs(trained, calibrate, samples)
        teacher = copy.deepcopy(trained.model) if splits is not None or inputs is not None else None
        display = display_for(quiet=quiet, json=json)
        fitted_to = None if inputs is None else inputs.fitting
        resume = None if fitted_to is None or out is None else out / "calibration"
        report = tensorize_(trained.model, config, calibrate=fitted_to, resume=resume, progress=display)
    comparison = None
    if teacher is not None and inputs is not None:
        if refine:
            refine_model(teacher, trained.model, inputs.fitting, minutes=refine, progress=display)
        comparison = compare(teacher, trained.model, inputs.held_out, inputs.labels)
    if not json and not quiet:
        show([report.table(), *([comparison.table()] if comparison else [])])
    found: dict[str, float] = {}
    if teacher is not None and splits is not None and out is not None:
        display = display_for(quiet=quiet, json=json)
        found = _win_back(
            teacher, trained.model, splits, out, recipe=recipe, about=about, overwrite=overwrite, progress=display
        )
    elif out is not None:
        _save(trained, out)
    if json:
        compared = {"comparison": asdict(comparison)} if comparison else {}
        print(json_module.dumps({**report.to_dict(), **compared, **({"top1": found} if found else {})}, indent=2))
    elif found:
        show([_top1_table(found, f"{distill}; the model is in {out}/best")])
    return report


def _check_calibration(keep: float | None, calibrate: str | None, samples: int, refine: float) -> None:
    if keep is not None and calibrate is None:
        raise ValueError(
            "--keep needs inputs that decide what each layer keeps: --calibrate FOLDER, TEXTFILE or DATASET"
        )
    if calibrate is not None and keep is None:
        raise ValueError("--calibrate fits layers within a share of the weights; name it, as --keep 0.5")
    if samples < 8:
        raise ValueError(f"--samples is at least 8, got {samples}")
    if refine < 0 or (refine and calibrate is None):
        raise ValueError("--refine takes minutes above 0, and inputs to train on; add --keep and --calibrate")


def _images(recipe: Recipe, out: Path, about: dict[str, Any], overwrite: bool) -> Splits:
    """The images to learn from; what can be wrong is said before the conversion, which may take minutes."""
    if not overwrite:
        check_distilled(out, recipe, about)
    find_device(recipe)
    splits = load_splits(recipe.data)
    check_labels(splits)
    return splits


def _find(name: str, options: dict[str, Any]) -> LoadedModel:
    """The model that a user means."""
    if Path(name).is_dir() or (name in list_models() and not options):
        if options:
            raise ValueError(f"--option is for models that are built anew, {name} is a folder")
        return load_model(name)
    model = build(name, **options).eval()
    return LoadedModel(name, model, preprocessing=preparation(name, model))


def _fitting(trained: LoadedModel, splits: Splits) -> Splits:
    """The images as the original knows them, if it takes them at all."""
    library = "tcpvit" if trained.name in list_models() else trained.name.partition("/")[0]
    key = {"tcpvit": "img_size", "timm": "img_size", "torchvision": "image_size"}.get(library)
    size = splits.test.image_shape[1]
    logits = trained.try_on(splits.test, f", or build the model for them with --option {key}={size}" if key else "")
    task_for(splits.test).check_logits(logits, torch.zeros(1))
    return splits.map(trained.prepare)


def _save(trained: LoadedModel, out: Path) -> None:
    """The converted model, with how its images are prepared if that is known."""
    save_pretrained(trained.model, out)
    if trained.preprocessing is None:
        (out / PREPROCESSING).unlink(missing_ok=True)
    else:
        write_json(out / PREPROCESSING, trained.preprocessing)


def _win_back(
    teacher: nn.Module, student: nn.Module, splits: Splits, out: Path, *, recipe: Recipe, **options: Any
) -> dict[str, float]:
    """Distil: top-1 of the original, the converted and the distilled model on the test part."""
    device, task = find_device(recipe), task_for(splits.test)
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
