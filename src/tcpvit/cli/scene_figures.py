"""The figures of scenes, drawn into a folder for `tcpvit scene` and `tcpvit predict`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tcpvit.data.scenes import Scene, SceneSplit, SceneStatistics, class_spectra, composite
from tcpvit.figures.scenes import PARTS, colour_classes, colour_confidence, colour_errors, colour_split, draw_maps
from tcpvit.figures.spectra import draw_energy, draw_importance, draw_spectra
from tcpvit.figures.style import save_figure
from tcpvit.inference.importance import BandImportance
from tcpvit.inference.scene_map import SceneMap

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FALSE_COLOURS = "false colours"


def draw_info(scene: Scene, statistics: SceneStatistics, folder: Path) -> list[Path]:
    """The scene in false colours beside its classes, their mean spectra, and the variance by frequency."""
    maps = {FALSE_COLOURS: composite(scene)}
    figures = {"energy": draw_energy(statistics.energy, statistics.kept_frequencies)}
    if scene.labels is None:
        figures["scene"] = draw_maps(maps, {})
    else:
        figures["scene"] = draw_maps(maps | {"classes": colour_classes(scene.labels, scene.colours)}, _classes(scene))
        good = scene.good_bands
        wavelengths = None if scene.wavelengths is None else scene.wavelengths[good]
        figures["spectra"] = draw_spectra(
            class_spectra(scene)[0][:, good], scene.class_names, scene.colours, wavelengths
        )
    return _save(figures, folder)


def draw_split(scene: Scene, split: SceneSplit, folder: Path) -> list[Path]:
    """The classes beside what each pixel is for."""
    labels = scene.require_labels()
    maps = {
        "classes": colour_classes(labels, scene.colours),
        f"{split.kind} split": colour_split(split.codes, labels, scene.colours),
    }
    return _save({"split": draw_maps(maps, _classes(scene), PARTS)}, folder)


def draw_prediction(
    found: SceneMap, scene: Scene, split: SceneSplit | None, importance: BandImportance | None, folder: Path
) -> list[Path]:
    """False colours, truth, split, prediction, errors and confidence, as far as they are known; and the importance."""
    maps = {FALSE_COLOURS: composite(scene)}
    predicted = colour_classes(found.classes, found.scene.colours)
    labels = scene.labels
    if labels is not None:
        maps["truth"] = colour_classes(labels, found.scene.colours)
    if labels is not None and split is not None:
        maps[f"{split.kind} split"] = colour_split(split.codes, labels, found.scene.colours)
    maps["prediction"] = predicted
    if labels is not None:
        counted = labels > 0 if split is None else split.mask("test")
        maps["errors" if split is None else "errors (test pixels)"] = colour_errors(labels, found.classes, counted)
    maps["confidence (white: 1)"] = colour_confidence(found.confidence)
    figures = {"maps": draw_maps(maps, _classes(found.scene), PARTS if split is not None else None)}
    if importance is not None:
        figures["importance"] = importance_figure(scene, importance)
    return _save(figures, folder)


def importance_figure(scene: Scene, importance: BandImportance) -> Figure:
    """The importance of bands, by wavelength where that is known, and of frequencies."""
    good = scene.good_bands
    known = scene.wavelengths is not None and len(good) == len(importance.by_band)
    wavelengths = np.asarray(scene.wavelengths)[good] if known else None
    return draw_importance(importance.by_band, importance.by_frequency, wavelengths)


def _classes(scene: Scene) -> dict[str, tuple[int, int, int]]:
    return dict(zip(scene.class_names, scene.colours, strict=True))


def _save(figures: dict, folder: Path) -> list[Path]:
    return [path for name, figure in figures.items() for path in save_figure(figure, folder / name, ["png"])]
