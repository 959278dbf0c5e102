"""Your own pictures, `folder:PATH`: a folder for each class, or images/ and masks/; with val/, or split by seed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from tcpvit.data.image_set import IGNORE, Pictures, Splits
from tcpvit.data.pictures import SKIP, SPECIAL, Fit, OnBad, PictureFiles, in_memory, is_special, list_bad, read_mask
from tcpvit.data.subsets import draw, fraction_sizes
from tcpvit.data.walk import Walk, walk_pictures

MEMORY_LIMIT = 2 * 1024**3  # bytes of decoded pictures beyond which a folder is streamed from disk
RENAME = "rename the values with mask_values (--set 'data.options.mask_values={0: 0, 255: 1}')"
MEND = f"{RENAME}, or name the classes, one a line in classes.txt or with the option classes"
CLASS_IMAGES = ", or, if images is a class, name all classes (--set 'data.options.classes=[images, …]')"
NAMES = "a mask has its picture's name, as images/cat.jpg and masks/cat.png"
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
    renames what the masks hold, as {0: 0, 255: 1}. A picture counts once, however many links lead to it; pipes,
    sockets and devices are skipped with a note.
    """
    folders = _part_folders(folder)
    if _is_segmentation(folders, classes):
        listings = _list_pairs(folders, on_bad)
        masks = listings["train"]["targets"]
        names = tuple(classes or _listed_classes(folder) or _classes_of_masks(folders["train"], masks, mask_values))
    else:
        names = tuple(classes or _class_folders(folders["train"]))
        claims = _Claims("as two classes")
        listings = {part: _list_classes(part, path, names, claims) for part, path in folders.items()}
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"every class has a name of its own, but {', '.join(repeated)} stands there more than once")
    common: dict[str, Any] = {"image_size": image_size, "fit": fit, "on_bad": on_bad, "mask_values": mask_values}
    parts = {
        part: PictureFiles(**listing, classes=names, source=f"{folder.name}/{part}", **common)
        for part, listing in listings.items()
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
    files = list(parts.values())
    loaded: dict[str, Pictures] = dict(zip(parts, files if stream else in_memory(files), strict=True))
    held_out = loaded.get("test", loaded.get("val"))
    assert held_out is not None
    return Splits(name, loaded["train"], loaded.get("val", held_out), held_out)


def _hold_out(train: PictureFiles, fraction: float, seed: int, stratified: bool) -> dict[str, PictureFiles]:
    sizes = fraction_sizes(len(train), fraction)
    kept, held_out = draw(len(train), sizes, seed=seed, labels=train.labels if stratified else None)
    val = replace(train.subset(held_out), source=f"{train.source.rpartition('/')[0]}/held out")
    return {"train": train.subset(kept), "val": val}


def _is_segmentation(folders: dict[str, Path], classes: Sequence[str] | None) -> bool:
    """Whether the training part has images/, which need masks/ in every part unless `classes` has a class images."""
    train = folders["train"]
    is_class = "images" in (classes or ()) and not (train / "masks").is_dir()
    if is_class or not (train / "images").is_dir():
        return False
    for folder in folders.values():
        if not (folder / "images").is_dir() or not (folder / "masks").is_dir():
            found = ", ".join(f"{name}/" for name in _subfolders(folder)) or "none of them"
            raise ValueError(
                f"segmentation needs images/ and masks/, found {found} in {folder}: add or rename the folder"
                f"{CLASS_IMAGES if folder == train else ''}"
            )
    return True


class _Claims:
    """What each real file counts as, so that links make none of them two classes, or training and held-out data."""

    def __init__(self, as_two: str):
        self.as_two = as_two
        self.claims: dict[str, tuple[str, bool, str]] = {}  # real path: path, whether it is trained on, as what

    def add(self, files: Mapping[str, str], part: str, names: Iterable[str]) -> None:
        """The files (path: real path) count as `names`; the validation and the test part may have them in common."""
        trained = part == "train"
        for (path, real), name in zip(files.items(), names, strict=False):
            other, other_trained, other_name = self.claims.setdefault(real, (path, trained, name))
            if (other_trained, other_name) != (trained, name):
                how = self.as_two if trained == other_trained else "as training and as held-out data"
                raise ValueError(f"{other} and {path} are one file by a link and would count {how}; remove one of them")


def _list_classes(part: str, folder: Path, classes: tuple[str, ...], claims: _Claims) -> dict[str, Any]:
    files: list[str] = []
    labels: list[int] = []
    special: list[str] = []
    for name in _subfolders(folder):
        if name not in classes:
            raise ValueError(
                f"{folder} has a class {name!r} that the training part lacks; its classes: {', '.join(classes)}"
            )
        walk = walk_pictures(folder / name)
        found = walk.once()
        special += _say_special(walk)
        if not found:
            besides = f" ({list_bad(special, len(special))})" if walk.special else ""
            raise ValueError(f"{folder / name} holds no pictures{besides}; fill it or remove it")
        claims.add(found, part, repeat(name))
        files += sorted(found)
        labels += [classes.index(name)] * len(found)
    notes = _note_skipped(special, len(files) + len(special))
    return {"files": tuple(files), "targets": torch.tensor(labels, dtype=torch.int64), "notes": notes}


def _list_pairs(folders: dict[str, Path], on_bad: OnBad) -> dict[str, dict[str, Any]]:
    """Pictures and masks of the same name in each part; what is no pair is named, for all parts together."""
    claims = _Claims("as two pictures")
    pairs = {part: _pair(part, path, claims) for part, path in folders.items()}
    unpaired = [sentence for found in pairs.values() for sentence in found.unpaired]
    special = [sentence for found in pairs.values() for sentence in found.special]
    named = list_bad(unpaired + special, sum(found.total for found in pairs.values()))
    for part, found in pairs.items():
        if not found.masks:
            raise ValueError(f"{named}; {NAMES}; no such pair is left in {folders[part]}")
    if unpaired and on_bad == "stop":
        raise ValueError(f"{named}; {NAMES}; add the partner, remove the file, or {SKIP}")
    return {part: found.listing() for part, found in pairs.items()}


class _Pairs(NamedTuple):
    pictures: tuple[str, ...]
    masks: tuple[str, ...]
    unpaired: list[str]  # a sentence for each other file
    special: list[str]  # a sentence for each that is no file
    total: int  # of both kinds

    def listing(self) -> dict[str, Any]:
        """As PictureFiles takes them."""
        notes = _note_skipped(self.unpaired + self.special, self.total)
        return {"files": self.pictures, "targets": self.masks, "notes": notes}


def _pair(part: str, folder: Path, claims: _Claims) -> _Pairs:
    walks = [walk_pictures(folder / kind) for kind in ("images", "masks")]  # pictures may share a mask, by links
    claims.add(walks[0].files, part, (_stem(path, folder / "images") for path in walks[0].files))
    pictures, masks = (_by_stem(walk, folder / kind) for walk, kind in zip(walks, ("images", "masks"), strict=True))
    special = [sentence for walk in walks for sentence in _say_special(walk)]
    if not masks:
        raise ValueError(f"{folder / 'masks'} holds no masks; {NAMES}")
    both = [stem for stem in pictures if len(pictures[stem]) == len(masks.get(stem, [])) == 1]
    others = sorted((pictures.keys() | masks.keys()) - set(both))  # so that names that are nearly equal stand together
    return _Pairs(
        tuple(pictures[stem][0] for stem in both),
        tuple(masks[stem][0] for stem in both),
        [sentence for stem in others for sentence in _say_why(pictures.get(stem, []), masks.get(stem, []))],
        special,
        sum(map(len, [*pictures.values(), *masks.values(), special])),
    )


def _say_why(pictures: list[str], masks: list[str]) -> Iterator[str]:
    """Why the pictures and masks of one name are no pair: a partner is missing, or it is not clear which."""
    for kind, files, partner, partners in (("picture", pictures, "mask", masks), ("mask", masks, "picture", pictures)):
        if not partners:
            yield from (f"{path} (no {partner})" for path in files)
        elif len(files) > 1:
            yield from (f"{path} (one of {len(files)} {kind}s of this name)" for path in files)


def _class_folders(train: Path) -> list[str]:
    names = _subfolders(train)
    if len(names) < 2:
        raise ValueError(
            f"{train} should hold one folder of pictures for each of two or more classes (found {len(names)}), or "
            f"images/ and masks/ for segmentation"
        )
    return names


def _listed_classes(folder: Path) -> list[str]:
    """The lines of classes.txt, where there is one."""
    listed = folder / "classes.txt"
    if is_special(str(listed)):
        raise ValueError(f"{listed} is {SPECIAL}; put a text file there, or remove it")
    lines = listed.read_text(encoding="utf-8-sig").splitlines() if listed.is_file() else []
    return [line.strip() for line in lines if line.strip()]


def _classes_of_masks(train: Path, masks: Sequence[str], mask_values: dict[int, int] | None) -> list[str]:
    """As many classes as the masks hold."""
    if mask_values:
        return _name_classes(train, dict.fromkeys(mask_values.values(), "mask_values"))
    holders, bad = _values_of_masks(masks)
    if not holders:
        raise ValueError(f"{list_bad(bad, len(masks))}; no mask of {train} is left: mend them")
    return _name_classes(train, holders, f"; besides, {list_bad(bad, len(masks))}" if bad else "")


def _name_classes(train: Path, holders: dict[int, str], besides: str = "") -> list[str]:
    """Names up to the largest class id; a mask that skips some holds something else than class ids."""
    ids = sorted(holders.keys() - {IGNORE})
    if len(ids) < 2:
        raise ValueError(
            f"the masks of {train} hold only the values {sorted(holders)}, where {IGNORE} is ignored: "
            f"{RENAME if IGNORE in holders else MEND}{besides}"
        )
    if missing := sorted(set(range(ids[-1])) - set(ids)):
        odd = next(k for k in ids if k > missing[0])
        raise ValueError(
            f"class ids count from 0, but the masks of {train} hold {odd} (as {holders[odd]}) and not {missing[0]}: "
            f"mend them, or {MEND}; without these on_bad=skip cannot know which values are wrong{besides}"
        )
    return [f"class {k}" for k in ids]


def _values_of_masks(masks: Sequence[str]) -> tuple[dict[int, str], list[str]]:
    """The values that masks hold, each with the first file that holds it; and a sentence for each unreadable mask."""
    found: dict[int, str] = {}
    bad: list[str] = []
    for path in masks:
        try:
            found = dict.fromkeys(np.unique(np.asarray(read_mask(path))).tolist(), path) | found
        except Exception as error:  # a damaged file can fail anywhere in Pillow
            bad.append(f"{path} ({error or type(error).__name__})")
    return found, bad


def _subfolders(folder: Path) -> list[str]:
    return sorted(item.name for item in folder.iterdir() if item.is_dir() and not item.name.startswith("."))


def _by_stem(walk: Walk, folder: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path in sorted(walk.files):
        found.setdefault(_stem(path, folder), []).append(path)
    return found


def _stem(path: str, folder: Path) -> str:
    return os.path.splitext(os.path.relpath(path, folder))[0]


def _say_special(walk: Walk) -> list[str]:
    return [f"{path} ({SPECIAL})" for path in walk.special]


def _note_skipped(bad: Sequence[str], total: int) -> tuple[str, ...]:
    return (f"{list_bad(bad, total)}; skipped",) if bad else ()
