"""Distillation: a student, such as a converted model, is trained to reproduce the predictions of its teacher.

The student is trained as any model is. In each training step the teacher sees the same images, and the loss has two
more terms: the Kullback-Leibler divergence of the student's softened predictions from the teacher's, and the distance
of its hidden states from the teacher's, relative to their size.
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
from tcpvit.displays import default_display
from tcpvit.layers.linear import TubalLinear
from tcpvit.models.pretrained import ENCODER_NOTE
from tcpvit.progress import Progress
from tcpvit.training.build import load_splits
from tcpvit.training.evaluation import unwrapped
from tcpvit.training.folder import DISTILLATION, RunFolder, check_same
from tcpvit.training.recipe import ModelRecipe, Recipe
from tcpvit.training.run import Result, resume, train
from tcpvit.training.tasks import Classification


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
    """Train `student` to reproduce `teacher`, and keep everything in `folder`, as `tcpvit train` does.

    An interrupted run of the same recipe, teacher and student in `folder` is resumed.

    Args:
        teacher: a model that gives logits for images; it is not changed.
        student: the model to train, for example made by `tensorize_` from a copy of the teacher.
        data: the images, a set by name or its splits.
        folder: of the run; `folder/best` is for `tcpvit.from_pretrained`.
        recipe: how to train; its data are replaced by `data`, its model by `student`.
        temperature: by which logits are divided before they are compared.
        hard: the weight of the labels in the loss of the predictions; the rest is the teacher's.
        features: the weight of the loss of the hidden states; 0 leaves it out.
        layers: the modules whose outputs are compared, by name in both models; by default the blocks, as far as their
            outputs have the same shape, or the end of an encoder that replaced them.
        about: JSON-ready facts to keep with the run, as how the student was made; if they have changed, the run is not
            resumed.
        overwrite: replace a run in the folder.
        progress: what shows the run, by default on stderr or in the notebook.
    """
    _check_arguments(teacher, student, temperature, hard, features)
    recipe = recipe or Recipe()
    if isinstance(data, str):
        recipe = replace(recipe, data=replace(recipe.data, name=data))
        data = load_splits(recipe.data)
    recipe = replace(recipe, model=ModelRecipe(f"distilled {type(student).__name__}"))
    check_labels(data)
    if not any(p.requires_grad for p in student.parameters()):
        student.requires_grad_(True)  # a copy of averaged weights is frozen
    pairs = _pairs(teacher, student, layers) if features else {}
    settings = {"temperature": temperature, "hard": hard, "features": features, "layers": list(pairs)}
    models = {"weights of the teacher": hash_weights(teacher), "form of the student": hash_structure(student)}
    facts = {**(about or {}), **settings, "images": data.name, **models}
    if not overwrite:
        check_distilled(folder, recipe, facts)
    loss = DistillationLoss(temperature, hard, features, strict=layers is not None)
    task = DistilledClassification(len(data.train.classes), distillation=loss)
    with loss.attached(teacher, student, pairs), _resumed_by_repeating(progress or default_display()) as shown:
        if RunFolder(folder).exists and not overwrite:
            result = resume(folder, splits=data, model=student, task=task, progress=shown)
        else:
            result = train(
                recipe,
                folder,
                splits=data,
                model=student,
                task=task,
                overwrite=overwrite,
                progress=shown,
                distillation=facts,
            )
    loss.detach(result.model)
    return result


def _check_arguments(teacher: nn.Module, student: nn.Module, temperature: float, hard: float, features: float) -> None:
    if not 0 <= hard <= 1 or temperature <= 0 or features < 0:
        raise ValueError(
            f"hard lies in [0, 1], temperature is positive and features not negative, got hard={hard}, "
            f"temperature={temperature}, features={features}"
        )
    if teacher is student:
        raise ValueError("teacher and student are the same model; convert a copy: student = copy.deepcopy(teacher)")


def check_labels(data: Splits) -> None:
    """Raise if the images have no classes to be compared."""
    if data.train.task != "classification":
        raise ValueError(f"distillation compares class predictions, but {data.name} has {data.train.task} targets")


def check_distilled(folder: str | Path, recipe: Recipe, facts: Mapping[str, Any]) -> None:
    """Raise if `folder` holds another run than the distillation of this recipe and these facts."""
    run = RunFolder(folder)
    if not run.exists:
        return
    advice = "replace it with --overwrite (overwrite=True), or choose another --out"
    if not (run.path / DISTILLATION).is_file():
        raise ValueError(f"{run} holds a run that does not say what was distilled; {advice}")
    saved = run.read_json(DISTILLATION)
    was = {**{key: saved.get(key) for key in facts}, "model": None}
    now = json.loads(json.dumps({**facts, "model": None}))
    check_same(recipe, folder, was=was, now=now, advice=advice)


@contextmanager
def _resumed_by_repeating(progress: Progress) -> Iterator[Progress]:
    """Let messages name the command that resumes the run: `tcpvit train --resume` does not know the teacher."""
    command, progress.resume_command = progress.resume_command, "the same command"
    try:
        yield progress
    finally:
        progress.resume_command = command


def hash_weights(model: nn.Module) -> str:
    """A hash of the model's weights.

    >>> hash_weights(nn.Linear(2, 2)) == hash_weights(nn.Linear(2, 2))
    False
    """
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()[:16]


def hash_structure(student: nn.Module) -> str:
    """A hash of what was converted and how, without the weights: those of a projection differ by rounding.

    >>> hash_structure(TubalLinear(6, 6, 3, "dct")) == hash_structure(TubalLinear(6, 6, 3, "haar"))
    False
    """
    shapes = {name: list(tensor.shape) for name, tensor in student.state_dict().items()}
    layers = {name: [m.tube, m.transform.name] for name, m in student.named_modules() if isinstance(m, TubalLinear)}
    text = json.dumps([shapes, layers, getattr(student, ENCODER_NOTE, None)], default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _pairs(teacher: nn.Module, student: nn.Module, layers: Sequence[str] | None) -> dict[str, str]:
    """The layers whose outputs are compared: those of the student, with those of the teacher."""
    if layers is None:
        found = encoder_pairs(teacher, student) or {name: name for name in common_blocks(teacher, student)}
        if not found:
            warnings.warn(
                "teacher and student have no blocks of the same names, so their hidden states are not compared; "
                "name layers, or use features=0",
                stacklevel=3,
            )
        return found
    for who, model in (("teacher", teacher), ("student", student)):
        known = {name for name, _ in model.named_modules()}
        for name in layers:
            if name not in known:
                raise ValueError(f"the {who} has no layer {name!r}; layers are modules that both models have by name")
    return {name: name for name in layers}


def encoder_pairs(teacher: nn.Module, student: nn.Module) -> dict[str, str]:
    """The student's encoders that replaced a list of blocks, with the last of the teacher's blocks in that list.

    Such an encoder has the attribute `replaces_blocks`: its own blocks are not those of the teacher, its output is.
    """
    in_teacher = dict(teacher.named_modules())
    found = {}
    for name in [name for name, module in student.named_modules() if getattr(module, "replaces_blocks", False)]:
        if getattr(in_teacher.get(name), "replaces_blocks", False):
            found[name] = name
            continue
        for place in (name.rpartition(".")[0], name):  # alone in the list of blocks, or instead of it
            blocks = in_teacher.get(place)
            if isinstance(blocks, nn.ModuleList | nn.Sequential) and len(blocks):
                found[name] = f"{place}.{list(blocks._modules)[-1]}".lstrip(".")
    return found


def common_blocks(teacher: nn.Module, student: nn.Module) -> list[str]:
    """The names of the blocks that both models have: the members of the student's longest list of modules."""
    lists = {name: m for name, m in student.named_modules() if isinstance(m, nn.ModuleList | nn.Sequential)}
    known = {name for name, _ in teacher.named_modules()}
    name = max(lists, key=lambda name: len(lists[name]), default=None)
    found = [f"{name}.{part}".lstrip(".") for part, _ in lists[name].named_children()] if name is not None else []
    return [name for name in found if name in known]


@dataclass
class DistillationLoss:
    """The loss of a student, from hooks that record what the teacher answers to the same images."""

    temperature: float
    hard: float
    features: float
    strict: bool = True  # whether outputs of different shapes are an error, or are left out
    logits: Tensor | None = None  # the teacher's
    hidden: dict[str, Tensor] = field(default_factory=dict)  # the teacher's
    distances: list[Tensor] = field(default_factory=list)  # of the student's hidden states from the teacher's
    hooks: list[Callable[..., Any]] = field(default_factory=list)

    @contextmanager
    def attached(self, teacher: nn.Module, student: nn.Module, layers: Mapping[str, str]) -> Iterator[None]:
        """Let the teacher see the training images of the student; `layers` are the student's, with the teacher's.

        The student gives plain logits meanwhile, whatever else it gives otherwise. Hooks are plain functions, so that
        copies of the student, as are made of averaged weights, share them.
        """

        def ask_teacher(module: nn.Module, args: tuple[Any, ...]) -> None:
            if module.training:
                self.distances.clear()
                with torch.no_grad():
                    self.logits = unwrapped(teacher.to(args[0].device)(*args))

        def give_logits(module: nn.Module, args: tuple[Any, ...], output: Any) -> Tensor:
            return unwrapped(output)

        handles = [student.register_forward_pre_hook(ask_teacher), student.register_forward_hook(give_logits)]
        self.hooks += [ask_teacher, give_logits]
        for name, in_teacher in layers.items():
            handles.append(teacher.get_submodule(in_teacher).register_forward_hook(self._record(name)))
            handles.append(student.get_submodule(name).register_forward_hook(self._compare(name)))
        was_training = teacher.training
        teacher.eval()
        try:
            yield
        finally:
            teacher.train(was_training)
            for handle in handles:
                handle.remove()

    def _record(self, name: str) -> Callable[..., None]:
        def record(module: nn.Module, args: Any, output: Any) -> None:
            self.hidden[name] = _first_tensor(output)

        return record

    def _compare(self, name: str) -> Callable[..., None]:
        def compare(module: nn.Module, args: Any, output: Any) -> None:
            if not module.training or name not in self.hidden:
                return
            expected, found = self.hidden.pop(name).float(), _first_tensor(output).float()
            if found.shape == expected.shape:
                self.distances.append((found - expected).square().mean() / expected.square().mean().clamp_min(1e-12))
            elif self.strict:
                shapes = f"{tuple(found.shape)} and {tuple(expected.shape)}"
                raise ValueError(f"{name} gives shapes {shapes} in student and teacher; name other layers")

        self.hooks.append(compare)
        return compare

    def __call__(self, logits: Tensor, label_loss: Tensor) -> Tensor:
        """The loss of a training batch, summed over its images; the teacher's answer is used once."""
        if self.logits is None:
            return label_loss
        (expected, self.logits), T = (self.logits, None), self.temperature
        expected = expected[: len(logits)]  # of an empty share of a batch, the teacher saw blank images (`forward_any`)
        divergence = F.kl_div(
            (logits.float() / T).log_softmax(-1),
            (expected.float() / T).log_softmax(-1),
            reduction="sum",
            log_target=True,
        )
        loss = self.hard * label_loss + (1 - self.hard) * T**2 * divergence
        if self.distances:
            loss = loss + self.features * len(logits) * torch.stack(self.distances).mean()
        return loss

    def detach(self, model: nn.Module) -> None:
        """Remove the hooks from a copy of the student."""
        for module in model.modules():
            for hooks in (module._forward_hooks, module._forward_pre_hooks):
                for key in [key for key, hook in hooks.items() if hook in self.hooks]:
                    del hooks[key]


@dataclass(frozen=True)
class DistilledClassification(Classification):
    """Classification with a teacher; evaluation is by the labels alone."""

    distillation: DistillationLoss | None = None

    def loss(self, logits: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """The loss of the labels and of the distillation, summed over the images."""
        label_loss = super().loss(logits, targets, smoothing)
        return label_loss if self.distillation is None else self.distillation(logits, label_loss)


def _first_tensor(output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple | list) else output
