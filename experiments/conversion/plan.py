"""Is a converted model worth its teacher? A ViT of timm is trained, projected at C = 3 and distilled on CIFAR-10.

Beside it the same c-product model is trained from nothing: within the time that the teacher and the distillation took
together (`scratch`), and within that of the distillation alone (`scratch-short`), which is fair if there is a teacher
already. It is built in encoder mode with joint attention, norms over whole tokens and spatial activations:
the function of the drop-in layers that the projection gives, computed faster.
"""

from __future__ import annotations

import copy
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from experiments.classification.plan import FAST, FULL
from experiments.conversion.pages import write
from tcpvit import training
from tcpvit.compare.classification import measured as measured_by_labels
from tcpvit.compare.study import Finished, Planned, Record, Study
from tcpvit.models.pretrained import WEIGHTS, load_weights
from tcpvit.progress import Progress
from tcpvit.tensorize import Report, TensorizeConfig, distill, tensorize_
from tcpvit.tensorize.config import EncoderConfig
from tcpvit.tensorize.origin import build
from tcpvit.training import Recipe, evaluate
from tcpvit.training.build import build_batches, find_device, load_splits
from tcpvit.training.folder import RunFolder
from tcpvit.training.tasks import task_for

TIMM = "timm/deit_tiny_patch16_224"
OPTIONS: dict[str, Any] = {"img_size": 32, "patch_size": 4, "embed_dim": 72, "depth": 4, "num_heads": 3}
PROJECTION = TensorizeConfig(tube=3)
FRESH = EncoderConfig(tube=3, init="fresh", attention="joint", activation_domain="spatial", norm="token")
EPOCHS = {"teacher": 6, "distilled": 2, "scratch": 10, "scratch-short": 3}


def planned() -> list[Planned]:
    """The teacher before who learns from it."""
    return [
        Planned(
            "conversion",
            name,
            FULL,
            (f"model.name={_model_name(name)}", f"schedule.epochs={epochs}", *(() if name == "teacher" else FAST)),
        )
        for name, epochs in EPOCHS.items()
    ]


def _model_name(name: str) -> str:
    return {"teacher": TIMM, "distilled": "distilled VisionTransformer"}.get(name, f"{TIMM}, tensorised")


def train(run: Planned, recipe: Recipe, folder: Path, progress: Progress) -> None:
    """Train one of the models, or go on with it."""
    if (folder / "result.json").is_file():
        return
    if run.name == "distilled":
        teacher, student, _ = project(folder)
        distill(teacher, student, load_splits(recipe.data), folder, recipe=recipe, progress=progress)
        return
    model = fresh_model(recipe, converted=run.name != "teacher")
    if RunFolder(folder).exists:
        root = recipe.data.root
        overrides = [] if root is None else [f"data.root={json.dumps(root)}"]
        training.resume(folder, overrides=overrides, model=model, progress=progress)
    else:
        training.train(recipe, folder, model=model, progress=progress)


def fresh_model(recipe: Recipe, *, converted: bool) -> nn.Module:
    """The model of timm with weights drawn by the recipe's seed, or its c-product counterpart."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        model = build(TIMM, **OPTIONS, num_classes=10)
        if converted:
            tensorize_(model, FRESH)
    return model


def project(folder: Path) -> tuple[nn.Module, nn.Module, Report]:
    """The teacher that was trained beside `folder`, its projection, and the report of that."""
    learned = folder.parent / f"conversion-teacher-{folder.name.rpartition('-')[2]}"
    if not (learned / "result.json").is_file():
        # Busy if another process is training it, which is no reason not to go on with the next run.
        with RunFolder(learned).locked() if learned.is_dir() else nullcontext():
            raise ValueError(f"{learned} holds no teacher that is done; train it first with --only {learned.name}")
    teacher = fresh_model(RunFolder(learned).recipe(), converted=False).eval()
    load_weights(teacher, learned / "last" / WEIGHTS)
    student = copy.deepcopy(teacher)
    return teacher, student, tensorize_(student, PROJECTION)


def measured(finished: Finished) -> Record:
    """What any classification run has; of the distilled one also what the projection alone left."""
    found = {**measured_by_labels(finished), "timm": TIMM, "timm_options": OPTIONS}
    if not finished.folder.name.startswith("conversion-distilled"):
        return found
    _, student, report = project(finished.folder)
    return {
        **found,
        "energy_kept": report.energy,
        "top1_projected": _top1(student, RunFolder(finished.folder).recipe()),
    }


def _top1(model: nn.Module, recipe: Recipe) -> float:
    splits, device = load_splits(recipe.data), find_device(recipe)
    task = task_for(splits.test)
    batches = build_batches(recipe, splits.test, device, training=False)
    return float(evaluate(model.to(device).eval(), batches, task, device, recipe.precision).summary()["top1"])


STUDY = Study("conversion", planned, measured, write, train)
