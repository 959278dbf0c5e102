"""SVHN, cropped digits (Netzer et al., 2011): 73,257 + 26,032 images of 32×32×3, and 531,131 easier extra ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from tcpvit.data.files import FileCheck, Resource, Source, check_files
from tcpvit.data.image_set import ImageSet, Splits, concatenate
from tcpvit.data.subsets import paper_subset
from tcpvit.errors import import_extra
from tcpvit.validation import Flag

CLASSES = tuple("0123456789")
HOMES = ("svhn", "SVHN")

# md5s and sizes as torchvision and two other projects list them.
_ADDRESS = "http://ufldl.stanford.edu/housenumbers/"
TRAIN = Resource(_ADDRESS + "train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373", 182_040_794)
TEST = Resource(_ADDRESS + "test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3", 64_275_384)
EXTRA = Resource(_ADDRESS + "extra_32x32.mat", "a93ce644f1a588dc4d68dda5feec44a7", 1_329_278_602)
RESOURCES = (TRAIN, TEST)


def check(folder: Path) -> list[FileCheck]:
    """Compare the files with their published md5s; the extra part only where it is there."""
    files = [TRAIN, TEST, EXTRA] if (folder / EXTRA.filename).is_file() else [TRAIN, TEST]
    return check_files(folder, {file.filename: file.md5 for file in files})


def load(folder: Path, *, split: str, seed: int, stratified: bool, extra: Flag = False) -> Splits:
    """`official`: 73,257/26,032, with `extra` 531,131 more to train on. `paper`: 10,000/2,000 drawn by seed."""
    train, test = _read(folder / TRAIN.filename, "svhn/train"), _read(folder / TEST.filename, "svhn/test")
    if extra:
        train = concatenate([train, _read(folder / EXTRA.filename, "svhn/extra")], "svhn/train+extra")
    if split == "paper":
        train, test = paper_subset(train, test, seed=seed, stratified=stratified)
    return Splits("svhn", train, test, test)


def _read(path: Path, source: str) -> ImageSet:
    """A MATLAB file with X (32, 32, 3, N) and y (N, 1), where the digit 0 is labelled 10."""
    scipy_io = import_extra("scipy.io", "SVHN's .mat files are read with SciPy", "train")
    try:
        content = scipy_io.loadmat(path, variable_names=("X", "y"))
        pixels, labels = content["X"], content["y"].ravel().astype(np.int64) % 10
    except OSError:
        raise
    except Exception as error:  # SciPy fails in many ways on a damaged file
        raise ValueError(f"{path} is not one of SVHN's .mat files ({error}); download it again") from None
    if pixels.dtype != np.uint8 or pixels.shape[:3] != (32, 32, 3) or pixels.shape[3] != len(labels):
        raise ValueError(
            f"{path}: X should be uint8 (32, 32, 3, N) with N labels in y, got {pixels.dtype} {pixels.shape} and "
            f"{len(labels)} labels"
        )
    images = torch.from_numpy(np.ascontiguousarray(pixels.transpose(3, 2, 0, 1)))  # (N, 3, 32, 32)
    return ImageSet(images, torch.from_numpy(labels), classes=CLASSES, source=source)


SOURCE = Source(
    name="svhn",
    about="99,289 digits of house numbers, 32×32, in 10 classes",
    home="svhn",
    resources=RESOURCES,
    default_split="official",
    markers=(TRAIN.filename,),
    homes=HOMES,
    check=check,
    load=load,
    optional=(EXTRA,),
)
