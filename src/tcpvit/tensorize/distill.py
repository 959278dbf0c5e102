"""Distillation: a converted model learns from the one it was made of, and wins back what the projection lost.

The student is trained by the training engine as any model is. While it looks at images the teacher looks at the same
ones, and the loss has two more parts: the Kullback-Leibler divergence of its softened predictions from the teacher's,
and the distance of its hidden states from the teacher's, relative to their size.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tcpvit.data import Splits
from tcpvit.layers.linear import TubalLinear
from tcpvit.models.pretrained import ENCODER_NOTE
from tcpvit.progress import Progress, RunSummary
from tcpvit.tensorize.encoder import HatEncoder
from tcpvit.training import Classification, Recipe, Result, engine
from tcpvit.training.build import load_splits
from tcpvit.training.evaluation import unwrapped
from tcpvit.training.recipe import ModelRecipe
from tcpvit.training.run import RunFolder
from tcpvit.training.same import check_same
from tcpvit.training.state import Row, State

MEMORY = "distillation.json"  # in the folder of a run: what its recipe does not know, as whose student it is


def distill(
    teacher: nn.Module,
    student: nn.Module,
    data: str | Splits,
    folder: str | Path,
    *,
    recipe: Recipe | None = None,
    temperature: float = 2.0,
    hard: float = 0.3,
    features: float = 1.0,
    layers: Sequence[str] | None = None,
    about: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Result:
    """Train `student` to do what `teacher` does, and keep everything in `folder`, as `tcpvit train` does.

    A run of the same recipe, teacher and student that was interrupted in `folder` is gone on with.

    Args:
        teacher: a model that gives logits for images; it is not changed.
        student: the model to train, as `tensorize_` made it of a copy of the teacher.
        data: the images, a set by name or its splits.
        folder: of the run; `folder/best` is for `tcpvit.from_pretrained`.
        recipe: how to train; its data are replaced by `data`, its model by `student`.
        temperature: by which logits are divided before they are compared.
        hard: the share of the labels in the loss of the predictions; the rest is the teacher's.
        features: the weight of the loss of the hidden states; 0 leaves it out.
        layers: the modules whose outputs are compared, by name in both models; by default the blocks, as far as their
            outputs have the same shape, or the end of an encoder in the hat domain.
        about: what the run shall remember besides, JSON-ready, as how the student was made; it is not gone on with if
            that has changed.
        overwrite: replace a run that is in the folder.
        progress: what shows the progress.
    """
    if not 0 <= hard <= 1 or temperature <= 0 or features < 0:
        raise ValueError(
            f"hard lies in [0, 1], temperature is positive and features not negative, got hard={hard}, "
            f"temperature={temperature}, features={features}"
        )
    if teacher is student:
        raise ValueError("teacher and student are the same model; convert a copy: student = copy.deepcopy(teacher)")
    recipe = recipe or Recipe()
    if isinstance(data, str):
        recipe = replace(recipe, data=replace(recipe.data, name=data))
        data = load_splits(recipe.data)
    recipe = replace(recipe, model=ModelRecipe(f"distilled {type(student).__name__}"))
    check_labels(data)
    if not any(p.requires_grad for p in student.parameters()):
        student.requires_grad_(True)  # a copy of averaged weights is frozen
    pairs = _pairs(teacher, student, layers) if features else {}
    lesson = Lesson(temperature, hard, features, asked=layers is not None)
    settings = {"temperature": temperature, "hard": hard, "features": features, "layers": list(pairs)}
    models = {"weights of the teacher": fingerprint(teacher), "form of the student": form_of(student)}
    memory = {**(about or {}), **settings, "images": data.name, **models}
    task = DistilledClassification(len(data.train.classes), lesson=lesson)
    run = RunFolder(folder)
    progress = Keeper(progress or Progress(), run, memory)
    if not overwrite:
        check_distilled(folder, recipe, memory)
    with lesson.given_by(teacher, student, pairs):
        if run.exists and not overwrite:
            result = engine.resume(folder, splits=data, model=student, task=task, progress=progress)
        else:
            result = engine.train(
                recipe, folder, splits=data, model=student, task=task, overwrite=overwrite, progress=progress
            )
    lesson.leave(result.model)
    return result


def check_labels(data: Splits) -> None:
    """The images have classes to be compared."""
    if data.train.task != "classification":
        raise ValueError(f"distillation compares class predictions, but {data.name} has {data.train.task} targets")


def check_distilled(folder: str | Path, recipe: Recipe, memory: Mapping[str, Any]) -> None:
    """A run that lies in `folder` is the one asked for, as far as `memory` goes; its model is known by that alone."""
    run = RunFolder(folder)
    if not run.exists:
        return
    advice = "replace it with --overwrite (overwrite=True), or choose another --out"
    if not (run.path / MEMORY).is_file():
        raise ValueError(f"{run} holds a run that does not say what was distilled; {advice}")
    remembered = json.loads((run.path / MEMORY).read_text(encoding="utf-8"))
    now = json.loads(json.dumps({**memory, "model": None}))
    was = {**{key: remembered.get(key) for key in memory}, "model": None}
    check_same(recipe, folder, was=was, now=now, advice=advice)


def fingerprint(model: nn.Module) -> str:
    """A word that stands for the model's weights.

    >>> fingerprint(nn.Linear(2, 2)) == fingerprint(nn.Linear(2, 2))
    False
    """
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()[:16]


def form_of(student: nn.Module) -> str:
    """A word that stands for what was converted and how, without the weights: those of a projection vary in rounding.

    >>> form_of(TubalLinear(6, 6, 3, "dct")) == form_of(TubalLinear(6, 6, 3, "haar"))
    False
    """
    shapes = {name: list(tensor.shape) for name, tensor in student.state_dict().items()}
    layers = {name: [m.tube, m.transform.name] for name, m in student.named_modules() if isinstance(m, TubalLinear)}
    text = json.dumps([shapes, layers, getattr(student, ENCODER_NOTE, None)], default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _pairs(teacher: nn.Module, student: nn.Module, layers: Sequence[str] | None) -> dict[str, str]:
    """The layers whose outputs are compared: those of the student, with those of the teacher."""
    if layers is None:
        found = ends_of(teacher, student) or {name: name for name in blocks_of(teacher, student)}
        if not found:
            warnings.warn(
                "teacher and student have no blocks of the same names, so that their hidden states are not compared; "
                "name layers, or take features=0",
                stacklevel=3,
            )
        return found
    for who, model in (("teacher", teacher), ("student", student)):
        known = {name for name, _ in model.named_modules()}
        for name in layers:
            if name not in known:
                raise ValueError(f"the {who} has no layer {name!r}; layers are modules that both models have by name")
    return {name: name for name in layers}


def ends_of(teacher: nn.Module, student: nn.Module) -> dict[str, str]:
    """The student's encoders in the hat domain, with the last of the teacher's blocks that each stands for."""
    theirs = dict(teacher.named_modules())
    found = {}
    for name in [name for name, module in student.named_modules() if isinstance(module, HatEncoder)]:
        holder = name.rpartition(".")[0]
        if isinstance(theirs.get(name), HatEncoder):
            found[name] = name
        for row in (name, holder):  # it stands in place of the blocks, or alone in their list
            blocks = theirs.get(row)
            if name not in found and isinstance(blocks, nn.ModuleList | nn.Sequential) and len(blocks):
                found[name] = f"{row}.{list(blocks._modules)[-1]}".lstrip(".")
    return found


def blocks_of(teacher: nn.Module, student: nn.Module) -> list[str]:
    """The names of the blocks that both models have: the members of their longest list of modules."""
    lists = {name: m for name, m in student.named_modules() if isinstance(m, nn.ModuleList | nn.Sequential)}
    known = {name for name, _ in teacher.named_modules()}
    name = max(lists, key=lambda name: len(lists[name]), default=None)
    found = [f"{name}.{part}".lstrip(".") for part, _ in lists[name].named_children()] if name is not None else []
    return [name for name in found if name in known]


@dataclass
class Lesson:
    """What the teacher said about the images that the student is looking at."""

    temperature: float
    hard: float
    features: float
    asked: bool = True  # for these layers
    logits: Tensor | None = None
    hidden: dict[str, Tensor] = field(default_factory=dict)  # the teacher's
    distances: list[Tensor] = field(default_factory=list)  # of the student's
    hooks: list[Callable[..., Any]] = field(default_factory=list)

    @contextmanager
    def given_by(self, teacher: nn.Module, student: nn.Module, layers: Mapping[str, str]) -> Iterator[None]:
        """Let the teacher look at what the student trains on; `layers` are the student's, with the teacher's.

        The student gives plain logits meanwhile, whatever else it gives otherwise. Plain functions are hooked in:
        copies of the student, as are made of averaged weights, share them.
        """

        def before(module: nn.Module, args: tuple[Any, ...]) -> None:
            if module.training:
                self.distances.clear()
                with torch.no_grad():
                    self.logits = unwrapped(teacher.to(args[0].device)(*args))

        def after(module: nn.Module, args: tuple[Any, ...], output: Any) -> Tensor:
            return unwrapped(output)

        handles = [student.register_forward_pre_hook(before), student.register_forward_hook(after)]
        for ours, theirs in layers.items():
            handles.append(teacher.get_submodule(theirs).register_forward_hook(self._keep(ours)))
            handles.append(student.get_submodule(ours).register_forward_hook(self._compare(ours)))
        self.hooks += [before, after]
        was_training = teacher.training
        teacher.eval()
        try:
            yield
        finally:
            teacher.train(was_training)
            for handle in handles:
                handle.remove()

    def _keep(self, name: str) -> Callable[..., None]:
        def keep(module: nn.Module, args: Any, output: Any) -> None:
            self.hidden[name] = _tensor(output)

        return keep

    def _compare(self, name: str) -> Callable[..., None]:
        def compare(module: nn.Module, args: Any, output: Any) -> None:
            if module.training and name in self.hidden:
                theirs, ours = self.hidden.pop(name).float(), _tensor(output).float()
                if ours.shape != theirs.shape:
                    if self.asked:
                        shapes = f"{tuple(ours.shape)} and {tuple(theirs.shape)}"
                        raise ValueError(f"{name} gives shapes {shapes} in student and teacher; name other layers")
                    return
                self.distances.append((ours - theirs).square().mean() / theirs.square().mean().clamp_min(1e-12))

        self.hooks.append(compare)
        return compare

    def loss(self, logits: Tensor, by_labels: Tensor) -> Tensor:
        """The loss of a batch of training, summed over its images; each lesson counts once."""
        if self.logits is None:
            return by_labels
        (theirs, self.logits), T = (self.logits, None), self.temperature
        soft = F.kl_div(
            (logits.float() / T).log_softmax(-1), (theirs.float() / T).log_softmax(-1), reduction="sum", log_target=True
        )
        loss = self.hard * by_labels + (1 - self.hard) * T**2 * soft
        if self.distances:
            loss = loss + self.features * len(logits) * torch.stack(self.distances).mean()
        return loss

    def leave(self, model: nn.Module) -> None:
        """Take the hooks out of a copy of the student."""
        for module in model.modules():
            for hooks in (module._forward_hooks, module._forward_pre_hooks):
                for key in [key for key, hook in hooks.items() if hook in self.hooks]:
                    del hooks[key]


class Keeper(Progress):
    """Lets another display show, writes down what the run is about when it begins, and knows how to go on with it."""

    resume_command = "the same command"  # `tcpvit train` does not know the teacher

    def __init__(self, progress: Progress, run: RunFolder, memory: Mapping[str, Any]):
        self.progress, self.run, self.memory = progress, run, memory

    def start(self, summary: RunSummary, state: State) -> None:
        """The folder is this run's now."""
        self.run.write_json(MEMORY, self.memory)
        self.progress.start(summary, state)

    def step(self, state: State) -> None:
        """A step was made."""
        self.progress.step(state)

    def epoch(self, row: Row, is_best: bool) -> None:
        """An epoch is complete."""
        self.progress.epoch(row, is_best)

    def message(self, text: str) -> None:
        """Something the user must know."""
        self.progress.message(text)

    def stop(self) -> None:
        """The run ends, however."""
        self.progress.stop()


@dataclass(frozen=True)
class DistilledClassification(Classification):
    """Classification with a teacher; evaluation is by the labels alone."""

    lesson: Lesson | None = None

    def loss(self, logits: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """The loss of the labels and of the lesson, summed over the images."""
        by_labels = super().loss(logits, targets, smoothing)
        return by_labels if self.lesson is None else self.lesson.loss(logits, by_labels)


def _tensor(output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple | list) else output
