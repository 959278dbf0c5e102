"""`train` and `resume`: a recipe becomes a run folder and a result. No state is kept outside of them.

The story of a run: the recipe (`recipe.py`) says what to build (`build.py`); the folder (`folder.py`) is locked; the
trainer (`trainer.py`) restores the newest checkpoint (`checkpoint.py`) and trains; the best weights are tested.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tcpvit.analysis.parameters import count_parameters
from tcpvit.data import Batches, Images, Splits
from tcpvit.data.images import list_bad
from tcpvit.data.workers import lost_workers_explained
from tcpvit.displays import default_display
from tcpvit.files import WriteError, write_json
from tcpvit.memory import TooLarge, is_out_of_memory
from tcpvit.models.pretrained import WEIGHTS, load_weights
from tcpvit.progress import NoMessages, Progress, Row, RunSummary
from tcpvit.tables import Table, percent, render
from tcpvit.training.build import (
    build_batches,
    build_model,
    check_masks,
    find_device,
    load_splits,
    missing_classes,
    recipe_as_used,
)
from tcpvit.training.checkpoint import list_checkpoints
from tcpvit.training.distributed import World, process_group
from tcpvit.training.folder import FREE, RunFolder
from tcpvit.training.interrupt import StopSignal
from tcpvit.training.metrics import LABELS, or_none, to_json
from tcpvit.training.preprocessing import describe_preprocessing
from tcpvit.training.recipe import Recipe
from tcpvit.training.tasks import Task, task_for
from tcpvit.training.trainer import Trainer

FIXED = ("model", "data", "seed")  # what a resumed run cannot change, except for what is FREE


@dataclass(frozen=True)
class Result:
    """The result of a run. Metrics are fractions; `best` and `last` are rows of the history."""

    folder: Path
    recipe: Recipe
    model: nn.Module = field(repr=False)  # with the weights of the best epoch, in eval mode
    parameters: int
    metric: str
    history: list[Row] = field(repr=False)
    best: Row
    last: Row
    test: dict[str, Any] = field(repr=False)  # of the best weights on the test set
    seconds: float
    cpu_seconds: float
    notes: tuple[str, ...] = ()

    def table(self) -> Table:
        """The end of a run, for people."""
        table = Table("result", "Result", ["", "", ""])
        named, column = LABELS[self.metric], f"val_{self.metric}"
        table.add(f"best validation {named}", percent(self.best[column]), f"epoch {self.best['epoch']}")
        table.add(f"last validation {named}", percent(self.last[column]), f"epoch {self.last['epoch']}")
        table.add(f"test {named}", percent(self.test[self.metric]), "with the best weights", strong=True)
        table.add("parameters", f"{self.parameters:,}", "")
        table.add("model", str(self.folder / "best"), "")
        table.notes += list(self.notes)
        return table

    def _repr_html_(self) -> str:
        return render([self.table()], "html")

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
    progress: Progress | None = None,
    distillation: Mapping[str, Any] | None = None,
) -> Result:
    """Train a model by a recipe and keep everything in `folder`.

    `splits` and `model` replace those that the recipe names: images of your own, a model of any library.
    `task` is what is minimised and measured, by default that of the images.
    `progress` shows the run, by default on stderr or in the notebook; `tcpvit.progress.Progress()` shows nothing.
    `distillation` is written to distillation.json, for `tcpvit.training.distill`.
    Under torchrun, which repeats a command that lost a process, a run of the same recipe in `folder` is resumed.
    """
    run = RunFolder(folder)
    recipe = recipe if distillation is not None else recipe_as_used(recipe, splits, model)
    with process_group() as world:
        if world.launched and overwrite:
            raise ValueError("under torchrun a restart would overwrite its own run; remove the folder instead")
        restarted = world.launched and world.is_main and run.exists and run.recipe() == recipe
        if world.is_main and not restarted:
            run.check_free(overwrite)  # before anything slow
        progress = _shown(progress, world)
        setup = _Setup.build(recipe, splits, model, task, world, progress)
        if task is None:
            check_masks(setup.splits)
        with setup.lock(run):

            def begin() -> None:
                if world.is_main and not restarted:
                    run.begin(recipe, overwrite=overwrite, distillation=distillation)

            return _run(run, setup, progress, begin=begin)


def resume(
    folder: str | Path,
    *,
    overrides: Iterable[str] = (),
    splits: Splits | None = None,
    model: nn.Module | None = None,
    task: Task | None = None,
    progress: Progress | None = None,
) -> Result:
    """Resume the run in `folder` from its newest intact checkpoint; a complete run is not trained further.

    On a CPU the result is bit for bit that of a run that was never interrupted, unless `overrides` change the recipe.
    """
    run = RunFolder(folder)
    overrides = list(overrides)
    with process_group() as world:
        recipe = world.broadcast_object(run.recipe_to_resume)
        for key, value in recipe.resolve(overrides):
            if key.partition(".")[0] in FIXED and key not in FREE:
                word = f"{key}={value}"
                raise ValueError(f"a resumed run keeps its model, data and seed, got {word!r}; start a new run")
        recipe = recipe.override(overrides)
        # The weights of a checkpoint replace pretrained ones, which need not be there any more.
        has_checkpoint = world.broadcast_object(lambda: bool(list_checkpoints(run.checkpoints)))
        start = replace(recipe, model=replace(recipe.model, pretrained=False)) if has_checkpoint else recipe
        progress = _shown(progress, world)
        setup = replace(_Setup.build(start, splits, model, task, world, progress), recipe=recipe)
        with setup.lock(run):

            def keep_changes() -> None:
                if overrides:
                    run.write_recipe(recipe)

            return _run(run, setup, progress, restored=keep_changes)


@dataclass(frozen=True)
class _Setup:
    """What a run needs, built before its folder: a recipe that does not fit its images leaves no folder."""

    recipe: Recipe
    splits: Splits
    model: nn.Module
    task: Task
    device: torch.device
    world: World
    train: Batches  # the share of this process
    val: Batches
    test: Batches
    notes: tuple[str, ...]  # what a reader of the results should know about the data

    @classmethod
    def build(
        cls,
        recipe: Recipe,
        splits: Splits | None,
        model: nn.Module | None,
        task: Task | None,
        world: World,
        progress: Progress,
    ) -> _Setup:
        device = world.assign(find_device(recipe))
        with world.local_main_first():
            splits = splits or load_splits(recipe.data, progress)
        model = model or build_model(recipe, splits.train, device, world.size)
        task = task or task_for(splits.train)

        def batches(part: Images, training: bool) -> Batches:
            return build_batches(recipe, part, device, training=training, rank=world.rank, world_size=world.size)

        parts = (batches(splits.train, True), batches(splits.val, False), batches(splits.test, False))
        return cls(recipe, splits, model, task, device, world, *parts, splits.notes + missing_classes(splits.train))

    def lock(self, run: RunFolder) -> AbstractContextManager[None]:
        """Process 0 holds the folder for all."""
        return run.locked() if self.world.is_main else nullcontext()

    def skipped_files(self) -> tuple[str, ...]:
        """A note on the streamed files that this process could not use since it started."""
        bad = list(self.train.skipped | self.val.skipped | self.test.skipped)
        total = sum(map(len, self.splits.parts().values()))
        return (f"{list_bad(bad, total)}; skipped",) if bad else ()


def _shown(progress: Progress | None, world: World) -> Progress:
    """What the caller gave, or a display that suits where Python runs; one process shows it."""
    return (progress or default_display()) if world.is_main else NoMessages()


def _run(
    run: RunFolder,
    setup: _Setup,
    progress: Progress,
    *,
    begin: Callable[[], None] = lambda: None,
    restored: Callable[[], None] = lambda: None,
) -> Result:
    """Train from the newest checkpoint, or from the start, to the end.

    `begin` writes what comes before; process 0 calls `restored` once the checkpoint and the images are found to fit.
    """
    device, world, splits = setup.device, setup.world, setup.splits
    with ExitStack() as stack:
        cuda = [device] if device.type == "cuda" else []
        stack.enter_context(torch.random.fork_rng(devices=cuda))  # the caller's random numbers are left alone
        trainer = Trainer(
            setup.recipe,
            setup.model,
            setup.task,
            setup.train,
            setup.val,
            run,
            device=device,
            progress=progress,
            stop_signal=stack.enter_context(StopSignal()),
            preprocessing=describe_preprocessing(splits.train, setup.recipe.data),
            world=world,
        )
        stack.callback(trainer.tensorboard.close)
        stack.callback(progress.stop)
        begin()  # only now: what does not fit has been refused, and an old run is still there
        trainer.restore_latest()
        if world.is_main:
            run.check_data(splits.indices())
            restored()
            changed = run.add_session(device, trainer.state.step, world.size)
            if changed and trainer.state.step:
                progress.message(
                    f"resumed in another environment ({'; '.join(changed)}): the result may differ in the last digits "
                    f"from that of a run that was never interrupted"
                )
        progress.start(_summary(trainer, setup), trainer.state)
        try:
            with lost_workers_explained(f"and resume with {progress.how_to_resume(run)}"):
                trainer.fit()
                return _finish(trainer, setup)
        except WriteError as error:
            sentence = (
                f"{error.strerror}; what was saved before is intact: free space or fix the disk, then resume with"
            )
            raise WriteError(error.errno, f"{sentence} {progress.how_to_resume(run)}") from error
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            raise TooLarge(_out_of_memory(trainer, progress)) from error


def _out_of_memory(trainer: Trainer, progress: Progress) -> str:
    """What to do about a step that did not fit."""
    recipe, state = trainer.recipe, trainer.state
    batch, parts = recipe.data.batch_size, recipe.optimizer.accumulate
    return (
        f"{trainer.device} has run out of memory after step {state.step} (epoch {state.epoch + 1}) with batches of "
        f"{batch} in {parts} part{'s' * (parts > 1)}; resume with {progress.how_to_resume(trainer.run)} "
        f"--set optimizer.accumulate={2 * parts} --set data.eval_batch_size={max(1, recipe.data.eval_batch_size // 2)}"
        f", or start a new run with data.batch_size={max(1, batch // 2)}, which should need about half"
    )


def _finish(trainer: Trainer, setup: _Setup) -> Result:
    """Evaluate the best weights on the test set and write result.json."""
    state, splits, world = trainer.state, setup.splits, setup.world
    model = copy.deepcopy(trainer.full_eval_model()).to(trainer.device)
    if world.is_main:
        load_weights(model, trainer.run.path / "best" / WEIGHTS)
    world.broadcast(model.state_dict().values())
    test = trainer.evaluate(model, setup.test)
    evaluated = [row for row in state.history if "val_loss" in row]
    notes = setup.notes + setup.skipped_files()
    if splits.test is splits.val:
        same = f"validation and test are the same {splits.test.unit}, so the best epoch was chosen on the test set"
        notes += (same,)
    result = Result(
        folder=trainer.run.path,
        recipe=setup.recipe,
        model=model.eval(),
        parameters=int(count_parameters(model)),
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
        write_json(trainer.run.path / "result.json", result.to_dict())
    return result


def _summary(trainer: Trainer, setup: _Setup) -> RunSummary:
    """What the display shows before the first step."""
    recipe, splits, processes = setup.recipe, setup.splits, setup.world.size
    optimizer, schedule, threads = recipe.optimizer, recipe.schedule, torch.get_num_threads()
    channels, *size = splits.train.image_shape
    facts = {
        "model": f"{count_parameters(trainer.model):,} parameters, {len(splits.train.classes)} classes",
        "data": f"{len(splits.train):,} training, {len(splits.val):,} validation {splits.train.unit}, "
        f"{'×'.join(map(str, (*size, channels)))}",
        "AdamW": f"lr {optimizer.lr:g}, weight decay {optimizer.weight_decay:g}, batch {recipe.data.batch_size}, "
        f"{schedule.epochs} epoch{'s' * (schedule.epochs > 1)}, seed {recipe.seed}",
        "device": f"{trainer.device}, {threads} thread{'s' * (threads > 1)}, {recipe.precision}"
        f"{f', {processes} processes ({recipe.distributed.strategy.upper()})' if processes > 1 else ''}",
        "folder": f"{trainer.run}{f', resumed from step {trainer.state.step:,}' if trainer.state.step else ''}",
    }
    if setup.notes:
        facts["notes"] = "; ".join(setup.notes)
    title = f"{recipe.model.name} on {splits.name}"
    metric = trainer.task.metric
    return RunSummary(title, facts, metric, LABELS[metric], schedule.epochs, len(trainer.batches))
