"""Indian Pines as the study sees it: splits with validation pixels inside the training part, and windows of tensors."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from experiments.hyperspectral.spectra import Spectra
from tcpvit.data.scenes import Scene, SceneSplit, disjoint_split, find_scene, fit_statistics, random_split
from tcpvit.data.scenes.fields import within
from tcpvit.data.scenes.splits import GUARD

WINDOW = 9
RADIUS = WINDOW // 2
HELD_OUT = 0.3  # of the training part, where settings are chosen

# The eight symmetries of a square: (row, column) of the window -> offsets in the scene.
SYMMETRIES = np.array(
    [[[s, 0], [0, t]] for s in (1, -1) for t in (1, -1)] + [[[0, s], [t, 0]] for s in (1, -1) for t in (1, -1)]
)

Kind = Literal["random", "disjoint"]
Integers = NDArray[np.int64]


@cache
def indian_pines(root: Path | None) -> Scene:
    """The scene, from the folder that holds the data sets."""
    return find_scene("indian-pines", root)


def make_split(scene: Scene, kind: Kind, seed: int, *, validate: bool = False) -> SceneSplit:
    """The split of a seed; with `validate` a part of its training pixels is held out, and the test part is the same.

    Between disjoint fields the guard is the same for validation as for test pixels: training pixels within twice the
    radius of a validation pixel are dropped, because dropping the validation pixels would leave four classes.
    """
    labels, held_out = scene.require_labels(), HELD_OUT if validate else 0.0
    if kind == "random":
        return random_split(labels, fraction=0.1, window=WINDOW, seed=seed, validation=held_out)
    split = disjoint_split(labels, window=WINDOW, seed=seed, validation=held_out)
    near = split.mask("train") & within(split.mask("validation"), 2 * RADIUS)
    return replace(split, codes=np.where(near, GUARD, split.codes).astype(np.uint8))


class Cube:
    """The standardised scene with its border reflected, from which windows (n, channels, w, w) are cut.

    Statistics are those of the training pixels. `components` takes principal components instead of the bands.
    """

    def __init__(self, scene: Scene, split: SceneSplit, window: int = WINDOW, components: int | None = None):
        radius = window // 2
        statistics = fit_statistics(scene, split)
        spectra = Spectra(statistics, components)
        values = np.pad(spectra.apply(scene.data), ((radius, radius), (radius, radius), (0, 0)), mode="reflect")
        self.values = torch.from_numpy(values)  # (H + 2r, W + 2r, channels)
        self.window, self.channels = window, values.shape[-1]
        self.axes = torch.eye(self.channels)  # (channels, bands), where bands are those before `project`
        self.grey = torch.from_numpy(statistics.mean / statistics.std).float()  # radiance zero is −grey
        offsets = np.indices((window, window)) - radius  # (2, w, w)
        turned = np.einsum("sab,bij->saij", SYMMETRIES, offsets) + radius  # (8, 2, w, w)
        self.offsets = torch.from_numpy(turned)

    def project(self, axes: Tensor) -> Cube:
        """The coefficients of all spectra on axes (K, bands): a fixed first layer, computed once for the scene."""
        found = copy(self)
        found.values, found.axes, found.channels = self.values @ axes.mT, axes @ self.axes, len(axes)
        return found

    def windows(self, pixels: Tensor, turns: Tensor | None = None) -> Tensor:
        """Windows around pixels (n, 2), each turned by its one of the eight symmetries (n,)."""
        offsets = self.offsets[0] if turns is None else self.offsets[turns]  # (2, w, w) or (n, 2, w, w)
        places = pixels[:, :, None, None] + offsets
        return self.values[places[:, 0], places[:, 1]].permute(0, 3, 1, 2)


def pixels_of(split: SceneSplit, part: str) -> Tensor:
    """Row and column (n, 2) of the pixels of a part."""
    return torch.from_numpy(split.pixels(part))


def targets_of(scene: Scene, pixels: Tensor) -> Tensor:
    """The classes of pixels, from 0."""
    rows, columns = pixels.T.numpy()
    return torch.from_numpy(scene.require_labels()[rows, columns].astype(np.int64) - 1)


def pixels_without_test(split: SceneSplit) -> Tensor:
    """All pixels, labelled or not, whose windows share nothing with a test or validation window."""
    measured = split.mask("test") | split.mask("validation")
    return torch.from_numpy(np.argwhere(~within(measured, 2 * (split.window // 2))))
