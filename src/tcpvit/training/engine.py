"""`train` and `resume`: a recipe becomes a run folder and a result. No state is kept outside of them."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tcpvit.data import Batches, Pictures, Splits
from tcpvit.data.pictures import list_bad
from tcpvit.models.pretrained import WEIGHTS, load_weights
from tcpvit.training.build import build_batches, build_model, check_masks, find_device, load_splits, note_absent
from tcpvit.training.checkpoint import WriteError, read_latest
from tcpvit.training.distributed import World, join
from tcpvit.training.export import describe_preprocessing
from tcpvit.training.interrupt import Interruption
from tcpvit.training.loop import Trainer
from tcpvit.training.metrics import or_none, to_json
from tcpvit.training.progress import About, Mute, Silent
from tcpvit.training.recipe import Recipe
from tcpvit.training.run import RunFolder
from tcpvit.training.state import Row
from tcpvit.training.tasks import Task, task_for

FIXED = ("model", "data", "seed")  # what a run that has begun cannot change
FREE = ("data.root", "data.workers", "data.eval_batch_size")  # but for these, which change no step


@dataclass(frozen=True)
class Result:
    """What came out of a run. Metrics are fractions; `best` and `last` are rows of the history."""

    folder: Path
    recipe: Recipe
    model: nn.Module = field(repr=False)  # with the weights of the best epoch, in eval mode
    parameters: int
    metric: str
    history: list[Row] = field(repr=False)
    best: Row
    last: Row
    test: dict[str, Any] = field(repr=False)  # of the best weights on the test part
    seconds: float
    cpu_seconds: float
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, without the model."""
        content = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in ("model", "history")}
        rows = {name: {column: or_none(value) for column, value in content[name].items()} for name in ("best", "last")}
        recipe = self.recipe.to_dict()
        return {**content, **rows, "folder": str(self.folder), "recipe": recipe, "notes": list(self.notes)}


def train(
    recipe: Recipe,
    folder: str | Path,
    *,
    overwrite: bool = False,
    splits: Splits | None = None,
    model: nn.Module | None = None,
    task: Task | None = None,
    report: Silent | None = None,
) -> Result:
    """Train a model by a recipe and keep everything in `folder`.

    `splits` and `model` take the place of those that the recipe names: pictures of your own, a model of any make.
    `task` is what is minimised and measured, by default that of the pictures.
    Under torchrun, which repeats a command that lost a process, a run of the same recipe in `folder` is gone on with.
    """
    run = RunFolder(folder)
    with join() as world:
        if world.launched and overwrite:
            raise ValueError("under torchrun a restart would overwrite its own run; remove the folder instead")
        goes_on = world.launched and world.is_main and run.exists and run.recipe() == recipe
        if world.is_main and not goes_on:
            run.check_free(overwrite)  # before anything slow
        parts = _Parts.of(recipe, splits, model, world)
        if task is None:
            check_masks(parts.splits)
        with run.locked() if world.is_main else nullcontext():
            if world.is_main and not goes_on:
                run.begin(recipe, overwrite=overwrite)
            return _run(run, recipe, parts, report or Silent(), task)


def resume(
    folder: str | Path,
    *,
    overrides: Iterable[str] = (),
    splits: Splits | None = None,
    model: nn.Module | None = None,
    task: Task | None = None,
    report: Silent | None = None,
) -> Result:
    """Go on with the run in `folder` from its last whole checkpoint; nothing happens to a run that is complete.

    On a CPU the result is bit for bit that of a run that was never interrupted, unless `overrides` change the recipe.
    """
    run = RunFolder(folder)
    overrides = list(overrides)
    for word in overrides:
        key = word.partition("=")[0].strip()
        if key.partition(".")[0] in FIXED and key not in FREE:
            raise ValueError(f"a run that has begun keeps its model, data and seed, got {word!r}; begin a new run")
    with join() as world:
        recipe = world.of_main(run.recipe_to_go_on).override(overrides)
        parts = _Parts.of(recipe, splits, model, world)
        with run.locked() if world.is_main else nullcontext():
            if world.is_main and overrides:
                run.write_recipe(recipe)
            return _run(run, recipe, parts, report or Silent(), task)


@dataclass(frozen=True)
class _Parts:
    """What a run is made of, built before its folder is: a recipe that does not fit its pictures leaves nothing."""

    splits: Splits
    model: nn.Module
    device: torch.device
    world: World
    train: Batches  # those of this process
    val: Batches
    test: Batches

    @classmethod
    def of(cls, recipe: Recipe, splits: Splits | None, model: nn.Module | None, world: World) -> _Parts:
        device = world.place(find_device(recipe))
        with world.in_turn():
            splits = splits or load_splits(recipe.data)

        def batches(part: Pictures, training: bool) -> Batches:
            return build_batches(recipe, part, device, training=training, rank=world.rank, world_size=world.size)

        model = model or build_model(recipe, splits.train)
        parts = (batches(splits.train, True), batches(splits.val, False), batches(splits.test, False))
        return cls(splits, model, device, world, *parts)

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the results should know about the data."""
        return self.splits.notes + note_absent(self.splits.train)

    def skipped(self) -> tuple[str, ...]:
        """A note on the streamed files that this process could not use since it began."""
        bad = list(self.train.skipped | self.val.skipped | self.test.skipped)
        total = sum(map(len, self.splits.parts().values()))
        return (f"{list_bad(bad, total)}; skipped",) if bad else ()


def _run(run: RunFolder, recipe: Recipe, parts: _Parts, report: Silent, task: Task | None) -> Result:
    splits, model, device, world = parts.splits, parts.model, parts.device, parts.world
    report = report if world.is_main else Mute()
    task = task or task_for(splits.train.task, len(splits.train.classes))
    with ExitStack() as stack:
        cuda = [device] if device.type == "cuda" else []
        stack.enter_context(torch.random.fork_rng(devices=cuda))  # the caller's random numbers are left alone
        interruption = stack.enter_context(Interruption())
        trainer = Trainer(
            recipe,
            model,
            task,
            parts.train,
            parts.val,
            run,
            device=device,
            report=report,
            interruption=interruption,
            preprocessing=describe_preprocessing(splits.train, recipe.data),
            world=world,
        )
        stack.callback(trainer.events.close)
        stack.callback(report.stop)
        restore(trainer, report)
        if world.is_main:
            run.keep_data(splits.indices())
            run.note_session(device, trainer.state.step, world.size)
        report.start(_about(trainer, parts), trainer.state)
        try:
            trainer.fit()
            return _finish(trainer, parts)
        except WriteError as error:
            sentence = f"{error.strerror}; nothing before is lost: mend this, then {report.way_on(run)}"
            raise WriteError(error.errno, sentence) from error


def restore(trainer: Trainer, report: Silent) -> None:
    """Bring back the newest whole checkpoint, if there is one."""
    is_main = trainer.world.is_main
    content = trainer.world.share_content(read_latest(trainer.run.checkpoints, report.say) if is_main else None)
    if content is not None:
        trainer.restore(content)
        if is_main:
            trainer.run.write_metrics(trainer.state.history)


def _finish(trainer: Trainer, parts: _Parts) -> Result:
    """Evaluate the best weights on the test part and write result.json."""
    recipe, state, splits, world = trainer.recipe, trainer.state, parts.splits, parts.world
    model = copy.deepcopy(trainer.kept_in_one_piece()).to(trainer.device)
    if world.is_main:
        load_weights(model, trainer.run.path / "best" / WEIGHTS)
    world.share(model.state_dict().values())
    test = trainer.measure(model, parts.test)
    evaluated = [row for row in state.history if "val_loss" in row]
    notes = parts.notes + parts.skipped()
    if splits.test is splits.val:
        notes += ("validation and test are the same pictures, so the best epoch was chosen on the test part",)
    result = Result(
        folder=trainer.run.path,
        recipe=recipe,
        model=model.eval(),
        parameters=sum(p.numel() for p in model.parameters()),
        metric=trainer.task.metric,
        history=state.history,
        best=next(row for row in evaluated if row["epoch"] == state.best_epoch),
        last=evaluated[-1],
        test=to_json(test),
        seconds=round(state.seconds, 3),
        cpu_seconds=round(state.cpu_seconds, 3),
        notes=notes,
    )
    if world.is_main:
        trainer.run.write_json("result.json", result.to_dict())
    return result


def _about(trainer: Trainer, parts: _Parts) -> About:
    """What the display says before the first step."""
    splits, notes = parts.splits, parts.notes
    recipe, optimizer, schedule = trainer.recipe, trainer.recipe.optimizer, trainer.recipe.schedule
    channels, height, width = splits.train.image_shape
    parameters, threads = sum(p.numel() for p in trainer.model.parameters()), torch.get_num_threads()
    processes, strategy = trainer.world.size, recipe.distributed.strategy.upper()
    facts = {
        "model": f"{parameters:,} parameters, {len(splits.train.classes)} classes",
        "data": f"{len(splits.train):,} training, {len(splits.val):,} validation pictures, {height}×{width}×{channels}",
        "AdamW": f"lr {optimizer.lr:g}, weight decay {optimizer.weight_decay:g}, batch {recipe.data.batch_size}, "
        f"{schedule.epochs} epochs, seed {recipe.seed}",
        "device": f"{trainer.device}, {threads} thread{'s' * (threads > 1)}, {recipe.precision}"
        f"{f', {processes} processes ({strategy})' if processes > 1 else ''}",
        "folder": f"{trainer.run}{f', going on from step {trainer.state.step:,}' if trainer.state.step else ''}",
    }
    if notes:
        facts["notes"] = "; ".join(notes)
    title = f"{recipe.model.name} on {splits.name}"
    return About(title, facts, trainer.task.metric, schedule.epochs, len(trainer.batches))
