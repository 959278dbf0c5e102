"""Your own images, `folder:PATH`: a folder for each class, or images/ and masks/; with val/, or split by seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tcpvit.data.decode import Bands
from tcpvit.data.image_set import Images, Splits, digest_of_names, measure_statistics
from tcpvit.data.images import SKIP, Fit, ImageFiles, OnBad, in_memory, list_bad, raise_all
from tcpvit.data.listing import Listing, class_folders, is_segmentation, list_classes, list_pairs, part_folders
from tcpvit.data.mask_classes import classes_of_masks, listed_classes
from tcpvit.data.subsets import draw_parts, fraction_sizes
from tcpvit.data.survey import Survey, survey_files
from tcpvit.errors import printable
from tcpvit.progress import Progress
from tcpvit.validation import Count, Flag, Maybe, Natural, Seed, Share, Text

MEMORY_LIMIT = 2 * 1024**3  # bytes of decoded images beyond which a folder is streamed from disk
SIZE = 224  # pixels: each image is made square, with this side
LOOKED_AT = 1000  # images that the statistics of a streamed set are computed from


def load(
    folder: Path,
    *,
    seed: Seed = 0,
    stratified: Flag = True,
    image_size: Count = SIZE,
    val_fraction: Maybe[Share] = None,
    fit: Fit = "crop",
    on_bad: OnBad = "stop",
    stream: Maybe[Flag] = None,
    classes: Maybe[Sequence[Text]] = None,
    mask_values: Maybe[dict[Natural, Natural]] = None,
    bands: Bands = "all",
    progress: Progress | None = None,
) -> Splits:
    """The images of `folder`, held out by val/ or test/ where one exists, else a fifth (`val_fraction`) by seed.

    `fit` makes images square ("crop" keeps the middle, "squash" everything); `on_bad` says whether a bad file stops
    the run or is skipped; `stream` decodes batch by batch instead of keeping everything in memory (by default beyond
    2 GB). For masks, `classes` names the classes (else classes.txt, else as many as the masks hold), and `mask_values`
    renames what the masks hold, as {0: 0, 255: 1}. An image counts once, however many links lead to it; pipes,
    sockets and devices are skipped with a note. All files have the same bands and type of value, which the set keeps;
    `bands="rgb"` reads them all as colour images of 8 bits. Everything that is wrong is told in one error.
    """
    progress = progress or Progress()
    folders = part_folders(folder)
    problems: list[str] = []
    listings, names = _list(folder, folders, classes, mask_values, on_bad, problems)
    found = survey_files([file for listing in listings.values() for file in listing.files], bands, progress)
    if len(found.kinds) > 1 and on_bad == "stop":
        unreadable = [f"{list_bad(found.bad, found.total)}; repair or remove them, or {SKIP}"] if found.bad else []
        raise_all([*problems, found.say_differ(), *unreadable])
    common: dict[str, Any] = {"image_size": image_size, "fit": fit, "on_bad": on_bad, "mask_values": mask_values}
    common |= {"classes": names, "bands": bands, **_kind(found)}
    parts = {
        part: ImageFiles(
            files=listing.files,
            targets=listing.targets,
            notes=listing.notes,
            source=f"{folder.name}/{part}",
            names=digest_of_names(listing.files, folders[part]),
            **common,
        )
        for part, listing in listings.items()
    }
    if val_fraction or len(parts) == 1:
        train = parts["train"]
        kept, held_out = draw_parts(
            train, fraction_sizes(len(train), val_fraction or 0.2), seed=seed, stratified=stratified
        )
        if "val" in parts:
            unused = f"{folders['val'].name}/ is not used: val_fraction holds a part of {folders['train'].name}/ out"
            kept = replace(kept, notes=(*kept.notes, unused))
        parts |= {"train": kept, "val": replace(held_out, source=f"{folder.name}/held out")}
    return _splits(f"folder:{folder}", parts, stream, progress, problems, found)


def _list(
    folder: Path,
    folders: dict[str, Path],
    classes: Sequence[str] | None,
    mask_values: dict[int, int] | None,
    on_bad: OnBad,
    problems: list[str],
) -> tuple[dict[str, Listing], tuple[str, ...]]:
    """The files of each part, and the names of the classes; what is wrong joins `problems`."""
    if is_segmentation(folders, classes):
        listings = list_pairs(folders, on_bad, problems)
        masks = listings["train"].masks
        try:
            names = tuple(classes or listed_classes(folder) or classes_of_masks(folders["train"], masks, mask_values))
        except ValueError as error:  # nothing can be said about the masks then
            raise_all([*problems, str(error)])
            raise
    else:
        names = tuple(classes or class_folders(folders["train"]))
        listings = list_classes(folders, names, problems)
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        problems.append(f"every class has a name of its own, but {', '.join(repeated)} stands there more than once")
        raise_all(problems)
    for part, listing in listings.items():
        if not listing.files:
            raise_all(problems or [f"the part {part} of {folder} holds no images"])
    return listings, names


def _kind(found: Survey) -> dict[str, Any]:
    """Bands and type of the set: those of most of its files; of unreadable ones, colour."""
    if not found.kinds:
        return {}
    layout = found.most_common
    kind: dict[str, Any] = {"channels": layout.bands, "dtype": getattr(torch, layout.dtype)}
    if (layout.bands, layout.dtype) == (3, "uint8"):
        return kind
    return kind | {"mean": (0.0,) * layout.bands, "std": (1.0,) * layout.bands}  # until they are measured


def _splits(
    name: str,
    parts: dict[str, ImageFiles],
    stream: bool | None,
    progress: Progress,
    problems: Sequence[str],
    found: Survey,
) -> Splits:
    if stream is None:
        size = sum(len(part) * part.image_size**2 * part.channels * part.dtype.itemsize for part in parts.values())
        stream = size > MEMORY_LIMIT
    files = list(parts.values())
    if stream:
        if found.bad and files[0].on_bad == "stop":
            problems = [*problems, f"{list_bad(found.bad, found.total)}; repair or remove them, or {SKIP}"]
        raise_all(problems)
    loaded: dict[str, Images] = dict(zip(parts, files if stream else in_memory(files, progress, problems), strict=True))
    return Splits.of(name, _with_statistics(loaded))


def _with_statistics(parts: dict[str, Images]) -> dict[str, Images]:
    """Colour of 8 bits is normalised as ImageNet is, everything else by the training part's own statistics."""
    train = parts["train"]
    if (train.image_shape[0], train.dtype) == (3, torch.uint8):
        return parts
    count = min(len(train), LOOKED_AT) if isinstance(train, ImageFiles) else len(train)
    rows = torch.linspace(0, len(train) - 1, count).long()
    mean, std = measure_statistics((train.fetch(some).images for some in rows.split(100)), train.scale)
    return {name: replace(part, mean=mean, std=std) for name, part in parts.items()}


def describe(
    folder: Path, bands: Bands = "all", classes: Sequence[str] | None = None, progress: Progress | None = None
) -> dict[str, str]:
    """What the images of `folder` are, for people: their number in each class, their sizes, bands and values."""
    folders = part_folders(folder)
    counted: dict[str, str] = {}
    if is_segmentation(folders, classes):
        listings = list_pairs(folders, "skip", [])
    else:
        names = tuple(classes or class_folders(folders["train"]))
        listings = list_classes(folders, names, [])
        counted = {f"classes of {part}": _say_counts(listing, names) for part, listing in listings.items()}
    found = survey_files([file for listing in listings.values() for file in listing.files], bands, progress)
    return counted | found.describe()


def _say_counts(listing: Listing, names: Sequence[str]) -> str:
    counts = dict(zip(names, torch.bincount(listing.labels, minlength=len(names)).tolist(), strict=True))
    fewest, most = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
    if counts[fewest] == counts[most]:
        return f"{counts[most]:,} images in each"
    return printable(f"{counts[fewest]:,} images ({fewest}) to {counts[most]:,} ({most})")
