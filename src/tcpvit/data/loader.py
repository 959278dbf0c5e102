"""Batches for training and evaluation: every batch is a function of the seed, the epoch and its number.

Nothing is remembered between batches, so a run that was killed resumes with the same images in the same order under
the same augmentation. Processes take slices of one common batch, so the number of processes changes nothing either.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from tcpvit.data.augment import Augment, Draws, normalise
from tcpvit.data.image_set import Batch, Images
from tcpvit.data.images import SKIP, ImageFiles, list_bad
from tcpvit.data.workers import begin_worker, stop_signals_blocked
from tcpvit.errors import printable


class _Plan(NamedTuple):
    """What a batch will be: decided before any image is read."""

    number: int
    rows: Tensor  # which images, for this rank
    draws: Draws  # their random numbers
    crops: Tensor | None


class Batches:
    """Iterate over (images, targets): float32 normalised (B, C, H, W), and labels (B,) or masks (B, H, W), int64.

    Mixup and cutmix turn labels into (B, classes) probabilities. `batch_size` is that of all ranks together; each gets
    its slice, which may be empty in a last batch smaller than the number of ranks. Call `set_epoch` before each epoch.
    Files that are streamed are decoded by `workers` processes.
    """

    def __init__(
        self,
        data: Images,
        batch_size: int,
        *,
        augment: Augment | None = None,
        shuffle: bool = False,
        drop_last: bool = False,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        device: torch.device | str = "cpu",
        workers: int | None = None,
    ):
        self.augment = augment or Augment()
        _check(data, self.augment, batch_size, drop_last, seed, rank, world_size)
        self.data = data
        self.batch_size = batch_size
        self.augment.check_task(data.task, data.image_shape[1:])
        self.shuffle, self.drop_last, self.seed = shuffle, drop_last, seed
        self.rank, self.world_size = rank, world_size
        self.device = torch.device(device)
        self.workers = min(8, os.cpu_count() or 1) if workers is None else workers
        self.skipped: dict[str, None] = {}  # the files that could not be used, in the order they were met
        self.epoch, self.start = 0, 0
        self._reader: DataLoader | None = None

    def __len__(self) -> int:
        """Batches in an epoch."""
        full, rest = divmod(len(self.data), self.batch_size)
        return full if self.drop_last or not rest else full + 1

    def set_epoch(self, epoch: int, start: int = 0) -> None:
        """Choose the epoch to iterate over, from batch `start` on: the state of a loader is these two numbers."""
        self.epoch, self.start = epoch, start

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        done, count = self.start, 0
        for plan, batch in self._read():
            yield self._finish(plan, batch) if len(batch.images) else self._no_images()
            done, count = plan.number + 1, count + len(batch.images)
        if done > self.start == 0 and not count and self.world_size == 1:  # other ranks may have some
            named = list_bad(list(self.skipped), len(self.data))
            raise ValueError(f"{named}; no image of {self.data.source} is left: repair them")
        if done < len(self):  # every rank gets as many batches as the others, or they would wait for it
            yield self._no_images()

    def order(self) -> Tensor:
        """The images of the epoch in order, for all ranks."""
        if not self.shuffle:
            return torch.arange(len(self.data))
        return torch.from_numpy(np.random.default_rng((self.seed, self.epoch)).permutation(len(self.data)))

    def _plans(self) -> Iterator[_Plan]:
        order = self.order()
        for number in range(self.start, len(self)):
            rows = order[number * self.batch_size : (number + 1) * self.batch_size]
            mine = self._share(len(rows))
            random = np.random.default_rng((self.seed, self.epoch, 1 + number))  # 0 would be the seed of the order
            draws = {name: drawn[mine] for name, drawn in self.augment.draw(random, len(rows)).items()}
            if len(rows[mine]):  # a last batch smaller than the number of ranks leaves some without
                yield _Plan(number, rows[mine], draws, self.augment.crops(draws))

    def _share(self, count: int) -> slice:
        """This rank's part of a batch."""
        together = self.augment.group
        groups = -(-count // together)
        first, end = (groups * rank // self.world_size for rank in (self.rank, self.rank + 1))
        return slice(together * first, together * end)

    def _read(self) -> Iterator[tuple[_Plan, Batch]]:
        if not isinstance(self.data, ImageFiles):
            for plan in self._plans():
                yield plan, self.data.fetch(plan.rows, plan.crops)
            return
        if self._reader is None:
            self._reader = DataLoader(
                _Reader(self.data),
                batch_size=None,
                sampler=_Planner(self),
                num_workers=self.workers,
                persistent_workers=self.workers > 0,
                collate_fn=_as_is,
                worker_init_fn=begin_worker,
                generator=torch.Generator(),  # or it would draw from the generator that dropout uses
            )
        with stop_signals_blocked():  # workers begin with the signals blocked
            read = iter(self._reader)
        for plan, batch in read:
            if batch.bad:
                plan = self._without_bad(plan, batch)
            yield plan, batch

    def _without_bad(self, plan: _Plan, batch: Batch) -> _Plan:
        assert isinstance(self.data, ImageFiles)
        assert batch.kept is not None
        if self.data.on_bad == "stop":
            raise ValueError(f"{list_bad(batch.bad, len(plan.rows))}; repair or remove them, or {SKIP}")
        for sentence in batch.bad:
            if sentence not in self.skipped:
                warnings.warn(f"skipped {printable(sentence)}", stacklevel=3)
            self.skipped[sentence] = None
        return plan._replace(draws={name: drawn[batch.kept] for name, drawn in plan.draws.items()})

    def _finish(self, plan: _Plan, batch: Batch) -> tuple[Tensor, Tensor]:
        images = batch.images.to(self.device, non_blocking=True)
        targets = batch.targets.to(self.device, non_blocking=True)
        images, targets = self.augment.move(images, targets, plan.draws)
        pixels = self.augment.recolour(images, plan.draws, self.data.scale)
        pixels = normalise(pixels, self.data.mean, self.data.std, self.data.scale)
        return self.augment.mix_and_erase(pixels, targets.long(), plan.draws, len(self.data.classes))

    def _no_images(self) -> tuple[Tensor, Tensor]:
        """A batch of none."""
        images = torch.empty(0, *self.data.image_shape, device=self.device)
        size = self.data.image_shape[1:] if self.data.task == "segmentation" else ()
        return images, torch.empty(0, *size, dtype=torch.int64, device=self.device)


class _Reader(Dataset):
    """In a worker process: a plan in, its images out."""

    def __init__(self, data: ImageFiles):
        self.data = data

    def __getitem__(self, plan: _Plan) -> tuple[_Plan, Batch]:
        return plan, self.data.fetch(plan.rows, plan.crops)


class _Planner:
    """The plans of whatever epoch the loader is set to, for a DataLoader that outlives epochs."""

    def __init__(self, batches: Batches):
        self.batches = batches

    def __iter__(self) -> Iterator[_Plan]:
        return self.batches._plans()

    def __len__(self) -> int:
        return len(self.batches) - self.batches.start


def _as_is(item: Any) -> Any:
    return item


def _check(
    data: Images, augment: Augment, batch_size: int, drop_last: bool, seed: int, rank: int, world_size: int
) -> None:
    if not len(data):
        raise ValueError(f"{data.source} holds no images")
    if batch_size < 1 or not 0 <= rank < world_size or seed < 0:
        raise ValueError(
            f"a loader needs batch_size ≥ 1, 0 ≤ rank < world_size and seed ≥ 0, got batch_size={batch_size}, "
            f"rank={rank}, world_size={world_size}, seed={seed}"
        )
    if batch_size < world_size * augment.group:
        raise ValueError(
            f"{world_size} ranks cannot share a batch of {batch_size}; make it at least {world_size * augment.group}"
        )
    if drop_last and len(data) < batch_size:
        raise ValueError(
            f"{data.source} has {len(data)} images, fewer than one batch of {batch_size}; make the batch smaller"
        )
