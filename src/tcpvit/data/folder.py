"""Your own pictures, `folder:PATH`: a folder for each class, or images/ and masks/; with val/, or split by seed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tcpvit.data.image_set import IGNORE, Pictures, Splits
from tcpvit.data.pictures import EXTENSIONS, SKIP, Fit, OnBad, PictureFiles, list_bad, read_mask
from tcpvit.data.subsets import draw, fraction_sizes

MEMORY_LIMIT = 2 * 1024**3  # bytes of decoded pictures beyond which a folder is streamed from disk
MEND = (
    "rename the values with mask_values (--set 'data.options.mask_values={0: 0, 255: 1}'), or name the classes in "
    "classes.txt, one a line"
)
PART_NAMES = {"train": ("train",), "val": ("val", "valid", "validation"), "test": ("test",)}


def load(
    folder: Path,
    *,
    seed: int = 0,
    stratified: bool = True,
    image_size: int = 224,
    val_fraction: float | None = None,
    fit: Fit = "crop",
    on_bad: OnBad = "stop",
    stream: bool | None = None,
    classes: Sequence[str] | None = None,
    mask_values: dict[int, int] | None = None,
) -> Splits:
    """The pictures of `folder`, held out by val/ or test/ where one exists, else a fifth (`val_fraction`) by seed.

    `fit` makes pictures square ("crop" keeps the middle, "squash" everything); `on_bad` says whether a bad file stops
    the run or is skipped; `stream` decodes batch by batch instead of keeping everything in memory (by default beyond
    2 GB). For masks, `classes` names the classes (else classes.txt, else as many as the masks hold), and `mask_values`
    renames what the masks hold, as {0: 0, 255: 1}.
    """
    folders = _part_folders(folder)
    names = tuple(classes or _class_names(folder, folders["train"], mask_values))
    common: dict[str, Any] = {"image_size": image_size, "fit": fit, "on_bad": on_bad, "mask_values": mask_values}
    parts = {
        part: PictureFiles(**_listing(path, names, on_bad), classes=names, source=f"{folder.name}/{part}", **common)
        for part, path in folders.items()
    }
    if val_fraction or len(parts) == 1:
        parts = parts | _hold_out(parts["train"], val_fraction or 0.2, seed, stratified)
    return _splits(f"folder:{folder}", parts, stream)


def _part_folders(folder: Path) -> dict[str, Path]:
    """train/, val/ and test/ where they exist; a folder without them is the training part, to be split."""
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}; `folder:PATH` needs one that exists")
    found = {part: folder / name for part, names in PART_NAMES.items() for name in names if (folder / name).is_dir()}
    return found if "train" in found else {"train": folder}


def _splits(name: str, parts: dict[str, PictureFiles], stream: bool | None) -> Splits:
    if stream is None:
        pixels = sum(len(part) * part.image_size**2 * 3 for part in parts.values())
        stream = pixels > MEMORY_LIMIT
    loaded: dict[str, Pictures] = {part: files if stream else files.in_memory() for part, files in parts.items()}
    held_out = loaded.get("test", loaded.get("val"))
    assert held_out is not None
    return Splits(name, loaded["train"], loaded.get("val", held_out), held_out)


def _hold_out(train: PictureFiles, fraction: float, seed: int, stratified: bool) -> dict[str, PictureFiles]:
    sizes = fraction_sizes(len(train), fraction)
    kept, held_out = draw(len(train), sizes, seed=seed, labels=train.labels if stratified else None)
    val = replace(train.subset(held_out), source=f"{train.source.rpartition('/')[0]}/held out")
    return {"train": train.subset(kept), "val": val}


def _is_segmentation(folder: Path) -> bool:
    return (folder / "images").is_dir() and (folder / "masks").is_dir()


def _listing(folder: Path, classes: tuple[str, ...], on_bad: OnBad) -> dict[str, Any]:
    """The files of a part, with their labels or masks, as PictureFiles takes them."""
    return _list_pairs(folder, on_bad) if _is_segmentation(folder) else _list_classes(folder, classes)


def _list_classes(folder: Path, classes: tuple[str, ...]) -> dict[str, Any]:
    files: list[str] = []
    labels: list[int] = []
    for name in _subfolders(folder):
        if name not in classes:
            raise ValueError(
                f"{folder} has a class {name!r} that the training part lacks; its classes: {', '.join(classes)}"
            )
        found = _pictures_below(folder / name)
        if not found:
            raise ValueError(f"{folder / name} holds no pictures; fill it or remove it")
        files += found
        labels += [classes.index(name)] * len(found)
    return {"files": tuple(files), "targets": torch.tensor(labels, dtype=torch.int64)}


def _list_pairs(folder: Path, on_bad: OnBad) -> dict[str, Any]:
    """Pictures and masks of the same name; what has no partner is named."""
    pictures, masks = (_by_stem(folder / part) for part in ("images", "masks"))
    alone = [f"{pictures[stem]} (no mask)" for stem in pictures if stem not in masks]
    alone += [f"{masks[stem]} (no picture)" for stem in masks if stem not in pictures]
    if alone and on_bad == "stop":
        raise ValueError(
            f"{list_bad(alone, len(pictures) + len(masks))}; a mask has its picture's name, as images/cat.jpg and "
            f"masks/cat.png; add the partner, remove the file, or {SKIP}"
        )
    both = [stem for stem in pictures if stem in masks]
    notes = (f"{list_bad(alone, len(pictures) + len(masks))}; skipped",) if alone else ()
    return {
        "files": tuple(pictures[stem] for stem in both),
        "targets": tuple(masks[stem] for stem in both),
        "notes": notes,
    }


def _class_names(folder: Path, train: Path, mask_values: dict[int, int] | None) -> Sequence[str]:
    if not _is_segmentation(train):
        names = _subfolders(train)
        if len(names) < 2:
            raise ValueError(
                f"{train} should hold one folder of pictures for each of two or more classes (found {len(names)}), or "
                f"images/ and masks/ for segmentation"
            )
        return names
    listed = folder / "classes.txt"
    if listed.is_file():
        return [line.strip() for line in listed.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [f"class {k}" for k in range(_count_mask_classes(train, mask_values))]


def _count_mask_classes(train: Path, mask_values: dict[int, int] | None) -> int:
    """One more than the largest class id; a mask that skips some holds something else than class ids."""
    holders = dict.fromkeys(mask_values.values(), "") if mask_values else _values_of_masks(train / "masks")
    ids = sorted(holders.keys() - {IGNORE})
    if len(ids) < 2:
        raise ValueError(
            f"the masks of {train} hold only the values {sorted(holders)}, where {IGNORE} is ignored: {MEND}"
        )
    if missing := sorted(set(range(ids[-1])) - set(ids)):
        odd = next(k for k in ids if k > missing[0])
        raise ValueError(
            f"class ids count from 0, but the masks of {train} hold {odd} (as {holders[odd] or 'mask_values'}) and not "
            f"{missing[0]}: mend them, or {MEND}"
        )
    return ids[-1] + 1


def _values_of_masks(folder: Path) -> dict[int, str]:
    """The values that masks hold, each with the first file that holds it."""
    found: dict[int, str] = {}
    masks = _pictures_below(folder)
    if not masks:
        raise ValueError(f"{folder} holds no masks; a mask has its picture's name, as images/cat.jpg and masks/cat.png")
    for path in masks:
        with suppress(Exception):  # a damaged mask is named when the pictures are read
            found = dict.fromkeys(np.unique(np.asarray(read_mask(path))).tolist(), path) | found
    return found


def _subfolders(folder: Path) -> list[str]:
    return sorted(item.name for item in folder.iterdir() if item.is_dir() and not item.name.startswith("."))


def _pictures_below(folder: Path) -> list[str]:
    """Strings, not Paths: there may be millions."""
    return sorted(
        os.path.join(place, name)
        for place, _, names in os.walk(folder, followlinks=True)
        for name in names
        if os.path.splitext(name)[1].lower() in EXTENSIONS and not name.startswith(".")
    )


def _by_stem(folder: Path) -> dict[str, str]:
    return {os.path.splitext(os.path.relpath(path, folder))[0]: path for path in _pictures_below(folder)}
