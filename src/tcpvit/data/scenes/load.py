"""A scene as train, val and test: `scene:PATH` for your own, a name for those that people know."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from tcpvit.data.image_set import Splits
from tcpvit.data.scenes.named import find_scene, list_scenes
from tcpvit.data.scenes.read import read_scene, with_labels
from tcpvit.data.scenes.scene import Scene
from tcpvit.data.scenes.splits import SceneSplit, disjoint_split, hold_out_pixels, random_split, split_from_masks
from tcpvit.data.scenes.statistics import fit_statistics
from tcpvit.data.scenes.windows import WindowSet
from tcpvit.errors import did_you_mean
from tcpvit.files import expand_user
from tcpvit.validation import Count, Flag, Maybe, Rate, Seed, Share, Text

PREFIX = "scene:"
WINDOW, FRACTION, VALIDATION = 9, 0.1, 0.2
# What only one kind of split takes.
OPTIONS = {
    "disjoint": ("share", "cap", "validation_by"),
    "random": ("fraction", "counts"),
    "masks": ("train_mask", "test_mask", "val_mask"),
}
HARMLESS = {"validation_by": "pixels"}  # what the other kinds do anyway


def load(
    name: str,
    root: str | Path | None = None,
    *,
    split: Text = "disjoint",
    labels: Maybe[Text] = None,
    key: Maybe[Text] = None,
    labels_key: Maybe[Text] = None,
    classes: Maybe[Sequence[Text]] = None,
    image_size: Maybe[Count] = None,
    seed: Seed = 0,
    val_fraction: Maybe[Rate] = None,
    share: Share = 0.3,
    cap: Maybe[Count] = 100,
    validation_by: Literal["fields", "pixels"] = "fields",
    fraction: Maybe[Share] = None,
    counts: Maybe[Count | dict[Count, int]] = None,
    train_mask: Maybe[Text] = None,
    test_mask: Maybe[Text] = None,
    val_mask: Maybe[Text] = None,
    transductive: Flag = False,
) -> Splits:
    """Windows of `image_size` (9) pixels around the labelled pixels of a scene.

    `labels` is the file of the label map, `key` and `labels_key` name arrays in files that hold several, `classes` are
    the names of classes 1, 2, ... `split` is "disjoint" (whole fields: `share` of each class, at most `cap` pixels),
    "random" (a `fraction`, 0.1, or `counts` of each class), "masks" (files, non-zero where a pixel belongs), or a split
    that was saved (.npz). `val_fraction` (0.2) of the training part validates, in fields of its own where the split is
    disjoint, unless `validation_by` is "pixels"; with 0 the test part stands in for it. Bands are standardised by the
    training pixels; with `transductive`, by all.
    """
    scene, made = open_split(
        name,
        root,
        labels=labels,
        key=key,
        labels_key=labels_key,
        classes=classes,
        split=split,
        image_size=image_size,
        seed=seed,
        val_fraction=val_fraction,
        share=share,
        cap=cap,
        validation_by=validation_by,
        fraction=fraction,
        counts=counts,
        train_mask=train_mask,
        test_mask=test_mask,
        val_mask=val_mask,
    )
    return scene_splits(name, scene, made, transductive=transductive)


def open_split(name: str, root: str | Path | None = None, **options: Any) -> tuple[Scene, SceneSplit]:
    """The scene and its split, by the options of `load`; others, as train_size, do not change them."""
    of_scene = {key: value for key, value in options.items() if key in ("labels", "key", "labels_key", "classes")}
    scene = open_scene(name, root, **of_scene)
    of_split = {key: value for key, value in options.items() if key in inspect.signature(make_split).parameters}
    return scene, make_split(scene, **of_split)


def open_scene(
    name: str,
    root: str | Path | None = None,
    *,
    labels: str | None = None,
    key: str | None = None,
    labels_key: str | None = None,
    classes: Sequence[str] | None = None,
) -> Scene:
    """The scene of `scene:PATH` or of a known name, with labels from another file if one is given."""
    if name.startswith(PREFIX):
        path = expand_user(name.removeprefix(PREFIX))
        if not path.exists():
            known = did_you_mean(path.name, list_scenes())
            raise FileNotFoundError(f"there is no file {path}, and no scene is known by that name{known}")
        scene = read_scene(path, None if labels is None else expand_user(labels), key=key, labels_key=labels_key)
    else:
        scene = find_scene(name, root)
        if labels is not None or labels_key is not None:
            label_file = scene.source if labels is None else expand_user(labels)
            if label_file is None:
                raise ValueError(f"{name} is made on the spot, so there is no file to find {labels_key!r} in")
            scene = with_labels(scene, label_file, key=labels_key)
    return scene if classes is None else replace(scene, class_names=tuple(classes), colours=())


def make_split(
    scene: Scene,
    split: str = "disjoint",
    *,
    image_size: int | None = None,
    seed: int = 0,
    val_fraction: float | None = None,
    share: float = 0.3,
    cap: int | None = 100,
    validation_by: Literal["fields", "pixels"] = "fields",
    fraction: float | None = None,
    counts: int | dict[int, int] | None = None,
    train_mask: str | None = None,
    test_mask: str | None = None,
    val_mask: str | None = None,
) -> SceneSplit:
    """The split that the options of `load` ask for."""
    own: dict[str, Any] = {
        "share": share,
        "cap": cap,
        "validation_by": validation_by,
        "fraction": fraction,
        "counts": counts,
    }
    own |= {"train_mask": train_mask, "test_mask": test_mask, "val_mask": val_mask}
    _refuse_others(split, own)
    labels = scene.require_labels()
    if split.endswith(".npz"):
        return _saved(split, scene, image_size, val_fraction)
    window = _window(WINDOW if image_size is None else image_size, scene)
    common: dict[str, Any] = {"window": window}
    validation = VALIDATION if val_fraction is None else val_fraction
    if split == "masks":
        if train_mask is None or test_mask is None:
            raise ValueError("split=masks needs the options train_mask and test_mask, files of the size of the scene")
        masks = {"train": train_mask, "test": test_mask, "validation": val_mask}
        common |= {part: None if path is None else expand_user(path) for part, path in masks.items()}
        found = split_from_masks(labels, **common)
        return found if val_mask is not None else hold_out_pixels(found, labels, validation, seed)
    common |= {"seed": seed, "validation": validation}
    if split == "disjoint":
        return disjoint_split(labels, share=share, cap=cap, validation_by=validation_by, **common)
    part = fraction or (FRACTION if counts is None else None)
    return random_split(labels, fraction=part, counts=counts, **common)


def scene_splits(name: str, scene: Scene, split: SceneSplit, *, transductive: bool = False) -> Splits:
    """The parts of a split as sets of windows, standardised by the training pixels or, with `transductive`, by all."""
    labels = scene.require_labels()
    split.check_labels(labels)
    if len(np.unique(labels[split.mask("train")])) < 2:
        raise ValueError(f"the training pixels of {scene.name} have one class only; a classifier needs two or more")
    statistics = fit_statistics(scene, split, transductive=transductive)
    notes = (*scene.notes(), *split.notes(scene.class_names, labels))
    notes += (f"bands standardised on {statistics.origin}",) * transductive

    def part(which: str, source: str) -> WindowSet:
        return WindowSet(
            scene=scene,
            window=split.window,
            classes=scene.class_names,
            source=f"{scene.name}/{source}",
            mean=tuple(statistics.mean.tolist()),
            std=tuple(statistics.std.tolist()),
            indices=torch.from_numpy(split.mask(which).ravel().nonzero()[0]),
            notes=notes,
        )

    test = part("test", "test")
    val = part("validation", "val") if split.mask("validation").any() else test
    return Splits(name, part("train", "train"), val, test)


def _saved(path: str, scene: Scene, window: int | None, val_fraction: float | None) -> SceneSplit:
    split = SceneSplit.load(expand_user(path))
    split.check_labels(scene.require_labels())
    if val_fraction is not None:
        raise ValueError(f"{path} says which pixels validate; leave val_fraction out, or make another split with it")
    if window is None or window == split.window:
        return split
    if split.kind == "disjoint" and window > split.window:
        raise ValueError(
            f"{path} keeps windows of {split.window} pixels apart, {window} is wider; make it for {window}"
        )
    return replace(split, window=_window(window, scene))


def _window(window: int, scene: Scene) -> int:
    if window > min(scene.shape[:2]):
        raise ValueError(
            f"a window of {window}×{window} pixels is wider than {scene.name}, which has {scene.shape[0]}×"
            f"{scene.shape[1]}; make it smaller with data.image_size"
        )
    return window


def _refuse_others(split: str, own: dict[str, Any]) -> None:
    """A known split, and no option that only another kind takes."""
    kinds = [*OPTIONS, "FILE.npz"]
    if split not in OPTIONS and not split.endswith(".npz"):
        raise ValueError(
            f"split is {', '.join(kinds[:-1])} or the name of a saved one, FILE.npz, got {split!r}"
            f"{did_you_mean(split, kinds)}"
        )
    defaults = inspect.signature(make_split).parameters
    for kind, names in OPTIONS.items():
        for name in names:
            if kind != split and own[name] not in (defaults[name].default, HARMLESS.get(name)):
                raise ValueError(f"{name} is an option of split={kind}, but the split is {split}; leave it out")
