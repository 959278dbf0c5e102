"""STL-10 (Coates et al., 2011): 5,000 + 8,000 labelled images of 96×96×3 in 10 classes, resized to 32×32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from tcpvit.data.files import FileCheck, Resource, Source, check_files
from tcpvit.data.image_set import ImageSet, Splits, concatenate, resize_images
from tcpvit.data.subsets import PAPER_TEST, PAPER_TRAIN, draw_parts
from tcpvit.validation import Count

CLASSES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")
HOMES = ("stl10_binary", "stl10/stl10_binary")
SIZE = 96

# md5s as torchvision and three other projects list them.
RESOURCES = (
    Resource(
        "http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz", "91f7769df0f17e558f3565bffb0c7dfb", 2_640_397_119
    ),
)
FILES = {
    "train_X.bin": "918c2871b30a85fa023e0c44e0bee87f",
    "train_y.bin": "5a34089d4802c674881badbb80307741",
    "test_X.bin": "7f263ba9f9e0b06b93213547f721ac82",
    "test_y.bin": "36f9794fa4beb8a2c72628de14fa638e",
}


def check(folder: Path) -> list[FileCheck]:
    """Compare the four labelled files with their published md5s."""
    return check_files(folder, FILES)


def is_needed(member: str) -> bool:
    """Everything but the 2.7 GB of unlabelled images."""
    return not member.endswith("unlabeled_X.bin")


def load(folder: Path, *, split: str, seed: int, stratified: bool, image_size: Count = 32) -> Splits:
    """`official`: 5,000/8,000. `paper`: 10,000/2,000 drawn by seed from all 13,000, since 5,000 cannot give 10,000."""
    train, test = _read(folder, "train", image_size), _read(folder, "test", image_size)
    if split == "paper":
        pool = concatenate([train, test], "stl10/train+test")
        train, test = draw_parts(pool, [PAPER_TRAIN, PAPER_TEST], seed=seed, stratified=stratified)
    return Splits("stl10", train, test, test)


def _read(folder: Path, part: str, image_size: int) -> ImageSet:
    """Images stored column after column, channel after channel; labels 1 to 10."""
    raw = np.fromfile(folder / f"{part}_X.bin", dtype=np.uint8)
    labels = np.fromfile(folder / f"{part}_y.bin", dtype=np.uint8).astype(np.int64) - 1
    if raw.size != len(labels) * 3 * SIZE * SIZE:
        raise ValueError(
            f"{folder}/{part}_X.bin has {raw.size:,} bytes, expected {3 * SIZE * SIZE:,} for each of the "
            f"{len(labels):,} labels; download it again"
        )
    images = torch.from_numpy(raw).view(-1, 3, SIZE, SIZE).mT  # columns first in the file
    images = resize_images(images, image_size)
    return ImageSet(images, torch.from_numpy(labels), classes=CLASSES, source=f"stl10/{part}")


SOURCE = Source(
    name="stl10",
    about="13,000 labelled images of 96×96 in 10 classes",
    home="",
    resources=RESOURCES,
    default_split="paper",
    markers=("train_X.bin",),
    homes=HOMES,
    check=check,
    load=load,
    is_needed=is_needed,
)
