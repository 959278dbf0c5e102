"""A whole scene classified pixel by pixel, tile by tile, so that memory does not depend on its size."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tcpvit.data.scenes import Scene, scene_windows, write_class_map
from tcpvit.data.scenes.windows import COLUMNS, ROWS
from tcpvit.inference.loading import LoadedModel
from tcpvit.layers.bands import BandDCT
from tcpvit.progress import Progress
from tcpvit.tables import Table
from tcpvit.training.build import find_device
from tcpvit.training.evaluation import unwrapped
from tcpvit.training.recipe import Recipe


@dataclass(frozen=True, eq=False)
class SceneMap:
    """Classes (H, W), 1, 2, ... by `scene.class_names`, 0 where there are no data; confidences from 0 to 1."""

    model: str
    scene: Scene  # with the names and colours of the model's classes
    classes: NDArray[np.integer[Any]]
    confidence: NDArray[np.float32]
    seconds: float

    def write(self, path: str | Path) -> list[Path]:
        """Write the map and its confidences in the format of the name's ending: .png, .tif, .hdr or .npy."""
        return write_class_map(path, self.classes, self.scene, confidence=self.confidence)

    def table(self) -> Table:
        """How many pixels each class has, and how sure of them the model is."""
        table = Table("classes", f"{self.scene.name} by {self.model}", ["class", "pixels", "share", "mean confidence"])
        counts = np.bincount(self.classes.ravel(), minlength=self.scene.num_classes + 1)
        sums = np.bincount(self.classes.ravel(), self.confidence.ravel(), minlength=len(counts))
        for k, name in enumerate(self.scene.class_names, start=1):
            sure = f"{sums[k] / counts[k]:.2f}" if counts[k] else None
            table.add(name, int(counts[k]), f"{100 * counts[k] / self.classes.size:.1f} %", sure)
        table.notes.append(f"{self.classes.size:,} pixels in {self.seconds:.1f} s")
        table.notes += _left_out(self.classes, self.scene)
        return table


def _left_out(classes: NDArray[np.integer[Any]], scene: Scene) -> list[str]:
    """How many pixels have no class, and why."""
    lacking = 0 if scene.missing is None else int(scene.missing.sum())
    no_numbers = int((classes == 0).sum()) - lacking
    reasons = {"they have no data": lacking, "their windows hold values that are no finite numbers": no_numbers}
    return [f"{number:,} pixels left out: {why}" for why, number in reasons.items() if number]


@torch.inference_mode()
def classify_scene(
    loaded: LoadedModel,
    scene: Scene,
    *,
    batch_size: int = 512,
    device: str = "auto",
    progress: Progress | None = None,
) -> SceneMap:
    """The class of every pixel by its window; bands of another sensor are fitted to those of the model."""
    fitted = loaded.fit_scene(scene)
    about = loaded.preparation()
    window, at = _window(loaded.image_shape, scene), find_device(Recipe(device=device))
    bands, classify = _parts(loaded.move_to(at))

    def prepare(tile: Tensor) -> Tensor:
        """What all windows share is computed once for each pixel."""
        return bands(loaded.normalise(tile.to(at)))

    classes = np.zeros(scene.shape[:2], np.uint8 if len(loaded.classes) < 256 else np.uint16)
    confidence = np.zeros(scene.shape[:2], np.float32)
    begin = time.monotonic()
    batches = scene_windows(fitted, window, batch_size, prepare)
    for pixels, windows in (progress or Progress()).track(batches, "classifying", _number(scene, batch_size)):
        logits = unwrapped(classify(windows))
        loaded.check_classes(logits.shape[1])
        sure, likeliest = logits.float().softmax(1).max(1)
        found = torch.where(sure.isfinite(), likeliest + 1, 0)
        rows, columns = pixels.T
        classes[rows, columns] = found.cpu().numpy()
        confidence[rows, columns] = sure.nan_to_num(0).cpu().numpy()
    if scene.missing is not None:
        classes[scene.missing], confidence[scene.missing] = 0, 0
    if not classes.any():
        raise ValueError(f"{scene.name} has no pixel that can be classified: {', '.join(_left_out(classes, scene))}")
    known = replace(
        scene, labels=None, class_names=loaded.classes, colours=tuple(map(tuple, about["scene"]["colours"]))
    )
    return SceneMap(loaded.name, known, classes, confidence, time.monotonic() - begin)


def _window(image_shape: Sequence[int], scene: Scene) -> int:
    window = image_shape[1]
    if window > min(scene.shape[:2]):
        raise ValueError(
            f"the model looks at windows of {window}×{window} pixels, {scene.name} has only {scene.shape[0]}×"
            f"{scene.shape[1]}"
        )
    return window


def _parts(model: nn.Module) -> tuple[nn.Module, nn.Module]:
    """The transform along the spectrum, which sees each pixel by itself, and the model behind it."""
    bands = getattr(model, "bands", None)
    if not isinstance(bands, BandDCT):
        return nn.Identity(), model
    behind: Any = copy.copy(model)
    behind._modules = {**model._modules, "bands": nn.Identity()}
    behind.config = replace(behind.config, in_chans=bands.kept, kept=None, band_basis="dct", wavelengths=None)
    return bands, behind


def _number(scene: Scene, batch_size: int) -> int:
    """Batches of `scene_windows`."""
    height, width, _ = scene.shape
    tiles = [rows * columns for rows in _sizes(height, ROWS) for columns in _sizes(width, COLUMNS)]
    return sum(-(-pixels // batch_size) for pixels in tiles)


def _sizes(length: int, tile: int) -> list[int]:
    """The lengths of the tiles that a length is cut into."""
    full, rest = divmod(length, tile)
    return [tile] * full + [rest] * (rest > 0)
