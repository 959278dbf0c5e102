"""`tcpvit scene`: what a scene of many bands holds, and its pixels split for training and test."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np

from tcpvit.cli.scene_figures import draw_info, draw_split
from tcpvit.cli.shortcuts import scene_name
from tcpvit.cli.show import show
from tcpvit.data.files import data_root as resolve_root
from tcpvit.data.scenes import Scene, SceneSplit, SceneStatistics, fit_statistics, make_split, open_scene
from tcpvit.data.scenes.composite import composite_bands
from tcpvit.files import check_writable, keep_inputs
from tcpvit.tables import Table

STEPS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)  # frequencies whose variance is listed


def scene(
    action: Literal["info", "split"],
    file: str,
    *,
    labels: Path | None = None,
    key: str | None = None,
    labels_key: str | None = None,
    kind: Literal["disjoint", "random"] = "disjoint",
    window: int = 9,
    seed: int = 0,
    share: float = 0.3,
    cap: int = 100,
    fraction: float | None = None,
    count: int | None = None,
    val_fraction: float = 0.2,
    out: Path | None = None,
    images: Path | None = None,
    data_root: Path | None = None,
    json: bool = False,
) -> list[Table]:
    """Look into a scene of many bands, or split its pixels.

    `info` lists the bands, the classes, the variance by frequency of the spectrum, and how many frequencies it suggests
    to keep. `split` saves which pixels train, validate and test, and says how many test windows contain a
    training pixel; `tcpvit train --split FILE` takes it.

    Args:
        action: info or split.
        file: a cube (ENVI, MATLAB, HDF5, NumPy, TIFF, a folder of TIFFs), or a name as indian-pines or materials.
        labels: the file of the label map; known scenes have theirs.
        key: the array of FILE that is meant, where it holds several.
        labels_key: the array of the label file that is meant, where it holds several.
        kind: kind of split. disjoint: whole fields train, and pixels near them are not tested; random: pixels
            anywhere, so that test windows contain training pixels.
        window: width of the window around each pixel.
        seed: seed of the split.
        share: share of each class that a disjoint split trains on.
        cap: most training pixels of a class in a disjoint split; 0: no limit.
        fraction: share of each class that a random split trains on; 0.1 by default.
        count: training pixels of each class in a random split, instead of a fraction.
        val_fraction: share of the training part that validates; 0: none.
        out: the file that `split` writes, NAME_KIND_SEED.npz by default.
        images: draw figures into this folder: false colours, classes and spectra, or the split.
        data_root: the folder that holds known scenes; by default TCPVIT_DATA, else the cache.
        json: print JSON instead of tables.

    Examples:
        tcpvit scene info materials
        tcpvit scene info cube.npy --labels labels.npy --images figures
        tcpvit scene split materials --seed 1 --out split.npz
        tcpvit scene split cube.npy --labels labels.npy --kind random --fraction 0.2 --window 5
    """
    check_writable(*([] if out is None else [out]), *([] if images is None else [images / "figure"]))
    opened = open_scene(
        scene_name(file),
        resolve_root(data_root),
        labels=None if labels is None else str(labels),
        key=key,
        labels_key=labels_key,
    )
    if action == "info":
        if out is not None:
            raise ValueError("--out is for `tcpvit scene split`; figures go into --images FOLDER")
        statistics = fit_statistics(opened, transductive=True)
        tables = [
            _about(opened),
            *([_classes(opened)] if opened.labels is not None and opened.labels.any() else []),
            _energy(statistics),
        ]
        drawn = draw_info(opened, statistics, images) if images is not None else []
    else:
        options: dict[str, Any] = {"fraction": fraction, "counts": count} if kind == "random" else {}
        options |= {"share": share, "cap": cap or None} if kind == "disjoint" else {}
        if kind == "disjoint" and (fraction is not None or count is not None):
            raise ValueError("--fraction and --count are for --kind random; a disjoint split has --share and --cap")
        split = make_split(opened, kind, image_size=window, seed=seed, val_fraction=val_fraction, **options)
        place = out or Path(f"{opened.name}_{kind}_{seed}.npz")
        keep_inputs([place], opened.files)
        tables = [_parts(opened, split, place)]
        split.save(place)
        drawn = draw_split(opened, split, images) if images is not None else []
    if drawn:
        tables[-1].notes.append(f"figures: {', '.join(map(str, drawn))}")
    show(tables, json=json)
    return tables


def _about(scene: Scene) -> Table:
    table = Table("scene", scene.name, ["property", "value"])
    height, width, bands = scene.shape
    table.add("pixels", f"{height} rows × {width} columns")
    unused = bands - len(scene.good_bands)
    table.add("bands", f"{bands}{f', {unused} of them marked as bad' if unused else ''}, {scene.data.dtype}")
    if scene.wavelengths is None:
        table.add("wavelengths", "not known")
    else:
        table.add("wavelengths", f"{scene.wavelengths.min():g} to {scene.wavelengths.max():g} nm")
    red, green, blue = (band + 1 for band in composite_bands(scene))
    table.add("false colours", f"bands {red}, {green}, {blue} as red, green, blue")
    table.add("georeference", "none" if scene.georeference is None else scene.georeference.format)
    if scene.labels is None:
        table.add("labels", "none; give them with --labels FILE")
    else:
        labelled = int((scene.labels > 0).sum())
        table.add("labels", f"{labelled:,} pixels in {scene.num_classes} classes" if labelled else "none: all are 0")
    if scene.missing is not None:
        table.add("no data", f"{int(scene.missing.sum()):,} pixels, {scene.unmeasured:,} of them labelled")
    if scene.source is not None:
        table.add("file", str(scene.source))
    return table


def _classes(scene: Scene) -> Table:
    table = Table("classes", "classes", ["class", "name", "pixels"])
    for k, (name, count) in enumerate(zip(scene.class_names, scene.class_counts(), strict=True), start=1):
        table.add(str(k), name, int(count))
    return table


def _energy(statistics: SceneStatistics) -> Table:
    table = Table("frequencies", "variance of the spectra by frequency", ["kept frequencies", "variance held"])
    held = np.cumsum(statistics.energy)
    steps = sorted({*(k for k in STEPS if k < len(held)), statistics.kept_frequencies, len(held)})
    for k in steps:
        suggested = k == statistics.kept_frequencies
        table.add(f"{k}{' (suggested)' * suggested}", f"{100 * held[k - 1]:.1f} %", strong=suggested)
    table.notes.append(statistics.reason)
    table.notes.append(f"train with --set kept={statistics.kept_frequencies}; the presets keep 32")
    return table


def _parts(scene: Scene, split: SceneSplit, place: Path) -> Table:
    shown = ("train", "validation", "test", "guard", "unused")
    table = Table("split", f"{split.kind} split of {scene.name}, seed {split.seed}", ["class", *shown])
    counts = split.counts(scene.require_labels())
    for k, name in enumerate(scene.class_names):
        table.add(name, *(int(counts[part][k]) if k < len(counts[part]) else 0 for part in shown))
    table.add("all", *(int(counts[part].sum()) for part in shown), strong=True)
    table.notes += [*scene.notes(), *split.notes(scene.class_names, scene.require_labels()), f"saved as {place}"]
    return table
