"""Your own volumes, `volumes:PATH`, and clips, `clips:PATH`: a folder for each class, or images/ and masks/."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from tcpvit.data.image_set import IGNORE, ImageSet, Splits, digest_of_names, measure_statistics, resize_images
from tcpvit.data.images import Fit, raise_all
from tcpvit.data.listing import part_folders, subfolders
from tcpvit.data.subsets import draw, draw_parts, fraction_sizes
from tcpvit.data.volumes.nifti import lie_alike
from tcpvit.data.volumes.read import READ, read_volume, stem_of, volumes_below
from tcpvit.data.volumes.sets import Clips, Volumes
from tcpvit.data.volumes.video import READ as READ_CLIPS
from tcpvit.data.volumes.video import clips_below, read_clip
from tcpvit.data.walk import note_others
from tcpvit.memory import check_memory
from tcpvit.progress import Progress
from tcpvit.validation import Count, Extent, Flag, Maybe, Seed, Share

VOLUMES, CLIPS = "volumes:", "clips:"
Set = TypeVar("Set", bound=ImageSet)


def load_volumes(
    folder: Path,
    *,
    seed: Seed = 0,
    stratified: Flag = True,
    image_size: Extent = 32,
    val_fraction: Maybe[Share] = None,
    fit: Maybe[Fit] = None,
    progress: Progress | None = None,
) -> Splits:
    """Volumes of `folder`, held out by val/ or test/ where one exists, else a fifth (`val_fraction`) by seed.

    With `val_fraction` that much of the training part is val in any case, and test/ is left for the end.

    With a folder for each class every volume is resized to `image_size` (`fit` "squash"), or its middle is kept at its
    own resolution ("crop"). With images/ and masks/ it is cut into windows of that size at its own resolution ("crop"),
    or resized together with its mask ("squash").
    """
    size = (image_size,) * 3 if isinstance(image_size, int) else image_size
    if len(size) != 3:
        raise ValueError(f"a volume has three sides, as image_size=[16, 32, 32], got {image_size}")
    folders, steps = part_folders(folder), progress or Progress()
    if (folders["train"] / "images").is_dir():

        def held_out(number: int) -> list[Tensor]:
            return draw(number, fraction_sizes(number, val_fraction or 0.2), seed=seed)

        draws = len(folders) == 1 or val_fraction is not None
        parts = _masked(folders, size, fit or "crop", held_out if draws else None, steps)
    else:
        parts = _labelled(folders, size, fit or "squash", steps)
    parts["train"] = replace(parts["train"], notes=_notes(folder, folders, volumes_below, val_fraction))
    return _splits(f"{VOLUMES}{folder}", parts, seed, stratified, val_fraction)


def load_clips(
    folder: Path,
    *,
    seed: Seed = 0,
    stratified: Flag = True,
    image_size: Count = 64,
    frames: Count = 8,
    stride: Maybe[Count] = None,
    colour: Flag = True,
    val_fraction: Maybe[Share] = None,
    progress: Progress | None = None,
) -> Splits:
    """Clips of `folder`, which has a folder for each class with video files or folders of frames in it.

    A clip has `frames` frames of `image_size` pixels: evenly over the video, or `stride` frames apart from a place that
    the seed decides.
    """
    folders, steps = part_folders(folder), progress or Progress()
    classes = _classes(folders["train"])
    parts = {}
    for part, place in folders.items():
        random = np.random.default_rng((seed, len(part)))

        def read(path: Path, random: np.random.Generator = random) -> NDArray[Any]:
            return read_clip(path, frames, image_size, stride=stride, place=random.random(), colour=colour)

        files, labels = _list(place, classes, clips_below, READ_CLIPS)
        images = _read_all(files, read, steps, f"reading {folder.name}/{part}")
        parts[part] = Clips(
            torch.from_numpy(np.stack(images)),
            labels,
            classes=classes,
            source=f"{folder.name}/{part}",
            names=digest_of_names(files, place),
            mean=(0.5,) * images[0].shape[0],
            std=(0.5,) * images[0].shape[0],
        )
    parts["train"] = replace(parts["train"], notes=_notes(folder, folders, clips_below, val_fraction))
    return _splits(f"{CLIPS}{folder}", parts, seed, stratified, val_fraction)


def _notes(
    folder: Path, folders: dict[str, Path], below: Callable[[Path], Iterator[Path]], val_fraction: float | None
) -> tuple[str, ...]:
    """What of the folder is not used: other files, and a validation part where another one is held out."""
    notes = note_others(folder, below)
    if val_fraction and "val" in folders:
        val, train = (folders[part].name for part in ("val", "train"))
        notes += (f"{val}/ is not used: val_fraction holds a part of {train}/ out",)
    return notes


def _labelled(folders: dict[str, Path], size: tuple[int, ...], fit: Fit, steps: Progress) -> dict[str, Volumes]:
    classes = _classes(folders["train"])
    images, labels, names = {}, {}, {}
    for part, folder in folders.items():
        files, labels[part] = _list(folder, classes, volumes_below, READ)
        names[part] = digest_of_names(files, folder)
        images[part] = _read_all(
            files, lambda path: fitted(read_volume(path).voxels, size, fit), steps, f"reading {part}"
        )
    return _as_sets(images, labels, names, classes, folders["train"].name)


def _masked(
    folders: dict[str, Path],
    size: tuple[int, ...],
    fit: Fit,
    held_out: Callable[[int], list[Tensor]] | None,
    steps: Progress,
) -> dict[str, Volumes]:
    """Windows of the volumes with those of their masks; `held_out` draws whole volumes of train as val."""
    pairs = {part: _pairs(folder) for part, folder in folders.items()}
    names = {part: digest_of_names((image for image, _ in pairs[part]), folder) for part, folder in folders.items()}
    if held_out is not None:
        names["val"] = names["train"]
        kept, held = held_out(len(pairs["train"]))
        pairs |= {part: [pairs["train"][i] for i in rows.tolist()] for part, rows in (("train", kept), ("val", held))}
    examples = {
        part: [
            example
            for image, mask in steps.track(some, f"reading {part}", len(some))
            for example in _examples(image, mask, size, fit)
        ]
        for part, some in pairs.items()
    }
    values = {int(v) for part in examples.values() for _, ids in part for v in np.unique(ids)} - {IGNORE}
    if max(values, default=0) < 1:
        raise ValueError(
            f"the masks of {folders['train']} have no class but 0; {IGNORE} means that a voxel is left out: write the "
            "classes as 1, 2, ..."
        )
    classes = tuple("background" if k == 0 else f"class {k}" for k in range(max(values) + 1))
    images = {part: [voxels for voxels, _ in found] for part, found in examples.items()}
    targets = {part: torch.from_numpy(np.stack([ids for _, ids in found])) for part, found in examples.items()}
    return _as_sets(images, targets, names, classes, folders["train"].name)


def _pairs(folder: Path) -> list[tuple[Path, Path]]:
    """Volumes with the masks of their names, which lie in folders of the same names."""
    if not (folder / "masks").is_dir():
        raise ValueError(f"{folder} has images/ and no masks/: add the masks, named as their volumes")
    problems: list[str] = []
    images, masks = (_by_name(folder / kind, problems) for kind in ("images", "masks"))
    problems += [
        f"{path} has no mask of its name in {folder / 'masks'}" for n, path in images.items() if n not in masks
    ]
    problems += [
        f"{path} is the mask of no volume in {folder / 'images'}" for n, path in masks.items() if n not in images
    ]
    raise_all(problems or ([] if images else [f"{folder / 'images'} holds no volumes; looked for {READ}"]))
    return [(path, masks[name]) for name, path in images.items()]


def _by_name(folder: Path, problems: list[str]) -> dict[str, Path]:
    """The volumes below a folder by their names without endings, those of the folders they lie in included."""
    found: dict[str, Path] = {}
    for path in sorted(volumes_below(folder)):
        name = str(path.relative_to(folder).with_name(stem_of(path))) if path != folder else "."
        if name in found:
            problems.append(f"{found[name]} and {path} have one name; keep one of them")
        found[name] = path
    return found


def _examples(image: Path, mask: Path, size: tuple[int, ...], fit: Fit) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """The volume and its mask as one example, or as windows that cover it."""
    voxels, ids = read_pair(image, mask)
    if fit == "squash":
        yield fitted(voxels, size, fit), fitted_mask(ids, size, fit)
        return
    voxels, ids = padded(voxels, size, voxels.min()), padded(ids[None], size, IGNORE)[0]
    for corner in window_corners(ids.shape, size, overlap=0.0):
        yield cut_out(voxels, corner, size), cut_out(ids[None], corner, size)[0]


def read_pair(image: Path, mask: Path) -> tuple[NDArray[Any], NDArray[np.uint8]]:
    """The voxels (C, T, H, W) of a volume, and the classes (T, H, W) of its mask, which should lie in one place."""
    scan, labels = read_volume(image), read_volume(mask)
    voxels, ids = scan.voxels, labels.voxels[0]
    if len(labels.voxels) > 1:
        raise ValueError(f"{mask} has {len(labels.voxels)} channels; a mask has one class number for each voxel")
    if ids.shape != voxels.shape[1:]:
        shown = ("×".join(map(str, shape)) for shape in (ids.shape, voxels.shape[1:]))
        raise ValueError(f"{mask} has {' voxels, but its volume '.join(shown)}; resample one to the other")
    if ids.min() < 0 or ids.max() > IGNORE or (ids != np.round(ids)).any():
        raise ValueError(
            f"{mask} holds {ids.min():g} to {ids.max():g}; classes are whole numbers from 0 to {IGNORE - 1}"
        )
    if not lie_alike(scan, labels):
        raise ValueError(
            f"{mask} lies elsewhere in space than {image}, by its header; resample one to the other, or write both as "
            "NIfTI with one affine"
        )
    return voxels, ids.astype(np.uint8)


def cut_out(voxels: NDArray[Any], corner: Sequence[int], size: Sequence[int]) -> NDArray[Any]:
    """The part of (C, T, H, W) of that size that begins at a corner."""
    (t, y, x), (depth, height, width) = corner, size
    return voxels[:, t : t + depth, y : y + height, x : x + width]


def window_corners(shape: Sequence[int], size: Sequence[int], overlap: float) -> list[tuple[int, ...]]:
    """Where windows of `size` begin that cover a volume of `shape`, the last ones moved back so that they fit.

    >>> window_corners((10, 4, 4), (4, 4, 4), overlap=0.0)
    [(0, 0, 0), (4, 0, 0), (6, 0, 0)]
    """
    axes = []
    for length, side in zip(shape, size, strict=True):
        step = max(round(side * (1 - overlap)), 1)
        axes.append(sorted({min(start, max(length - side, 0)) for start in range(0, max(length, 1), step)}))
    return list(product(*axes))


def fitted(voxels: NDArray[Any], size: tuple[int, ...], fit: Fit) -> NDArray[Any]:
    """A volume (C, T, H, W) at `size`: resized, or its middle with nothing (the least value) around it."""
    if fit == "squash":
        resized: NDArray[Any] = resize_images(torch.from_numpy(voxels)[None], size)[0].numpy()
        return resized
    return _middle(padded(voxels, size, voxels.min()), size)


def fitted_mask(ids: NDArray[np.uint8], size: tuple[int, ...], fit: Fit) -> NDArray[np.uint8]:
    """A mask (T, H, W) at `size`, as `fitted` makes its volume; what is around it is not known."""
    if fit == "squash":
        small: NDArray[np.uint8] = F.interpolate(torch.from_numpy(ids)[None, None], size, mode="nearest-exact")[
            0, 0
        ].numpy()
        return small
    return _middle(padded(ids[None], size, IGNORE), size)[0]


def _middle(voxels: NDArray[Any], size: tuple[int, ...]) -> NDArray[Any]:
    corner = [(length - side) // 2 for length, side in zip(voxels.shape[1:], size, strict=True)]
    return cut_out(voxels, corner, size)


def padded(voxels: NDArray[Any], size: Sequence[int], value: Any) -> NDArray[Any]:
    """At least `size` along each axis of (C, T, H, W)."""
    lacking = [max(side - length, 0) for length, side in zip(voxels.shape[1:], size, strict=True)]
    around = [(0, 0), *((missing // 2, missing - missing // 2) for missing in lacking)]
    return np.pad(voxels, around, constant_values=value) if any(lacking) else voxels


def _as_sets(
    images: dict[str, list[NDArray[Any]]],
    targets: dict[str, Tensor],
    names: dict[str, str],
    classes: tuple[str, ...],
    source: str,
) -> dict[str, Volumes]:
    """Parts of one kind: where their files differ in type, all of them are float32, on one scale."""
    kinds = {(image.shape[0], str(image.dtype)) for part in images.values() for image in part}
    if len(numbers := sorted({channels for channels, _ in kinds})) > 1:
        found = " and ".join(map(str, numbers))
        raise ValueError(f"the volumes of {source} have {found} channels; keep those of one kind")
    if len(kinds) > 1:
        images = {part: [image.astype(np.float32) for image in some] for part, some in images.items()}
    needed = 2 * sum(image.nbytes for part in images.values() for image in part)
    check_memory(needed, f"the volumes of {source}", "choose a smaller image_size")
    blank: dict[str, Any] = {"classes": classes, "mean": (0.0,) * numbers[0], "std": (1.0,) * numbers[0]}
    return {
        part: Volumes(
            torch.from_numpy(np.stack(some)), targets[part], source=f"{source}/{part}", names=names[part], **blank
        )
        for part, some in images.items()
    }


def _classes(folder: Path) -> tuple[str, ...]:
    names = subfolders(folder)
    if len(names) < 2:
        raise ValueError(
            f"{folder} should have a folder for each class, or images/ and masks/; it has {', '.join(names) or 'none'}"
        )
    return tuple(names)


def _list(
    folder: Path, classes: tuple[str, ...], below: Callable[[Path], Iterator[Path]], what: str
) -> tuple[list[Path], Tensor]:
    """The files of all classes with their labels."""
    if strange := sorted(set(subfolders(folder)) - set(classes)):
        raise ValueError(f"{folder} has a class {strange[0]} that the training part does not have")
    files: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        found = sorted(below(folder / name)) if (folder / name).is_dir() else []
        files += found
        labels += [label] * len(found)
    if not files:
        raise ValueError(f"the classes of {folder} hold nothing that can be read; looked for {what}")
    return files, torch.tensor(labels)


def _read_all(
    files: list[Path], read: Callable[[Path], NDArray[Any]], steps: Progress, what: str
) -> list[NDArray[Any]]:
    """Every file; all that cannot be read are named in one error."""
    images, problems = [], []
    for path in steps.track(files, what, len(files)):
        try:
            images.append(read(path))
        except (OSError, ValueError) as error:
            problems.append(str(error))
    raise_all(problems)
    return images


def _splits(name: str, parts: dict[str, Set], seed: int, stratified: bool, val_fraction: float | None) -> Splits:
    """Parts normalised by what trains alone; a validation part is drawn from it where there is none."""
    train = parts["train"]
    if len(parts) == 1 or (val_fraction and train.task == "classification"):
        sizes = fraction_sizes(len(train), val_fraction or 0.2)
        train, val = draw_parts(train, sizes, seed=seed, stratified=stratified)
        parts |= {"train": train, "val": replace(val, source=f"{train.source.rpartition('/')[0]}/held out")}
    mean, std = measure_statistics(train.images.split(16), train.scale)
    return Splits.of(name, {part: replace(data, mean=mean, std=std) for part, data in parts.items()})
