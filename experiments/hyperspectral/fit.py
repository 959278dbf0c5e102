"""Train a network on windows of a scene: one path for ours, the dense ones and the peers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.hyperspectral.cube import Cube
from tcpvit.layers.groups import parameter_groups

SMOOTH = 6  # lowest frequencies of a random offset of spectra


@dataclass(frozen=True)
class Training:
    """How a network is trained by AdamW, and what is done to its windows on the way."""

    lr: float = 2e-3
    epochs: int = 25
    batch: int = 64
    weight_decay: float = 0.05
    schedule: str = "cycle"  # "constant", or "steps": nine tenths of the rate after every tenth of the epochs
    turn: bool = True  # by one of the eight symmetries of a square
    noise: float = 0.3  # of each band, in units of its deviation
    brightness: float = 0.0  # deviation of the logarithm of a factor on the radiance of a window
    offset: float = 0.0  # deviation of a smooth curve that is added to all spectra of a window
    flatten: float = 0.0  # how much of a window's difference from its centre is taken away, at most
    blend: float = 0.0  # how much of a window of the same class is mixed in, at most
    start: int = 0  # epochs of the self-supervised start
    average: bool = False  # predictions over the eight symmetries
    centre: bool = False  # predictions over the window and its centre pixel alone
    members: int = 1  # networks of different seeds, whose predictions are averaged


def train(model: nn.Module, cube: Cube, pixels: Tensor, targets: Tensor, how: Training, seed: int) -> None:
    """Train on labelled pixels."""
    random = torch.Generator().manual_seed(seed)
    optimizer, schedule = _optimizer(model, how.lr, how, how.epochs * math.ceil(len(pixels) / how.batch))
    model.train()
    for chosen in _batches(len(pixels), how, how.epochs, random):
        windows = augmented(cube, pixels[chosen], targets[chosen], how, random)
        optimizer.zero_grad()
        F.cross_entropy(model(windows), targets[chosen]).backward()
        optimizer.step()
        schedule.step()


def augmented(cube: Cube, pixels: Tensor, targets: Tensor, how: Training, random: torch.Generator) -> Tensor:
    """Windows (n, channels, w, w) of a training batch."""
    number = len(pixels)
    turns = torch.randint(8, (number,), generator=random) if how.turn else None
    windows = cube.windows(pixels, turns)
    if how.flatten:
        windows = windows.lerp(_centre(windows), how.flatten * torch.rand(number, 1, 1, 1, generator=random))
    if how.blend:
        share = how.blend * torch.rand(number, 1, 1, 1, generator=random)
        windows = windows.lerp(windows[_partners(targets, random)], share)
    if how.brightness:  # of the radiance, whose zero is not the zero of standardised bands
        factor = torch.exp(how.brightness * torch.randn(number, 1, 1, 1, generator=random))
        windows = factor * windows + (factor - 1) * (cube.axes @ cube.grey)[:, None, None]
    if how.offset:
        curves = _smooth_curves(cube.axes.shape[1]) @ cube.axes.mT
        windows = windows + (how.offset * torch.randn(number, SMOOTH, generator=random) @ curves)[:, :, None, None]
    if how.noise:  # white in the bands, so independent on orthogonal axes, as long as each of them is
        lengths = how.noise * cube.axes.norm(dim=1)[:, None, None]
        windows = windows + lengths * torch.randn(windows.shape, generator=random)
    return windows


def _centre(windows: Tensor) -> Tensor:
    """The pixel in the centre, (n, channels, 1, 1)."""
    middle = windows.shape[-1] // 2
    return windows[:, :, middle : middle + 1, middle : middle + 1]


def _partners(targets: Tensor, random: torch.Generator) -> Tensor:
    """For each of a batch another one of its class, or itself."""
    likely = torch.rand(len(targets), len(targets), generator=random)
    return likely.masked_fill(targets[:, None] != targets, -1).argmax(1)


def _smooth_curves(bands: int) -> Tensor:
    """The lowest cosines (SMOOTH, bands), each with mean square 1."""
    k, j = torch.arange(SMOOTH)[:, None], torch.arange(bands)
    curves = torch.cos(math.pi * k * (2 * j + 1) / (2 * bands))
    return curves / curves.square().mean(1, keepdim=True).sqrt()


def _batches(number: int, how: Training, epochs: int, random: torch.Generator) -> Iterator[Tensor]:
    for _ in range(epochs):
        yield from torch.randperm(number, generator=random).split(how.batch)


def _optimizer(model: nn.Module, lr: float, how: Training, steps: int) -> tuple[Any, Any]:
    optimizer = torch.optim.AdamW(parameter_groups(model, lr, how.weight_decay), fused=True)
    rates = [group["lr"] for group in optimizer.param_groups]
    if how.schedule == "cycle":
        return optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, rates, total_steps=steps, pct_start=0.1)
    tenth = max(1, steps // 10) if how.schedule == "steps" else steps + 1
    return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, tenth, gamma=0.9)


@torch.no_grad()
def predict(model: nn.Module, cube: Cube, pixels: Tensor, how: Training, batch: int = 512) -> Tensor:
    """Probabilities of the classes (n, classes), the mean over what `how` asks for."""
    model.eval()
    turns = [torch.tensor(turn) for turn in range(8)] if how.average else [torch.tensor(0)]
    found = []
    for some in pixels.split(batch):
        views = [cube.windows(some, turn.expand(len(some))) for turn in turns]
        views += [_centre(view).expand_as(view) for view in views] if how.centre else []
        found.append(torch.stack([model(view).softmax(1) for view in views]).mean(0))
    return torch.cat(found)


def self_supervised_start(model: Any, bands: Cube, axes: Tensor, pixels: Tensor, how: Training, seed: int) -> None:
    """Train a scene preset, whose input are coefficients on `axes`, to restore those of masked spectra; no labels.

    Half of the bands, in runs, and half of the patches are set to zero. Patch tokens restore the coefficients of their
    patch, the class token the mean of the window; the two maps that read them are thrown away.
    """
    random = torch.Generator().manual_seed(seed + 1)
    config = model.config
    of_patch = nn.Linear(config.width, len(axes) * config.patch_size**2)
    of_window = nn.Linear(config.width, len(axes))
    everything = nn.ModuleList([model, of_patch, of_window])
    optimizer, schedule = _optimizer(everything, how.lr, how, how.start * math.ceil(len(pixels) / how.batch))
    model.train()
    for chosen in _batches(len(pixels), how, how.start, random):
        windows = bands.windows(pixels[chosen], torch.randint(8, (len(chosen),), generator=random))
        wanted = F.conv2d(windows, axes[:, :, None, None])  # (n, K, w, w)
        masked = F.conv2d(_masked(windows, config.patch_size, random), axes[:, :, None, None])
        tokens = model.forward_features(masked)
        patches = F.unfold(wanted, config.patch_size, stride=config.patch_size).mT  # (n, N, K·P²)
        loss = F.mse_loss(of_patch(tokens[:, 1:]), patches) + F.mse_loss(of_window(tokens[:, 0]), wanted.mean((2, 3)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


def _masked(windows: Tensor, patch: int, random: torch.Generator, runs: int = 10) -> Tensor:
    """Windows with half of the runs of bands and half of the patches at zero."""
    number, bands, side, _ = windows.shape
    kept = torch.rand(number, runs, generator=random) < 0.5
    kept_bands = kept.repeat_interleave(-(-bands // runs), 1)[:, :bands, None, None]
    places = torch.rand(number, 1, side // patch, side // patch, generator=random) < 0.5
    return windows * kept_bands * places.repeat_interleave(patch, 2).repeat_interleave(patch, 3)


def confusion(targets: Tensor, found: Tensor, classes: int) -> NDArray[np.int64]:
    """Pixels by true class (rows) and predicted class."""
    return torch.bincount(targets * classes + found, minlength=classes**2).view(classes, classes).numpy()


def scores(counts: NDArray[np.int64]) -> dict[str, float]:
    """Overall accuracy, average accuracy over the classes that are there, and kappa, as fractions.

    >>> {name: round(value, 3) for name, value in scores(np.array([[3, 1, 0], [0, 4, 0], [0, 0, 0]])).items()}
    {'oa': 0.875, 'aa': 0.875, 'kappa': 0.75}
    """
    total, by_class = counts.sum(), counts.sum(1)
    agreement, chance = counts.trace() / total, (by_class * counts.sum(0)).sum() / total**2
    there = by_class > 0
    average = (counts.diagonal()[there] / by_class[there]).mean()
    return {"oa": float(agreement), "aa": float(average), "kappa": float((agreement - chance) / (1 - chance))}
