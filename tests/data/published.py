"""Small files in the official formats of the sets, written independently of the readers."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.io import savemat

BATCHES = [f"data_batch_{k}" for k in range(1, 6)] + ["test_batch"]


def random_images(number: int, size: int, seed: int = 0) -> np.ndarray:
    """(N, 3, size, size) uint8."""
    return np.random.RandomState(seed).randint(0, 256, (number, 3, size, size)).astype(np.uint8)


def write_cifar(root: Path, per_batch: int = 20, *, binary: bool) -> tuple[np.ndarray, np.ndarray]:
    """Six batches; returns all images (N, 3, 32, 32) and labels in their order, the test batch last."""
    images = random_images(6 * per_batch, 32)
    labels = np.arange(6 * per_batch) % 10
    folder = root / ("cifar-10-batches-bin" if binary else "cifar-10-batches-py")
    folder.mkdir(parents=True)
    for k, name in enumerate(BATCHES):
        rows = slice(k * per_batch, (k + 1) * per_batch)
        pixels, numbers = images[rows].reshape(per_batch, -1), labels[rows]
        if binary:
            records = [bytes([label]) + row.tobytes() for row, label in zip(pixels, numbers, strict=True)]
            (folder / f"{name}.bin").write_bytes(b"".join(records))
        else:
            (folder / name).write_bytes(_python2_pickle(pixels, numbers.tolist()))
    return images, labels


def _python2_pickle(pixels: np.ndarray, labels: list[int]) -> bytes:
    """The bytes Python 2 wrote: byte strings (SHORT_BINSTRING, BINSTRING) and numpy.core's constructor."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    raw = pixels.tobytes()
    rows, columns = (pickle.dumps(n, protocol=2)[2:-1] for n in pixels.shape)
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
        b"(K\x01" + rows + columns + b"\x86cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R"
        b"(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
        b"T" + len(raw).to_bytes(4, "little") + raw + b"tb"
    )
    items = b"".join(b"K" + bytes([label]) for label in labels)
    return b"\x80\x02}(" + text(b"labels") + b"](" + items + b"e" + text(b"data") + array + b"u."


def write_svhn(root: Path, part: str, number: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """PART_32x32.mat with X (32, 32, 3, N) and y (N, 1) in 1..10; returns images and labels 0..9."""
    root.mkdir(parents=True, exist_ok=True)
    images = random_images(number, 32, seed)
    labels = np.arange(number) % 10
    stored = np.where(labels == 0, 10, labels).astype(np.uint8)[:, None]
    savemat(root / f"{part}_32x32.mat", {"X": images.transpose(2, 3, 1, 0), "y": stored})
    return images, labels


def write_stl10(root: Path, part: str, number: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """PART_X.bin column by column and PART_y.bin in 1..10; returns images (N, 3, 96, 96) and labels 0..9."""
    folder = root / "stl10_binary"
    folder.mkdir(parents=True, exist_ok=True)
    images = random_images(number, 96, seed)
    labels = np.arange(number) % 10
    with (folder / f"{part}_X.bin").open("wb") as file:
        for image in images:
            for channel in image:
                file.write(channel.tobytes(order="F"))
    (folder / f"{part}_y.bin").write_bytes(bytes((labels + 1).tolist()))
    return images, labels


def write_pets(root: Path, number: int = 20, *, without_pet: tuple[int, ...] = ()) -> Path:
    """images/, annotations/trimaps/ and the lists; image i is 40×30, its trimap pet, border, background."""
    folder = root / "oxford-iiit-pet"
    (folder / "images").mkdir(parents=True)
    (folder / "annotations" / "trimaps").mkdir(parents=True)
    names = [f"{'Birman' if i % 2 else 'pug'}_{i}" for i in range(number)]
    for i, name in enumerate(names):
        colour = Image.fromarray(np.full((30, 40, 3), 10 * i % 256, dtype=np.uint8))
        colour.save(folder / "images" / f"{name}.jpg", quality=95)
        trimap = np.full((30, 40), 2, dtype=np.uint8)
        if i not in without_pet:
            trimap[:, :16], trimap[:, 16:20] = 1, 3
        Image.fromarray(trimap).save(folder / "annotations" / "trimaps" / f"{name}.png")
    lines = [f"{name} 1 1 1" for name in names]
    half = number // 2
    (folder / "annotations" / "list.txt").write_text("#Image CLASS-ID\n#SPECIES\n" + "\n".join(lines) + "\n")
    (folder / "annotations" / "trainval.txt").write_text("\n".join(lines[:half]) + "\n")
    (folder / "annotations" / "test.txt").write_text("\n".join(lines[half:]) + "\n")
    return folder


def write_classes(folder: Path, counts: dict[str, int], size: tuple[int, int] = (40, 30)) -> None:
    """A folder of PNG images for each class; image i of class c is filled with the grey 20·c + i."""
    for c, (name, number) in enumerate(counts.items()):
        (folder / name).mkdir(parents=True)
        for i in range(number):
            Image.new("RGB", size, (20 * c + i,) * 3).save(folder / name / f"{i}.png")


def write_masks(folder: Path, masks: dict[str, np.ndarray]) -> None:
    """images/NAME.png in grey and masks/NAME.png as given."""
    for part in ("images", "masks"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    for name, mask in masks.items():
        Image.new("RGB", (mask.shape[1], mask.shape[0]), (100, 100, 100)).save(folder / "images" / f"{name}.png")
        Image.fromarray(mask.astype(np.uint8)).save(folder / "masks" / f"{name}.png")
