"""The training loop: steps, epochs, evaluation, checkpoints.

Data, augmentation, learning rate and the random numbers of dropout are functions of the seed and of the step. A run
that goes on from a checkpoint therefore ends, on a CPU, in the same weights to the last bit.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from tcpvit.data import Batches
from tcpvit.progress import Progress
from tcpvit.training.checkpoint import Content, checkpoint_path, prune, write_checkpoint
from tcpvit.training.distributed import World
from tcpvit.training.evaluation import autocast, evaluate
from tcpvit.training.events import Events
from tcpvit.training.export import export
from tcpvit.training.gradients import gradient_norms
from tcpvit.training.interrupt import Interruption
from tcpvit.training.metrics import AnyMetrics
from tcpvit.training.optim import Ema, build_optimizer, load_optimizer_tensors, lr_factor, optimizer_tensors, set_lr
from tcpvit.training.recipe import Recipe
from tcpvit.training.run import RunFolder
from tcpvit.training.sharding import exchange, gather, join_statistics, logits_of, scatter, shard, spread, whole
from tcpvit.training.state import Row, State
from tcpvit.training.tasks import Task

PATIENCE_WITH_NANS = 100  # steps in a row that may be skipped before the run stops after all


class NonFiniteLoss(ValueError):
    """The loss or the gradient became NaN or infinite."""


class Trainer:
    """A model, its data, and everything that changes while it learns."""

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
        interruption: Interruption,
        preprocessing: dict[str, Any] | None = None,
        world: World | None = None,
    ):
        self.recipe, self.task, self.run, self.device = recipe, task, run, device
        self.world = world = world or World()
        self.batches, self.val_batches = batches, val_batches
        self.progress, self.interruption = progress, interruption
        self.preprocessing = preprocessing
        self.model = join_statistics(model.to(device), world, device)
        self.ema = Ema(self.model, recipe.optimizer.ema) if recipe.optimizer.ema else None
        self.sharded = world.size > 1 and recipe.distributed.strategy == "fsdp"
        self.template = copy.deepcopy(self.model).cpu() if self.sharded else None  # for exports in one piece
        self.spread = spread(self.model, recipe.distributed.strategy, world, device)
        if self.sharded and self.ema:
            shard(self.ema.model, world, device)
        self.forward = torch.compile(self.spread) if recipe.compile else self.spread
        self.optimizer = build_optimizer(self.model, recipe.optimizer)
        self.scaler = torch.amp.GradScaler(device.type, enabled=recipe.precision == "float16")
        self.state = State()
        self.events = Events(run.path / "tensorboard")
        self.cpu_clock = time.process_time()

    # ------------------------------------------------------------------------------------------------ the loop

    def fit(self) -> None:
        """Train to the last epoch, or until nothing improves any more."""
        while not self.finished:
            self.train_epoch()
            self.end_epoch()

    def train_epoch(self) -> None:
        """The batches of the current epoch that are not done yet."""
        state = self.state
        self.batches.set_epoch(state.epoch, start=state.batch)
        self.model.train()
        begin = time.monotonic()
        for images, targets in self.obeying_signals(self.batches):
            loss, hits, weight, number = self.step(images, targets)
            state.add(loss=loss * weight, hits=hits, weight=weight, images=number)
            begin = self.pass_time(begin, "seconds")
            state.batch += 1
            self.progress.step(state)
            every = self.recipe.checkpoints.every_steps
            if every and state.step % every == 0 and state.batch < len(self.batches):
                self.save()

    def step(self, images: Tensor, targets: Tensor) -> tuple[float, float, float, float]:
        """One optimiser step: the mean loss of the batch, how many are right, of how many, and how many images.

        The numbers are those of the whole batch, of which `images` are the share of this process.
        """
        options, state, world = self.recipe.optimizer, self.state, self.world
        set_lr(self.optimizer, lr_factor(state.step, len(self.batches), self.recipe.schedule))
        seed_step(self.recipe.seed, state.step, world.rank)
        self.optimizer.zero_grad(set_to_none=True)
        before_step = self.copy_buffers() if options.on_nonfinite == "skip" else []
        weight = world.add_up(self.task.weight(targets))  # none in a batch of nothing but border
        loss, hits = torch.zeros((), device=self.device), torch.zeros((), device=self.device)
        pieces = self.pieces(images, targets)
        for number, (x, y) in enumerate(pieces, start=1):
            before_blank = [] if len(x) else self.copy_buffers()
            with exchange(self.spread, now=number == len(pieces)):
                with self.autocast():
                    logits = logits_of(self.forward, x)
                self.task.check_logits(logits, y)
                part = self.task.loss(logits, y, options.label_smoothing) / weight.clamp(min=1)
                self.scaler.scale(part * world.size).backward()  # gradients are averaged over processes
            self.put_back(before_blank)
            loss, hits = loss + part.detach(), hits + self.task.hits(logits.detach(), y)
        self.scaler.unscale_(self.optimizer)
        self.note_gradients()
        norm = whole(clip_grad_norm_(self.model.parameters(), options.clip_norm or math.inf))
        sums = world.add_up(torch.stack([loss.double(), hits.double(), torch.full_like(hits.double(), len(images))]))
        numbers = torch.stack([*sums, norm.double(), weight.double()]).tolist()  # one wait for the GPU
        has_images = numbers[2] > 0  # of streamed files, all may be bad: then there is nothing to learn
        if has_images and not self.is_sound(numbers[0], numbers[3]):
            numbers[0] = numbers[1] = numbers[4] = 0.0
            self.put_back(before_step)
        elif has_images:
            self.scaler.step(self.optimizer)
            if self.ema:
                self.ema.update(self.model, state.step)
        self.scaler.update()
        state.step += 1
        return numbers[0], numbers[1], numbers[4], numbers[2]

    def pieces(self, images: Tensor, targets: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The parts that a batch is computed in; of several processes each has as many, if need be without images."""
        number = self.recipe.optimizer.accumulate
        found = list(zip(images.chunk(number), targets.chunk(number), strict=True))
        missing = number - len(found) if self.world.size > 1 else 0
        return found + [(images[:0], targets[:0])] * missing

    def copy_buffers(self) -> list[Tensor]:
        """BatchNorm's statistics, as they are before a step that may be left out, or a blank image."""
        return [buffer.clone() for buffer in self.model.buffers()]

    def put_back(self, buffers: list[Tensor]) -> None:
        """As `copy_buffers` found them; nothing if it did not look."""
        for buffer, before in zip(self.model.buffers(), buffers, strict=bool(buffers)):
            buffer.copy_(before)

    def end_epoch(self) -> None:
        """Evaluate if it is time, write down what was measured, save."""
        state, recipe = self.state, self.recipe
        row = self.train_row()
        is_best = False
        if (state.epoch + 1) % recipe.evaluation.every == 0 or state.epoch + 1 == recipe.schedule.epochs:
            begin = time.monotonic()
            found = self.measure(self.kept_model, self.val_batches).summary()
            is_best = self.note_best(found[self.task.metric])
            row |= {f"val_{name}": value for name, value in found.items()}
            self.pass_time(begin, "evaluation")
        row["seconds"] = round(state.seconds, 3)
        state.history.append(row)
        state.epoch, state.batch, state.sums = state.epoch + 1, 0, {}
        if "val_loss" in row:
            # Before the checkpoint: one that knows of a best epoch must find its weights.
            self.export("last")
            if is_best:
                self.export("best")
        if self.world.is_main:
            self.run.write_metrics(state.history)
            if state.gradients:
                self.run.write_rows("gradients.csv", state.gradients)
            self.events.add(row)
        if is_best or state.epoch % recipe.checkpoints.every_epochs == 0 or self.finished:
            self.save()
        self.progress.epoch(row, is_best)

    # ------------------------------------------------------------------------------------------------ its parts

    @property
    def finished(self) -> bool:
        """The last epoch is done, or patience is at its end."""
        patience = self.recipe.evaluation.patience
        return self.state.epoch >= self.recipe.schedule.epochs or bool(patience and self.state.stale >= patience)

    @property
    def kept_model(self) -> nn.Module:
        """The weights that are evaluated and exported: the averaged ones, if there are."""
        return self.ema.model if self.ema else self.model

    def measure(self, model: nn.Module, batches: Batches) -> AnyMetrics:
        """The metrics of `model` over all batches of all processes."""
        self.world.share(model.buffers())  # the running statistics of BatchNorm
        shown = self.obeying_signals(batches)
        return evaluate(model, shown, self.task, self.device, self.recipe.precision, self.world)

    def autocast(self) -> AbstractContextManager[Any]:
        """Mixed precision, if the recipe asks for it."""
        return autocast(self.device, self.recipe.precision)

    def obeying_signals(self, batches: Iterable[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches, unless a signal came: then save, say how to go on, and leave."""
        for batch in batches:
            signal = self.world.largest(self.interruption.signal or 0)
            if signal:
                self.interruption.signal = signal
                self.save()
                self.progress.message(
                    f"stopped by {self.interruption.name} after step {self.state.step}; everything is saved, go on "
                    f"with {self.progress.how_to_resume(self.run)}"
                )
                self.interruption.leave()
            yield batch

    def is_sound(self, loss: float, norm: float) -> bool:
        """False if the step is to be skipped; a loss that is not finite stops the run unless the recipe says skip."""
        state, options = self.state, self.recipe.optimizer
        # With a scaler an infinite gradient is normal: it lowers its scale and leaves the step out.
        if math.isfinite(loss) and (math.isfinite(norm) or self.scaler.is_enabled()):
            state.skipped_in_a_row = 0
            return True
        state.skipped, state.skipped_in_a_row = state.skipped + 1, state.skipped_in_a_row + 1
        norms = torch.stack([whole(p.detach().norm()) for p in self.model.parameters()])
        weights = torch.linalg.vector_norm(norms).item()
        rates = sorted({group["lr"] for group in self.optimizer.param_groups})
        where = (
            f"step {state.step} (epoch {state.epoch + 1}): loss {loss:g}, gradient norm {norm:g}, weight norm "
            f"{weights:g}, lr {', '.join(f'{rate:.3g}' for rate in rates)}"
        )
        if options.on_nonfinite == "stop" or state.skipped_in_a_row > PATIENCE_WITH_NANS:
            raise NonFiniteLoss(
                f"the loss or its gradient is not finite at {where}; the last checkpoint is from before: go on with "
                f"{self.progress.how_to_resume(self.run)} and a smaller --set optimizer.lr=..., or with "
                f"--set optimizer.on_nonfinite=skip"
            )
        self.progress.message(f"skipped {where}")
        return False

    def train_row(self) -> Row:
        """What the epoch measured on the training data."""
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

    def note_gradients(self) -> None:
        """Keep the norms of the gradient, not clipped yet, if it is time."""
        state, every = self.state, self.recipe.evaluation.gradients
        if every and state.step % every == 0:
            state.gradients.append({"step": state.step + 1, **gradient_norms(self.model)})

    def note_best(self, value: float) -> bool:
        """Whether this is the best evaluation so far."""
        state = self.state
        if state.best is not None and not value > state.best:
            state.stale += 1
            return False
        state.best, state.best_epoch, state.stale = value, state.epoch + 1, 0
        return True

    def pass_time(self, begin: float, what: str) -> float:
        """Count the time since `begin`, and give the new beginning."""
        now, cpu_now = time.monotonic(), time.process_time()
        self.state.seconds += now - begin
        self.state.cpu_seconds += cpu_now - self.cpu_clock
        self.cpu_clock = cpu_now
        self.state.add(**{what: now - begin})
        return now

    # ------------------------------------------------------------------------------------------------ saving

    def kept_in_one_piece(self) -> nn.Module:
        """The kept model as any one process could have trained it; all must ask for it together."""
        if self.template is None:
            return self.kept_model
        self.template.load_state_dict({name: whole(t) for name, t in self.kept_model.state_dict().items()})
        return self.template

    def export(self, name: str) -> None:
        """Write the kept weights as a model for `from_pretrained`."""
        model = self.kept_in_one_piece()
        if self.world.is_main:
            export(model, self.run.path / name, self.preprocessing)

    def save(self) -> None:
        """Write a checkpoint of everything that changes; it is there when any process returns."""
        tensors = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        tensors |= {f"optimizer.{name}": tensor for name, tensor in optimizer_tensors(self.optimizer).items()}
        if self.ema:
            tensors |= {f"ema.{name}": tensor for name, tensor in self.ema.model.state_dict().items()}
        state = {"state": self.state.to_dict(), "scaler": self.scaler.state_dict()}
        tensors = gather(tensors, self.world)
        if self.world.is_main:
            write_checkpoint(checkpoint_path(self.run.checkpoints, self.state.step), tensors, state)
            prune(self.run.checkpoints, self.recipe.checkpoints.keep)
        self.world.wait()

    def restore(self, content: Content) -> None:
        """The inverse of `save`."""
        tensors, state = content
        parts: dict[str, dict[str, Tensor]] = {"model": {}, "optimizer": {}, "ema": {}}
        for full_name, tensor in tensors.items():
            part, _, name = full_name.partition(".")
            parts[part][name] = tensor
        parts = {name: scatter(part, self.model) for name, part in parts.items()}
        try:
            self.model.load_state_dict(parts["model"])
        except RuntimeError as error:
            said = str(error).partition("\n")[0].rstrip(":")
            raise ValueError(
                f"the checkpoint of {self.run} does not fit the model; if that was built in Python, go on there with "
                f"tcpvit.training.resume(FOLDER, model=MODEL), the model built as it was ({said})"
            ) from error
        load_optimizer_tensors(self.optimizer, parts["optimizer"])
        if self.ema:
            self.ema.model.load_state_dict(parts["ema"] or parts["model"])
        self.scaler.load_state_dict(state["scaler"])
        self.state = State(**state["state"])


def seed_step(seed: int, step: int, rank: int) -> None:
    """Make the random numbers of a step (dropout, stochastic depth) a function of these three."""
    low, high = np.random.SeedSequence((seed, step, rank)).generate_state(2).tolist()
    torch.manual_seed(high << 32 | low)
