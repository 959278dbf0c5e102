"""Oxford-IIIT Pet (Parkhi et al., 2012): 7,349 images with trimaps, as pet against background (paper, Section 5.2).

Trimap 1 is the pet, 2 the background, 3 the border, which is ignored. The paper's table has pet and background
swapped: see "Notes on the paper".
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from tcpvit.data.files import FileCheck, Resource, Source
from tcpvit.data.image_set import ImageSet, Splits
from tcpvit.data.images import ImageFiles, OnBad, in_memory
from tcpvit.data.subsets import draw, fraction_sizes
from tcpvit.validation import Count, Flag

CLASSES = ("background", "pet")
TRIMAP = {1: 1, 2: 0, 3: 255}
HELD_OUT = 0.2  # 5,879/1,470 in the paper
PUBLISHED = {"list": 7349, "trainval": 3680, "test": 3669}
HOMES = ("oxford-iiit-pet", "oxford_pet", "oxford-pet")

# md5s as torchvision and three other projects list them.
_ADDRESS = "https://www.robots.ox.ac.uk/~vgg/data/pets/data/"
RESOURCES = (
    Resource(_ADDRESS + "images.tar.gz", "5c4f3ee8e5d25df40f4fd59a7f44e54c", 791_918_971),
    Resource(_ADDRESS + "annotations.tar.gz", "95a8c909bbe2e81eed6a22bccdf3f68f", 19_173_078),
)


def is_needed(member: str) -> bool:
    """Images, trimaps and lists; not the boxes, nor what a Mac left in the archive."""
    name = member.rsplit("/", 1)[-1]
    return not name.startswith("._") and name.endswith((".jpg", ".png", ".txt"))


def check(folder: Path) -> list[FileCheck]:
    """The lists have their published lengths, and every image and trimap decodes and fits its partner."""
    checks = []
    for part, length in PUBLISHED.items():
        found = len(_names(folder, part))
        checks.append(FileCheck(f"annotations/{part}.txt", found == length, f"{found:,} of {length:,} names"))
    try:
        pets = _files(folder, image_size=32, on_bad="stop").in_memory()
    except ValueError as error:
        return [*checks, FileCheck("images, trimaps", False, str(error))]
    about = f"{len(pets):,} pairs read, {int(_without_pet(pets).sum())} trimaps show no pet"
    return [*checks, FileCheck("images, trimaps", True, about)]


def load(
    folder: Path,
    *,
    split: str,
    seed: int,
    image_size: Count = 128,
    drop_empty: Flag = False,
    on_bad: OnBad = "stop",
) -> Splits:
    """`paper`: 80 % / 20 % of all images by seed. `official`: trainval.txt / test.txt.

    `drop_empty` leaves out the images whose trimap shows no pet, after the split.
    """
    files = _files(folder, image_size, on_bad)
    parts = in_memory([files.subset(rows) for rows in _rows(folder, split, seed)])
    train, test = (_report_empty(part, _names(folder, "list"), drop_empty) for part in parts)
    return Splits("oxford-pet", train, test, test)


def _files(folder: Path, image_size: int, on_bad: OnBad) -> ImageFiles:
    names = _names(folder, "list")
    return ImageFiles(
        files=tuple(f"{folder}/images/{name}.jpg" for name in names),
        targets=tuple(f"{folder}/annotations/trimaps/{name}.png" for name in names),
        classes=CLASSES,
        source="oxford-pet/list",
        image_size=image_size,
        fit="squash",
        on_bad=on_bad,
        mask_values=TRIMAP,
    )


def _names(folder: Path, part: str) -> list[str]:
    """The first word of every line of an official list that is not a comment."""
    lines = (folder / "annotations" / f"{part}.txt").read_text(encoding="utf-8").splitlines()
    return [line.split()[0] for line in lines if line.strip() and not line.startswith("#")]


def _rows(folder: Path, split: str, seed: int) -> list[Tensor]:
    """Which lines of list.txt train, and which are held out."""
    names = _names(folder, "list")
    if split == "paper":
        return draw(len(names), fraction_sizes(len(names), HELD_OUT), seed=seed)
    row = {name: i for i, name in enumerate(names)}
    parts = {part: _names(folder, part) for part in ("trainval", "test")}
    for part, listed in parts.items():
        if missing := [name for name in listed if name not in row]:
            raise ValueError(f"{folder}/annotations: {missing[0]} of {part}.txt is not in list.txt; download it again")
    return [torch.tensor([row[name] for name in listed]) for listed in parts.values()]


def _without_pet(pets: ImageSet) -> Tensor:
    return (pets.targets != 1).flatten(1).all(1)


def _report_empty(pets: ImageSet, names: list[str], drop: bool) -> ImageSet:
    empty = _without_pet(pets)
    if not empty.any():
        return pets
    listed = ", ".join(names[i] for i in pets.indices[empty].tolist())
    verb = "are left out" if drop else "are kept (drop_empty=True leaves them out)"
    note = f"{int(empty.sum())} trimaps show no pet and {verb}: {listed}"
    pets = replace(pets, notes=(*pets.notes, note))
    return pets.subset((~empty).nonzero()[:, 0]) if drop else pets


SOURCE = Source(
    name="oxford-pet",
    about="7,349 pets with trimaps: pet and background",
    home="oxford-iiit-pet",
    resources=RESOURCES,
    default_split="paper",
    markers=("annotations/list.txt",),
    homes=HOMES,
    check=check,
    load=load,
    is_needed=is_needed,
)
