"""MedMNIST3D (Yang et al., 2023): six sets of medical volumes, 28³ or 64³, each in one .npz file with three parts."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from tcpvit.data.files import FileCheck, Resource, Source, check_files, words
from tcpvit.data.image_set import Splits, measure_statistics
from tcpvit.data.scenes.arrays import read_npz
from tcpvit.data.volumes.sets import RankedVolumes
from tcpvit.memory import check_memory
from tcpvit.validation import Maybe

HOMES = ("medmnist3d", "medmnist", "MedMNIST3D")
PARTS = ("train", "val", "test")
LOOKED_AT = 200  # training volumes that mean and deviation are computed from
DEFLATE = 1100  # times: what any honest .npz may be compressed by; masks are

# Classes, volumes, and the md5 of the files of 28³ and 64³ (MedMNIST 3.0, zenodo.org/records/10519652; CC BY 4.0).
SETS: dict[str, tuple[tuple[str, ...], str, str, str]] = {
    "organmnist3d": (
        words(
            "liver, kidney-right, kidney-left, femur-right, femur-left, bladder, heart, lung-right, lung-left, spleen, "
            "pancreas"
        ),
        "1,742 organs from CT",
        "a0c5a1ff56af4f155c46d46fbb45a2fe",
        "58a2205adf14a9d0a189cb06dc78bf10",
    ),
    "nodulemnist3d": (
        ("benign", "malignant"),
        "1,633 lung nodules from CT",
        "8755a7e9e05a4d9ce80a24c3e7a256f3",
        "c47c5b7d457bf6332200d2ea6d64ecd8",
    ),
    "adrenalmnist3d": (
        ("normal", "hyperplasia"),
        "1,584 shapes of adrenal glands from CT",
        "bbd3c5a5576322bc4cdfea780653b1ce",
        "17721accfe9fb005146a47d33bc54b2f",
    ),
    "fracturemnist3d": (
        ("buckle rib fracture", "nondisplaced rib fracture", "displaced rib fracture"),
        "1,370 rib fractures from CT",
        "6aa7b0143a6b42da40027a9dda61302f",
        "f01d7e6316aedf4210da0da5b7437b42",
    ),
    "vesselmnist3d": (
        ("vessel", "aneurysm"),
        "1,908 shapes of brain vessels from MRA",
        "b41fd4f7e7e2feedddb201585ecafa1b",
        "6bb274a8846e1097066dcd64e2c4520f",
    ),
    "synapsemnist3d": (
        ("inhibitory synapse", "excitatory synapse"),
        "1,759 synapses from electron microscopy",
        "1235b78a3cd6280881dd7850a78eadb6",
        "43bd14ebf3af9d3dd072446fedc14d5e",
    ),
}


def file_of(name: str, size: int) -> str:
    """The published name of a file.

    >>> file_of("adrenalmnist3d", 64)
    'adrenalmnist3d_64.npz'
    """
    return f"{name}{'_64' if size == 64 else ''}.npz"


def check(name: str, folder: Path) -> list[FileCheck]:
    """Compare the files that are there with their published md5."""
    _, _, *md5s = SETS[name]
    known = {file_of(name, size): md5 for size, md5 in zip((28, 64), md5s, strict=True)}
    there = {file: md5 for file, md5 in known.items() if (folder / file).is_file()}
    return check_files(folder, there or known)


def load(
    folder: Path, *, split: str, name: str, size: Maybe[Literal[28, 64]] = None, seed: int = 0, stratified: bool = True
) -> Splits:
    """The three published parts, of `size` 64³ or 28³ (by default the larger that is there)."""
    if split != "official":
        raise ValueError(f'{name} is split as "official", got {split!r}')
    sizes = [size] if size else [side for side in (64, 28) if (folder / file_of(name, side)).is_file()]
    path = folder / file_of(name, sizes[0])
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there; take size={28 if size == 64 else 64}, or fetch it")
    parts = {part: _read(path, part, name, sizes[0]) for part in PARTS}
    some = parts["train"].images[:: max(len(parts["train"]) // LOOKED_AT, 1)]
    mean, std = measure_statistics(some.split(32), 255.0)
    train, val, test = (replace(parts[part], mean=mean, std=std) for part in PARTS)
    return Splits(name, train, val, test)


def _read(path: Path, part: str, name: str, side: int) -> RankedVolumes:
    images = _array(path, f"{part}_images", 4, (side,) * 3)
    labels = _array(path, f"{part}_labels", 2, (1,))
    if len(labels) != len(images):
        raise ValueError(
            f"{path} has {len(images)} volumes and {len(labels)} labels in its part {part}; fetch it again"
        )
    return RankedVolumes(
        torch.from_numpy(images)[:, None],
        torch.from_numpy(labels[:, 0].astype(np.int64)),
        classes=SETS[name][0],
        source=f"{name}/{part}",
        names=path.name,  # says which size; a run that was saved without names takes either
        mean=(0.5,),
        std=(0.5,),
    )


def _array(path: Path, key: str, dims: int, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """An array of the file; its sizes are checked before it is read."""

    def check_shape(found: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        if found[1:] != shape or dtype != np.uint8:
            wanted = "×".join(map(str, ("N", *shape)))
            raise ValueError(f"{path}: {key} should be uint8 of {wanted}, got {dtype} of {'×'.join(map(str, found))}")
        check_memory(2 * prod(found), f"{key} of {path}", "take size=28")

    return np.asarray(read_npz(path, dims=dims, key=key, largest_ratio=DEFLATE, check=check_shape).array)


def _source(name: str) -> Source:
    _, about, small, large = SETS[name]
    address = "https://zenodo.org/records/10519652/files/"
    return Source(
        name=name,
        about=about,
        home="medmnist3d",
        resources=(Resource(address + file_of(name, 28), small, 0),),
        default_split="official",
        markers=(file_of(name, 64), file_of(name, 28)),
        homes=HOMES,
        check=partial(check, name),
        load=partial(load, name=name),
        optional=(Resource(address + file_of(name, 64), large, 0),),
    )


ALL_SOURCES = tuple(_source(name) for name in SETS)
