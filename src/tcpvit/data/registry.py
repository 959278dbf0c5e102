"""The table of sets and the one way in: `load_dataset(name)`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, get_type_hints

from tcpvit.data import cifar10, digits_on_photos, files, folder, oxford_pet, stl10, svhn
from tcpvit.data.files import Source, data_root
from tcpvit.data.image_set import Images, ImageSet, Splits
from tcpvit.data.scenes import load as scene_load
from tcpvit.data.scenes.named import list_scenes
from tcpvit.data.subsets import draw_parts, fraction_sizes
from tcpvit.data.volumes import folder as volume_folder
from tcpvit.data.volumes import medmnist3d, moving_digits, solid_digits
from tcpvit.errors import did_you_mean
from tcpvit.files import expand_user
from tcpvit.memory import check_memory
from tcpvit.progress import Progress
from tcpvit.validation import Count, Extent, Flag, Maybe, Seed, Share, Text, checked

BUILT_IN = "digits-on-photos"
MADE: dict[str, Callable[..., Splits]] = {
    BUILT_IN: digits_on_photos.load,
    "moving-digits": moving_digits.load,
    "solid-digits": solid_digits.load,
}  # on the spot
FOLDER, SCENE = "folder:", scene_load.PREFIX
# A folder of the user's: what stands before its path, and how it is read.
FOLDERS: dict[str, Callable[..., Splits]] = {
    FOLDER: folder.load,
    volume_folder.VOLUMES: volume_folder.load_volumes,
    volume_folder.CLIPS: volume_folder.load_clips,
}
_MODULES = (cifar10, svhn, stl10, oxford_pet)
SOURCES = {source.name: source for source in (*(module.SOURCE for module in _MODULES), *medmnist3d.ALL_SOURCES)}


def list_datasets() -> list[str]:
    """The names that `load_dataset` takes; `folder:PATH` and `scene:PATH` are names too.

    >>> list_datasets()[:5], list_datasets()[-3:]
    (['digits-on-photos', 'moving-digits', 'solid-digits', 'cifar10', 'svhn'],
     ['volumes:PATH', 'clips:PATH', 'scene:PATH'])
    """
    return [*MADE, *SOURCES, *list_scenes(), *(f"{prefix}PATH" for prefix in (*FOLDERS, SCENE))]


def own_folder(name: str) -> str | None:
    """What stands before the path of a folder of the user's; None for other sets.

    >>> own_folder("volumes:scans"), own_folder("cifar10")
    ('volumes:', None)
    """
    return next((prefix for prefix in FOLDERS if name.startswith(prefix)), None)


def is_scene(name: str) -> bool:
    """Whether a set is a scene of many bands, whose images are windows.

    >>> is_scene("indian-pines"), is_scene("scene:field.hdr"), is_scene("cifar10")
    (True, True, False)
    """
    return name.startswith(SCENE) or name in list_scenes()


def load_dataset(
    name: str,
    root: str | Path | None = None,
    *,
    split: Maybe[Text] = None,
    seed: Seed = 0,
    stratified: Flag = True,
    image_size: Maybe[Extent] = None,
    train_size: Maybe[Count] = None,
    val_size: Maybe[Count] = None,
    val_fraction: Maybe[Share] = None,
    download: Flag = False,
    progress: Progress | None = None,
    **options: Any,
) -> Splits:
    """Load a set as train, val and test.

    `root` holds the sets (else TCPVIT_DATA, else the cache). `split` is "official" or "paper": 10,000/2,000 of cifar10,
    svhn and stl10 (drawn from all of its 13,000), 80 %/20 % of oxford-pet; scenes have others. `seed` and `stratified`
    govern every draw. `val_fraction` holds that much of train out as val, and leaves test for the end; `train_size` and
    `val_size` keep fewer images; `image_size` resizes; `progress` shows what takes long. `options` are those of the
    set, see docs/data.md and docs/scenes.md.

    >>> digits = load_dataset("digits-on-photos", sizes=(20, 10, 10))
    >>> digits.train.images.shape, digits.train.task
    (torch.Size([20, 3, 32, 32]), 'classification')
    """
    read = _reader(name, root, split, download, progress)
    accepted = inspect.signature(read).parameters
    for option in options:
        if option not in accepted or option in ("folder", "split"):
            raise ValueError(f"{name} has no option {option!r}{did_you_mean(option, _own_options(read))}")
    common = {"seed": seed, "stratified": stratified, "val_fraction": val_fraction, "image_size": image_size}
    given = _checked_options(name, {**common, "train_size": train_size, "val_size": val_size, **options})
    seed, stratified, val_fraction, image_size = (given[key] for key in common)
    known = {**given, "progress": progress}
    if image_size:
        sides = (image_size,) * 2 if isinstance(image_size, int) else image_size
        shown = "×".join(map(str, sides))
        check_memory(3 * prod(sides), f"an image of {shown}", "choose a smaller image_size")
    splits = read(**{k: v for k, v in known.items() if k in options or (k in accepted and v is not None)})
    if image_size and "image_size" not in accepted:
        splits = _resized(splits, image_size)
    if val_fraction and "val_fraction" not in accepted:
        sizes = fraction_sizes(len(splits.train), val_fraction)
        train, val = draw_parts(splits.train, sizes, seed=seed, stratified=stratified)
        splits = replace(splits, train=train, val=val)
    return _shrink(splits, given["train_size"], given["val_size"], seed, stratified)


def _checked_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as `load_dataset` and the reader of this set declare them."""
    general = get_type_hints(load_dataset, include_extras=True)
    loader = _loader(name)
    own = get_type_hints(getattr(loader, "func", loader), include_extras=True)
    hints = own | general  # which may leave things out
    if "val_fraction" in own:  # a scene may go without
        hints["val_fraction"] = own["val_fraction"]
    if "image_size" in own and options["image_size"] is not None:  # most readers make square images
        hints["image_size"] = own["image_size"]
    return {key: checked(value, hints[key], key) for key, value in options.items()}


def option_names(name: str) -> list[str]:
    """What `load_dataset` may be told about this set; nothing for one that is not known.

    >>> "level" in option_names("digits-on-photos"), option_names("cifar11")
    (True, [])
    """
    if name not in (*MADE, *SOURCES) and not own_folder(name) and not is_scene(name):
        return []
    names = {**inspect.signature(load_dataset).parameters, **inspect.signature(_loader(name)).parameters}
    return [option for option in names if option not in ("name", "root", "folder", "options", "progress")]


def _loader(name: str) -> Callable[..., Splits]:
    if name in MADE:
        return MADE[name]
    if is_scene(name):
        return scene_load.load
    prefix = own_folder(name)
    return FOLDERS[prefix] if prefix else get_source(name).load


def get_source(name: str) -> Source:
    """The published set of this name."""
    if name not in SOURCES:
        if Path(name).is_dir():
            raise ValueError(f"there is no set {name!r}; for your own images in that folder write {FOLDER}{name}")
        raise ValueError(f"there is no set {name!r}{did_you_mean(name, list_datasets(), 'tcpvit data')}")
    return SOURCES[name]


def find_dataset(name: str, root: str | Path | None = None) -> Path:
    """The folder of a published set that is on disk."""
    source, root = get_source(name), data_root(root)
    place = source.find(root)
    if place is None:
        size = sum(resource.size for resource in source.resources) / 1e6
        how_large = f" ({size:,.0f} MB)" if size else ""
        raise FileNotFoundError(
            f"{name} is not in {root}: fetch it{how_large} with `tcpvit data download {name}`, or "
            f"point --data-root or {files.ENVIRONMENT} to the folder that holds it"
        )
    return place


def download_dataset(
    name: str, root: str | Path | None = None, *, optional: bool = False, progress: Progress | None = None
) -> Path:
    """Fetch and unpack a published set unless it is there; returns its folder. `optional` adds SVHN's extra part."""
    source, root = get_source(name), data_root(root)
    found = source.find(root)
    folder = found or root / source.home
    wanted = source.resources + (source.optional if optional else ())
    paths = [
        files.download(resource, folder, progress)
        for resource in wanted
        if not (found and _is_archive(resource.filename))
    ]
    archives = [path for path in paths if _is_archive(path.name)]
    for path in archives:
        files.extract(path, folder, source.is_needed)
    found = source.find(root)
    if found is None:
        raise ValueError(f"the archives of {name} do not hold what was expected; see {folder}")
    for path in archives:  # not before, or an interrupted unpacking would need them again
        path.unlink()
    return found


def _is_archive(filename: str) -> bool:
    return filename.endswith(".tar.gz")


def _reader(
    name: str, root: str | Path | None, split: str | None, download: bool, progress: Progress | None
) -> Callable[..., Splits]:
    """The function that reads the set, with the set's place and split filled in."""
    if is_scene(name):
        scene = partial(scene_load.load, name, root)
        return scene if split is None else partial(scene, split=checked(split, Text, "split"))
    prefix = own_folder(name)
    if name in MADE or prefix:
        if split is not None:
            raise ValueError(f"{name} has one way to be split, so `split` does not apply; got {split!r}")
        if prefix is None:
            return MADE[name]
        return partial(FOLDERS[prefix], expand_user(name[len(prefix) :]))
    source = get_source(name)
    split = split or source.default_split
    if split not in ("official", "paper"):
        raise ValueError(f'{name} is split as "official" or "paper", got {split!r}')
    place = download_dataset(name, root, progress=progress) if download else find_dataset(name, root)
    return partial(source.load, place, split=split)


def _own_options(read: Callable[..., Splits]) -> list[str]:
    general = inspect.signature(load_dataset).parameters
    return [name for name in inspect.signature(read).parameters if name not in general]


def _resized(splits: Splits, size: int | tuple[int, ...]) -> Splits:
    def resize(part: Images) -> Images:
        assert isinstance(part, ImageSet)  # files on disk are decoded at the size asked for
        return part.resized(size)

    return splits.map(resize)


def _shrink(splits: Splits, train_size: int | None, val_size: int | None, seed: int, stratified: bool) -> Splits:
    def some(part: Images, size: int | None) -> Images:
        return part if size is None else draw_parts(part, [size], seed=seed, stratified=stratified)[0]

    val = some(splits.val, val_size)
    test = val if splits.test is splits.val else some(splits.test, val_size)
    return replace(splits, train=some(splits.train, train_size), val=val, test=test)
