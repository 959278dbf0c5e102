"""The files of a folder of images: its parts, its classes, or its pairs of images and masks."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from tcpvit.data.decode import SPECIAL
from tcpvit.data.images import SKIP, OnBad, list_bad
from tcpvit.data.walk import Walk, walk_images
from tcpvit.errors import printable

CLASS_IMAGES = ", or, if images is a class, name all classes (--set 'data.options.classes=[images, …]')"
NAMES = "a mask has its image's name, as images/cat.jpg and masks/cat.png"
PART_NAMES = {"train": ("train",), "val": ("val", "valid", "validation"), "test": ("test",)}


class Listing(NamedTuple):
    """The files of a part, with their labels (N,) or the files of their masks."""

    files: tuple[str, ...]
    targets: Tensor | tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def labels(self) -> Tensor:
        """(N,) class ids."""
        assert isinstance(self.targets, Tensor)
        return self.targets

    @property
    def masks(self) -> tuple[str, ...]:
        """The mask of each file."""
        assert isinstance(self.targets, tuple)
        return self.targets


def part_folders(folder: Path) -> dict[str, Path]:
    """train/, val/ and test/ where they exist; a folder without them is the training part, to be split."""
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}; name one that exists")
    there = {name: name for name in subfolders(folder)}
    in_any_case = {name.lower(): name for name in there}  # Train/ and Test/, where nothing else could be a class
    if all_parts := bool(there) and in_any_case.keys() <= {name for names in PART_NAMES.values() for name in names}:
        there = in_any_case
    found = {part: folder / there[name] for part, names in PART_NAMES.items() for name in names if name in there}
    if all_parts and "train" not in found:
        raise ValueError(
            f"{folder} has {' and '.join(f'{path.name}/' for path in found.values())}, but no train/; add it"
        )
    return found if "train" in found else {"train": folder}


def is_segmentation(folders: dict[str, Path], classes: Sequence[str] | None) -> bool:
    """Whether the training part has images/, which need masks/ in every part unless `classes` has a class images."""
    train = folders["train"]
    is_class = "images" in (classes or ()) and not (train / "masks").is_dir()
    if is_class or not (train / "images").is_dir():
        return False
    for folder in folders.values():
        if not (folder / "images").is_dir() or not (folder / "masks").is_dir():
            found = ", ".join(f"{name}/" for name in subfolders(folder)) or "none of them"
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

    def add(self, files: Mapping[str, str], part: str, names: Iterable[str]) -> list[str]:
        """The files (path: real path) count as `names`; the validation and the test part may have them in common.

        Gives a sentence for each that would count twice.
        """
        trained = part == "train"
        twice = []
        for (path, real), name in zip(files.items(), names, strict=False):
            other, other_trained, other_name = self.claims.setdefault(real, (path, trained, name))
            if (other_trained, other_name) != (trained, name):
                how = self.as_two if trained == other_trained else "as training and as held-out data"
                twice.append(
                    printable(f"{other} and {path} are one file by a link and would count {how}; remove one of them")
                )
        return twice


def list_classes(folders: dict[str, Path], classes: tuple[str, ...], problems: list[str]) -> dict[str, Listing]:
    """The images of each part by class; what is wrong joins `problems`."""
    claims = _Claims("as two classes")
    return {part: _list_part(part, path, classes, claims, problems) for part, path in folders.items()}


def _list_part(part: str, folder: Path, classes: tuple[str, ...], claims: _Claims, problems: list[str]) -> Listing:
    files: list[str] = []
    labels: list[int] = []
    special: list[str] = []
    unknown = [name for name in subfolders(folder) if name not in classes]
    if unknown:
        problems.append(
            f"{folder} has {'a class' if len(unknown) == 1 else 'classes'} {', '.join(map(repr, unknown[:5]))} that "
            f"the training part lacks; its classes: {printable(', '.join(classes))}"
        )
    for name in subfolders(folder):
        if name in unknown:
            continue
        walk = walk_images(folder / name)
        found = walk.once()
        special += _say_special(walk)
        if not found:
            besides = f" ({list_bad(special, len(special))})" if walk.special else ""
            problems.append(printable(f"{folder / name} holds no images{besides}; fill it or remove it"))
        problems += claims.add(found, part, repeat(name))
        files += sorted(found)
        labels += [classes.index(name)] * len(found)
    notes = _note_skipped(special, len(files) + len(special))
    return Listing(tuple(files), torch.tensor(labels, dtype=torch.int64), notes)


def list_pairs(folders: dict[str, Path], on_bad: OnBad, problems: list[str]) -> dict[str, Listing]:
    """Images and masks of the same name in each part; what is no pair is named, for all parts together."""
    claims = _Claims("as two images")
    pairs = {part: _pair(part, path, claims, problems) for part, path in folders.items()}
    unpaired = [sentence for found in pairs.values() for sentence in found.unpaired]
    special = [sentence for found in pairs.values() for sentence in found.special]
    named = list_bad(unpaired + special, sum(found.total for found in pairs.values()))
    for part, found in pairs.items():
        if not found.masks:
            raise ValueError(f"{named}; {NAMES}; no such pair is left in {folders[part]}")
    if unpaired and on_bad == "stop":
        problems.append(f"{named}; {NAMES}; add the partner, remove the file, or {SKIP}")
    return {part: found.listing() for part, found in pairs.items()}


class _Pairs(NamedTuple):
    images: tuple[str, ...]
    masks: tuple[str, ...]
    unpaired: list[str]  # a sentence for each other file
    special: list[str]  # a sentence for each that is no file
    total: int  # of both kinds

    def listing(self) -> Listing:
        """The pairs, with a note of what was skipped."""
        return Listing(self.images, self.masks, _note_skipped(self.unpaired + self.special, self.total))


def _pair(part: str, folder: Path, claims: _Claims, problems: list[str]) -> _Pairs:
    walks = [walk_images(folder / kind) for kind in ("images", "masks")]  # images may share a mask, by links
    problems += claims.add(walks[0].files, part, (_stem(path, folder / "images") for path in walks[0].files))
    images, masks = (_by_stem(walk, folder / kind) for walk, kind in zip(walks, ("images", "masks"), strict=True))
    special = [sentence for walk in walks for sentence in _say_special(walk)]
    if not masks:
        raise ValueError(f"{folder / 'masks'} holds no masks; {NAMES}")
    both = [stem for stem in images if len(images[stem]) == len(masks.get(stem, [])) == 1]
    others = sorted((images.keys() | masks.keys()) - set(both))  # so that names that are nearly equal stand together
    return _Pairs(
        tuple(images[stem][0] for stem in both),
        tuple(masks[stem][0] for stem in both),
        [sentence for stem in others for sentence in _say_why(images.get(stem, []), masks.get(stem, []))],
        special,
        sum(map(len, [*images.values(), *masks.values(), special])),
    )


def _say_why(images: list[str], masks: list[str]) -> Iterator[str]:
    """Why the images and masks of one name are no pair: a partner is missing, or it is not clear which."""
    for kind, files, partner, partners in (("image", images, "mask", masks), ("mask", masks, "image", images)):
        if not partners:
            yield from (f"{path} (no {partner})" for path in files)
        elif len(files) > 1:
            yield from (f"{path} (one of {len(files)} {kind}s of this name)" for path in files)


def class_folders(train: Path) -> list[str]:
    """The names of the classes: one folder for each."""
    names = subfolders(train)
    if len(names) < 2:
        raise ValueError(
            f"{train} should hold one folder of images for each of two or more classes (found {len(names)}), or "
            f"images/ and masks/ for segmentation"
        )
    return names


def subfolders(folder: Path) -> list[str]:
    """Their names, hidden ones left out."""
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
