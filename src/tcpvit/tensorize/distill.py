"""Distillation: a converted model learns from the one it was made of, and wins back what the projection lost.

The student is trained by the training engine as any model is. While it looks at pictures the teacher looks at the same
ones, and the loss has two more parts: the Kullback-Leibler divergence of its softened predictions from the teacher's,
and the distance of its hidden states from the teacher's, relative to their size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tcpvit.data import Splits
from tcpvit.training import Classification, Recipe, Result, engine
from tcpvit.training.build import load_splits
from tcpvit.training.progress import Silent
from tcpvit.training.recipe import ModelRecipe
from tcpvit.training.run import RunFolder


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
    overwrite: bool = False,
    report: Silent | None = None,
) -> Result:
    """Train `student` to do what `teacher` does, and keep everything in `folder`, as `tcpvit train` does.

    A run of the same recipe that was interrupted in `folder` is gone on with.

    Args:
        teacher: a model that gives logits for pictures; it is not changed.
        student: the model to train, as `tensorize_` made it of a copy of the teacher.
        data: the pictures, a set by name or its splits.
        folder: of the run; `folder/best` is for `tcpvit.from_pretrained`.
        recipe: how to train; its data are replaced by `data`, its model by `student`.
        temperature: by which logits are divided before they are compared.
        hard: the share of the labels in the loss of the predictions; the rest is the teacher's.
        features: the weight of the loss of the hidden states; 0 leaves it out.
        layers: the modules whose outputs are compared, by name in both models; by default the blocks, as far as their
            outputs have the same shape.
        overwrite: replace a run that is in the folder.
        report: what shows the progress.
    """
    if not 0 <= hard <= 1 or temperature <= 0 or features < 0:
        raise ValueError(
            f"hard lies in [0, 1], temperature is positive and features not negative, got hard={hard}, "
            f"temperature={temperature}, features={features}"
        )
    recipe = recipe or Recipe()
    if isinstance(data, str):
        recipe = replace(recipe, data=replace(recipe.data, name=data))
        data = load_splits(recipe.data)
    recipe = replace(recipe, model=ModelRecipe(f"distilled {type(student).__name__}"))
    if data.train.task != "classification":
        raise ValueError(f"distillation compares class predictions, but {data.name} has {data.train.task} targets")
    if not any(p.requires_grad for p in student.parameters()):
        student.requires_grad_(True)  # a copy of averaged weights is frozen
    names = (blocks_of(teacher, student) if layers is None else list(layers)) if features else []
    lesson = Lesson(temperature, hard, features, asked=layers is not None)
    task = DistilledClassification(len(data.train.classes), lesson=lesson)
    with lesson.given_by(teacher, student, names):
        run = RunFolder(folder)
        if run.exists and not overwrite and run.recipe() == recipe:
            result = engine.resume(folder, splits=data, model=student, task=task, report=report)
        else:
            result = engine.train(
                recipe, folder, splits=data, model=student, task=task, overwrite=overwrite, report=report
            )
    lesson.leave(result.model)
    return result


def blocks_of(teacher: nn.Module, student: nn.Module) -> list[str]:
    """The names of the blocks that both models have: the members of their longest list of modules."""
    lists = {name: m for name, m in student.named_modules() if isinstance(m, nn.ModuleList | nn.Sequential)}
    known = {name for name, _ in teacher.named_modules()}
    name = max(lists, key=lambda name: len(lists[name]), default=None)
    found = [f"{name}.{part}".lstrip(".") for part, _ in lists[name].named_children()] if name is not None else []
    return [name for name in found if name in known]


@dataclass
class Lesson:
    """What the teacher said about the pictures that the student is looking at."""

    temperature: float
    hard: float
    features: float
    asked: bool = True  # for these layers
    logits: Tensor | None = None
    hidden: dict[str, Tensor] = field(default_factory=dict)  # the teacher's
    distances: list[Tensor] = field(default_factory=list)  # of the student's
    hooks: list[Callable[..., None]] = field(default_factory=list)

    @contextmanager
    def given_by(self, teacher: nn.Module, student: nn.Module, layers: Sequence[str]) -> Iterator[None]:
        """Let the teacher look at what the student trains on.

        Plain functions are hooked in: copies of the student, as are made of averaged weights, share them.
        """

        def before(module: nn.Module, args: tuple[Any, ...]) -> None:
            if module.training:
                self.distances.clear()
                with torch.no_grad():
                    self.logits = teacher.to(args[0].device)(*args)

        handles = [student.register_forward_pre_hook(before)]
        for name in layers:
            handles.append(teacher.get_submodule(name).register_forward_hook(self._keep(name)))
            handles.append(student.get_submodule(name).register_forward_hook(self._compare(name)))
        self.hooks.append(before)
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
        """The loss of a batch of training, summed over its pictures; each lesson counts once."""
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


@dataclass(frozen=True)
class DistilledClassification(Classification):
    """Classification with a teacher; evaluation is by the labels alone."""

    lesson: Lesson | None = None

    def loss(self, logits: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """The loss of the labels and of the lesson, summed over the pictures."""
        by_labels = super().loss(logits, targets, smoothing)
        return by_labels if self.lesson is None else self.lesson.loss(logits, by_labels)


def _tensor(output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple | list) else output
