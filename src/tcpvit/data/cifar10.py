"""CIFAR-10 (Krizhevsky, 2009): 50,000 + 10,000 images of 32×32×3 in 10 classes, binary or python release."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tcpvit.data.files import FileCheck, Resource, Source, check_files
from tcpvit.data.image_set import ImageSet, Splits
from tcpvit.data.subsets import paper_subset

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # of the 50,000; a test computes them from the files

# md5s of https://www.cs.toronto.edu/~kriz/cifar.html. The binary release needs no pickle, so it is the one we fetch.
RESOURCES = (
    Resource(
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", 170_052_171
    ),
)
HOMES = ("cifar-10-batches-bin", "cifar-10-batches-py", "cifar10/cifar-10-batches-bin", "cifar10/cifar-10-batches-py")

# The files inside, as torchvision (python) and several C and Go readers (binary) list them.
PYTHON_FILES = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
BINARY_FILES = {
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
}
# What a pickle of arrays may ask for.
_RECONSTRUCT = np.empty(0).__reduce__()[0]  # numpy's own name for it moved between versions
_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}
ROW = 3 * 32 * 32  # bytes of an image, red then green then blue


def check(folder: Path) -> list[FileCheck]:
    """Compare every batch with its published md5."""
    return check_files(folder, BINARY_FILES if _is_binary(folder) else PYTHON_FILES)


def load(folder: Path, *, split: str, seed: int, stratified: bool) -> Splits:
    """`official`: 50,000/10,000. `paper`: 10,000/2,000 drawn from them by seed."""
    suffix = ".bin" if _is_binary(folder) else ""
    train = _read([folder / f"data_batch_{k}{suffix}" for k in range(1, 6)], "cifar10/train")
    test = _read([folder / f"test_batch{suffix}"], "cifar10/test")
    if split == "paper":
        train, test = paper_subset(train, test, seed=seed, stratified=stratified)
    return Splits("cifar10", train, test, test)


def _is_binary(folder: Path) -> bool:
    return (folder / "data_batch_1.bin").is_file()


def _read(paths: list[Path], source: str) -> ImageSet:
    batches = [_read_binary(path) if path.suffix == ".bin" else _read_python(path) for path in paths]
    pixels = np.concatenate([pixels for pixels, _ in batches])
    labels = np.concatenate([labels for _, labels in batches])
    images = torch.from_numpy(pixels).view(-1, 3, 32, 32)
    return ImageSet(images, torch.from_numpy(labels), classes=CLASSES, source=source, mean=MEAN, std=STD)


def _read_binary(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Records of one label byte and 3,072 pixel bytes."""
    raw = np.fromfile(path, dtype=np.uint8)
    if raw.size == 0 or raw.size % (1 + ROW):
        raise ValueError(f"{path} has {raw.size:,} bytes, expected a multiple of {1 + ROW:,}; download it again")
    records = raw.reshape(-1, 1 + ROW)
    return records[:, 1:], records[:, 0].astype(np.int64)


def _read_python(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """A pickled dictionary with `data` (N, 3072) uint8 and `labels`."""
    content = load_arrays(path)
    pixels, labels = content.get(b"data"), content.get(b"labels")
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.ndim != 2 or pixels.shape[1] != ROW:
        raise ValueError(f"{path}: `data` should be a uint8 array (N, {ROW}); download it again")
    if not isinstance(labels, list) or len(labels) != len(pixels) or not all(isinstance(k, int) for k in labels):
        raise ValueError(f"{path}: `labels` should list {len(pixels):,} integers; download it again")
    return pixels, np.asarray(labels, dtype=np.int64)


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _ALLOWED:
            return _ALLOWED[module, name]
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def load_arrays(path: Path) -> dict[bytes, Any]:
    """The dictionary in a pickle of Python 2, refusing a file that would run anything but numpy's array constructor."""
    with path.open("rb") as file:
        try:
            content = _ArraysOnly(file, encoding="bytes").load()
        except OSError:
            raise
        except Exception as error:  # a doctored or damaged pickle can fail in any way
            raise ValueError(f"{path} is not a pickle of arrays and was not read: {error}; download it again") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, expected the dictionary of a CIFAR batch")
    return content


SOURCE = Source(
    name="cifar10",
    about="60,000 images of 32×32 in 10 classes",
    home="",
    resources=RESOURCES,
    default_split="official",
    markers=("data_batch_1.bin", "data_batch_1"),  # of the binary release, else of the python one
    homes=HOMES,
    check=check,
    load=load,
)
