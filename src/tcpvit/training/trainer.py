"""The training loop: steps, epochs, evaluation, checkpoints.

Data, augmentation, learning rate and the random numbers of dropout are functions of the seed and of the step. A run
that is resumed from a checkpoint therefore ends, on a CPU, in the same weights to the last bit.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from typing_extensions import TypedDict

from tcpvit.data import Batches
from tcpvit.errors import Resumable
from tcpvit.models.pretrained import WEIGHTS, read_weights
from tcpvit.progress import Progress, Row, State
from tcpvit.training.checkpoint import Content, checkpoint_path, prune, read_latest, save_model, write_checkpoint
from tcpvit.training.distributed import World
from tcpvit.training.evaluation import autocast, evaluate, unwrapped
from tcpvit.training.float64 import to_float64
from tcpvit.training.folder import RunFolder, TensorBoard
from tcpvit.training.gradients import gradient_norms
from tcpvit.training.interrupt import StopSignal
from tcpvit.training.metrics import AnyMetrics
from tcpvit.training.optim import Ema, build_optimizer, load_optimizer_tensors, lr_factor, optimizer_tensors, set_lr
from tcpvit.training.recipe import Recipe
from tcpvit.training.sharding import (
    forward_any,
    full_tensor,
    gather_full,
    gradient_sync,
    parallelise,
    shard,
    shard_like,
    sync_batch_norm,
)
from tcpvit.training.tasks import Task
from tcpvit.validation import Count, Natural, checked

MAX_SKIPPED_IN_A_ROW = 100  # steps with a non-finite loss, after which the run stops in any case


class NonFiniteLoss(Resumable):
    """The loss or the gradient became NaN or infinite."""


class StepTotals(NamedTuple):
    """What a step measured on its batch, over all processes."""

    loss: float  # the mean
    hits: float  # how many of `weight` are right
    images: float
    weight: float  # how many images or pixels count
    gradient_norm: float  # before clipping


class Trainer:
    """A model, its data, and everything that changes while it is trained."""

    def __init__(
        self,
        recipe: Recipe,
        model: nn.Module,
        task: Task,
        batches: Batches,
        val_batches: Batches,
        run: RunFolder,
        *,
        device: torch.device,
        progress: Progress,
        stop_signal: StopSignal | None = None,
        preprocessing: dict[str, Any] | None = None,
        world: World | None = None,
    ):
        self.recipe, self.task, self.run, self.device = recipe, task, run, device
        self.batches, self.val_batches = batches, val_batches
        self.progress, self.stop_signal = progress, stop_signal or StopSignal()
        self.preprocessing = preprocessing
        self.world = world = world or World()
        self.model = sync_batch_norm(model.to(device), world, device)
        self.ema = Ema(self.model, recipe.optimizer.ema) if recipe.optimizer.ema else None
        self.sharded = world.size > 1 and recipe.distributed.strategy == "fsdp"
        self.unsharded = copy.deepcopy(self.model).cpu() if self.sharded else None  # filled when a model is saved
        self.parallel = parallelise(self.model, recipe.distributed.strategy, world, device)
        if self.sharded and self.ema:
            shard(self.ema.model, world, device)
        self.forward = torch.compile(self.parallel) if recipe.compile else self.parallel
        self.parameters = list(self.model.parameters())  # those of a sharded model, if it is
        self.optimizer = build_optimizer(self.model, recipe.optimizer)
        self.scaler = torch.amp.GradScaler(device.type, enabled=recipe.precision == "float16")
        self.state = State()
        self.tensorboard = TensorBoard(run.path / "tensorboard")
        self.cpu_clock = time.process_time()

    # ------------------------------------------------------------------------------------------------ epochs

    def fit(self) -> None:
        """Train to the last epoch, or until the metric stops improving."""
        while not self.finished:
            self.train_epoch()
            self.end_epoch()

    @property
    def finished(self) -> bool:
        """Whether the last epoch is done, or the recipe's patience is used up."""
        patience = self.recipe.evaluation.patience
        return self.state.epoch >= self.recipe.schedule.epochs or bool(patience and self.state.stale >= patience)

    def train_epoch(self) -> None:
        """Train on the remaining batches of the current epoch."""
        state, every = self.state, self.recipe.checkpoints.every_steps
        self.batches.set_epoch(state.epoch, start=state.batch)
        self.model.train()
        start = time.monotonic()
        for images, targets in self.until_stopped(self.batches):
            totals = self.step(images, targets)
            state.add(loss=totals.loss * totals.weight, hits=totals.hits, weight=totals.weight, images=totals.images)
            start = self.count_time(start, "seconds")
            state.batch += 1
            self.progress.step(state)
            if every and state.step % every == 0 and state.batch < len(self.batches):
                self.save()

    def end_epoch(self) -> None:
        """Evaluate if it is due, write what was measured, save."""
        state, recipe = self.state, self.recipe
        row = self.training_row()
        due = (state.epoch + 1) % recipe.evaluation.every == 0 or state.epoch + 1 == recipe.schedule.epochs
        is_best = due and self.evaluate_into(row)
        row["seconds"] = round(state.seconds, 3)
        state.history.append(row)
        state.epoch, state.batch, state.sums = state.epoch + 1, 0, {}
        if due:  # before the checkpoint: one that knows of a best epoch must find its weights
            self.save_model("last")
            if is_best:
                self.save_model("best")
        if self.world.is_main:
            self.run.write_rows("metrics.csv", state.history)
            if state.gradients:
                self.run.write_rows("gradients.csv", state.gradients)
            self.tensorboard.add(row)
        if is_best or state.epoch % recipe.checkpoints.every_epochs == 0 or self.finished:
            self.save()
        self.progress.epoch(row, is_best)

    def training_row(self) -> Row:
        """What the epoch measured on the training set."""
        state = self.state
        return {
            "epoch": state.epoch + 1,
            "step": state.step,
            "lr": self.recipe.optimizer.lr * lr_factor(state.step - 1, len(self.batches), self.recipe.schedule),
            "train_loss": state.mean("loss"),
            "train_accuracy": state.mean("hits"),
            "images_per_second": round(state.images_per_second, 1),
            "skipped": state.skipped,
        }

    def evaluate_into(self, row: Row) -> bool:
        """Add the metrics of the validation set to `row`; whether they are the best so far."""
        state, start = self.state, time.monotonic()
        metrics = self.evaluate(self.eval_model, self.val_batches).summary()
        row |= {f"val_{name}": value for name, value in metrics.items()}
        self.count_time(start, "evaluation")
        if state.best is not None and not metrics[self.task.metric] > state.best:
            state.stale += 1
            return False
        state.best, state.best_epoch, state.stale = metrics[self.task.metric], state.epoch + 1, 0
        return True

    @property
    def eval_model(self) -> nn.Module:
        """The weights that are evaluated and saved: the averaged ones, if there are."""
        return self.ema.model if self.ema else self.model

    def evaluate(self, model: nn.Module, batches: Batches) -> AnyMetrics:
        """The metrics of `model` over all batches of all processes."""
        self.world.broadcast(model.buffers())  # the running statistics of BatchNorm
        return evaluate(model, self.until_stopped(batches), self.task, self.device, self.recipe.precision, self.world)

    def until_stopped(self, batches: Iterable[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches; if a signal came, save, say how to resume, and exit."""
        for batch in batches:
            self.stop_signal.number = self.world.max(self.stop_signal.number)
            if self.stop_signal.number:
                self.save()
                self.progress.message(
                    f"stopped by {self.stop_signal.name} after step {self.state.step}; everything is saved; resume "
                    f"with {self.progress.how_to_resume(self.run)}"
                )
                self.stop_signal.exit()
            yield batch

    def count_time(self, start: float, name: str) -> float:
        """Add the time since `start` to the state; the present time."""
        now, cpu_now = time.monotonic(), time.process_time()
        self.state.seconds += now - start
        self.state.cpu_seconds += cpu_now - self.cpu_clock
        self.cpu_clock = cpu_now
        self.state.add(**{name: now - start})
        return now

    # ------------------------------------------------------------------------------------------------ one step

    def step(self, images: Tensor, targets: Tensor) -> StepTotals:
        """One optimiser step on a batch, of which `images` are the share of this process."""
        options, state = self.recipe.optimizer, self.state
        set_lr(self.optimizer, lr_factor(state.step, len(self.batches), self.recipe.schedule))
        seed_step(self.recipe.seed, state.step, self.world.rank)
        self.optimizer.zero_grad(set_to_none=True)
        buffers = self.copy_buffers() if options.on_nonfinite == "skip" else []
        totals = self.compute_gradients(images, targets)
        # Streamed files may all be unreadable: a batch without images changes nothing.
        if totals.images and self.check_finite(totals):
            self.scaler.step(self.optimizer)
            if self.ema:
                self.ema.update(self.model, state.step)
        elif totals.images:
            self.restore_buffers(buffers)
            totals = totals._replace(loss=0.0, hits=0.0, weight=0.0)
        self.scaler.update()
        state.step += 1
        return totals

    def compute_gradients(self, images: Tensor, targets: Tensor) -> StepTotals:
        """The gradients of the mean loss over the batch, clipped."""
        world, state, every = self.world, self.state, self.recipe.evaluation.gradients
        weight = world.sum(self.task.weight(targets))  # 0 if every pixel of the batch is ignored
        loss, hits = self.backward(images, targets, weight)
        self.scaler.unscale_(self.optimizer)
        if every and state.step % every == 0:
            state.gradients.append({"step": state.step + 1, **gradient_norms(self.model)})
        norm = full_tensor(clip_grad_norm_(self.parameters, self.recipe.optimizer.clip_norm or math.inf))
        sums = world.sum(to_float64(torch.stack([loss, hits, torch.full_like(hits, len(images))])))
        return StepTotals(*torch.stack([*sums, to_float64(weight), to_float64(norm)]).tolist())  # one wait for CUDA

    def backward(self, images: Tensor, targets: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Accumulate the gradients of the micro-batches; the loss and the hits of this process."""
        loss, hits = torch.zeros((), device=self.device), torch.zeros((), device=self.device)
        micro_batches = self.micro_batches(images, targets)
        for number, (x, y) in enumerate(micro_batches, start=1):
            buffers = [] if len(x) else self.copy_buffers()
            with gradient_sync(self.parallel, enabled=number == len(micro_batches)):
                with autocast(self.device, self.recipe.precision):
                    logits = forward_any(lambda x: unwrapped(self.forward(x)), x)
                self.task.check_logits(logits, y)
                part = self.task.loss(logits, y, self.recipe.optimizer.label_smoothing) / weight.clamp(min=1)
                self.scaler.scale(part * self.world.size).backward()  # gradients are averaged over processes
            self.restore_buffers(buffers)
            loss, hits = loss + part.detach(), hits + self.task.hits(logits.detach(), y)
        return loss, hits

    def micro_batches(self, images: Tensor, targets: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The parts of a batch for gradient accumulation; each of several processes has as many, if need be empty."""
        number = self.recipe.optimizer.accumulate
        found = list(zip(images.chunk(number), targets.chunk(number), strict=True))
        missing = number - len(found) if self.world.size > 1 else 0
        return found + [(images[:0], targets[:0])] * missing

    def copy_buffers(self) -> list[Tensor]:
        """BatchNorm's statistics before a step that may be skipped, or before blank images."""
        return [buffer.clone() for buffer in self.model.buffers()]

    def restore_buffers(self, buffers: list[Tensor]) -> None:
        """Undo changes since `copy_buffers`; an empty list changes nothing."""
        for buffer, before in zip(self.model.buffers(), buffers, strict=bool(buffers)):
            buffer.copy_(before)

    def check_finite(self, totals: StepTotals) -> bool:
        """False if the step is to be skipped; a non-finite loss stops the run unless the recipe says skip."""
        state, options = self.state, self.recipe.optimizer
        # With a scaler an infinite gradient is normal: it lowers its scale and leaves the step out.
        if math.isfinite(totals.loss) and (math.isfinite(totals.gradient_norm) or self.scaler.is_enabled()):
            state.skipped_in_a_row = 0
            return True
        state.skipped, state.skipped_in_a_row = state.skipped + 1, state.skipped_in_a_row + 1
        norms = torch.stack([full_tensor(p.detach().norm()) for p in self.model.parameters()])
        rates = sorted({group["lr"] for group in self.optimizer.param_groups})
        where = (
            f"step {state.step} (epoch {state.epoch + 1}): loss {totals.loss:g}, gradient norm "
            f"{totals.gradient_norm:g}, weight norm {torch.linalg.vector_norm(norms).item():g}, lr "
            f"{', '.join(f'{rate:.3g}' for rate in rates)}"
        )
        if options.on_nonfinite == "stop" or state.skipped_in_a_row > MAX_SKIPPED_IN_A_ROW:
            raise NonFiniteLoss(
                f"the loss or its gradient is not finite at {where}; the last checkpoint is from before: resume with "
                f"{self.progress.how_to_resume(self.run)} and a smaller --set optimizer.lr=..., or with "
                f"--set optimizer.on_nonfinite=skip"
            )
        self.progress.message(f"skipped {where}")
        return False

    # ------------------------------------------------------------------------------------------------ saving

    def full_eval_model(self) -> nn.Module:
        """The evaluated model without shards; all processes must ask for it together."""
        if self.unsharded is None:
            return self.eval_model
        self.unsharded.load_state_dict({name: full_tensor(t) for name, t in self.eval_model.state_dict().items()})
        return self.unsharded

    def save_model(self, name: str) -> None:
        """Write the evaluated weights as a model for `from_pretrained`."""
        model = self.full_eval_model()
        if self.world.is_main:
            save_model(model, self.run.path / name, self.preprocessing)

    def save(self) -> None:
        """Write a checkpoint of everything that changes; it is there when any process returns."""
        tensors = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        tensors |= {f"optimizer.{name}": tensor for name, tensor in optimizer_tensors(self.optimizer).items()}
        if self.ema:
            tensors |= {f"ema.{name}": tensor for name, tensor in self.ema.model.state_dict().items()}
        tensors = gather_full(tensors, self.world)
        if self.world.is_main:
            state = {"state": asdict(self.state), "scaler": self.scaler.state_dict()}
            write_checkpoint(checkpoint_path(self.run.checkpoints, self.state.step), tensors, state)
            prune(self.run.checkpoints, self.recipe.checkpoints.keep)
        self.world.barrier()

    def restore_latest(self) -> None:
        """Restore the newest intact checkpoint, if there is one."""
        is_main = self.world.is_main
        content = read_latest(self.run.checkpoints, self.progress.message) if is_main else None
        content = self.world.broadcast_checkpoint(content)
        if content is not None:
            self.restore(content)
            self.replace_lost_best()
            if is_main:
                self.run.write_rows("metrics.csv", self.state.history)
        elif is_main and self.run.has_metrics:
            self.progress.message(f"{self.run} has no checkpoint any more; it is trained from the first step again")

    def replace_lost_best(self) -> None:
        """If best/ was removed or damaged: choose among the epochs to come, or take the restored weights."""
        state, at_end_of_epoch = self.state, self.state.batch == 0
        if not state.best_epoch or not self.world.broadcast_object(self.lacks_best):
            return
        best = f"{self.run.path / 'best'} is missing or damaged"
        if at_end_of_epoch and state.epoch == state.best_epoch:
            self.save_model("best")
        elif self.finished:
            state.best_epoch, state.best = state.epoch, state.history[-1][f"val_{self.task.metric}"]
            self.save_model("best")
            self.progress.message(f"{best}; the weights of the last epoch take its place")
        else:
            state.best, state.best_epoch, state.stale = None, 0, 0
            self.progress.message(f"{best}; the best epoch is chosen among those that are left")

    def lacks_best(self) -> bool:
        """Whether the weights of the best epoch cannot be read."""
        try:
            read_weights(self.run.path / "best" / WEIGHTS)
        except ValueError:
            return True
        return False

    def restore(self, content: Content) -> None:
        """The inverse of `save`."""
        tensors, state = content
        checked(state, dict[Literal["state", "scaler"], dict[str, Any]], "the state of the checkpoint")
        checked(state.get("state"), State, "the state of the checkpoint")
        checked(state["state"].get("history", []), list[EpochRow], "the history of the checkpoint")
        parts: dict[str, dict[str, Tensor]] = {"model": {}, "optimizer": {}, "ema": {}}
        for full_name, tensor in tensors.items():
            part, _, name = full_name.partition(".")
            parts[part][name] = tensor
        parts = {name: shard_like(part, self.model) for name, part in parts.items()}
        try:
            self.model.load_state_dict(parts["model"])
        except RuntimeError as error:
            reason = str(error).partition("\n")[0].rstrip(":")
            raise ValueError(
                f"the checkpoint of {self.run} does not fit the model; if that was built in Python, resume there with "
                f"tcpvit.training.resume(FOLDER, model=MODEL), the model built as it was ({reason})"
            ) from error
        load_optimizer_tensors(self.optimizer, parts["optimizer"])
        if self.ema:
            self.ema.model.load_state_dict(parts["ema"] or parts["model"])
        if state["scaler"]:  # empty if the precision was another, as a resumed run may change it
            self.scaler.load_state_dict(state["scaler"])
        self.state = State(**state["state"])


class EpochRow(TypedDict):
    """The columns that every epoch has."""

    epoch: Count
    step: Natural
    train_loss: float
    train_accuracy: float
    images_per_second: float
    seconds: float


def seed_step(seed: int, step: int, rank: int) -> None:
    """Make the random numbers of a step (dropout, stochastic depth) a function of these three."""
    low, high = np.random.SeedSequence((seed, step, rank)).generate_state(2).tolist()
    torch.manual_seed(high << 32 | low)
