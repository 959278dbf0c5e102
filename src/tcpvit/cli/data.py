"""`tcpvit data`: what sets there are, fetch one, verify one, look at one."""

from __future__ import annotations

import json as json_module
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from tcpvit.cli.show import display_for, show
from tcpvit.data.contact_sheet import contact_sheet
from tcpvit.data.files import FileCheck
from tcpvit.data.files import data_root as resolve_root
from tcpvit.data.folder import describe
from tcpvit.data.images import SKIP
from tcpvit.data.registry import (
    BUILT_IN,
    FOLDER,
    FOLDERS,
    MADE,
    SCENE,
    SOURCES,
    download_dataset,
    find_dataset,
    get_source,
    is_scene,
)
from tcpvit.data.scenes import built_in, check_scene, list_scenes, scene_files
from tcpvit.data.scenes.named import SCENES, how_to_get
from tcpvit.files import expand_user
from tcpvit.tables import Bytes, Table
from tcpvit.training import Recipe
from tcpvit.training.build import load_splits
from tcpvit.training.recipe import DataRecipe


def data(
    action: Literal["list", "download", "check", "show"] = "list",
    name: str = "",
    *,
    data_root: str = "",
    out: str = "",
    part: Literal["train", "val", "test"] = "train",
    task: str = "",
    level: str = "",
    set: list[str] = [],  # noqa: B006 (typer copies it)
    extra: bool = False,
    json: bool = False,
) -> Any:
    """List, download, verify and look at the data sets.

    Args:
        action: what to do; `list` shows all sets, and which of them are on disk.
        name: a set that `list` names, or folder:PATH for your own images.
        data_root: the folder that holds the sets; by default TCPVIT_DATA, else the cache.
        out: the image that `show` writes, NAME.png by default.
        part: the part that `show` draws from.
        task: classification or segmentation, for digits-on-photos.
        level: easy or hard, for digits-on-photos.
        set: KEY=VALUE, a data key of a recipe for `show` and `check`, as in training, or an option of the set; may be
            repeated.
        extra: download SVHN's 1.3 GB of extra digits too.
        json: print JSON instead of a table.

    Examples:
        tcpvit data
        tcpvit data download cifar10
        tcpvit data check cifar10 --data-root ~/data
        tcpvit data show digits-on-photos --level hard --out sheet.png
        tcpvit data show folder:my_images
        tcpvit data show folder:my_masks --set 'data.options.mask_values={0: 0, 255: 1}'
    """
    if action == "list":
        return _list(data_root, json)
    if not name:
        raise ValueError(f"which set do you mean? Name one, as `tcpvit data {action} {BUILT_IN}`")
    if action == "download":
        return _download(name, data_root, extra, json)
    if action == "check":
        return _check(_data_recipe(name, data_root, {}, set), json)
    return _show(_data_recipe(name, data_root, {"task": task, "level": level}, set), part, out, json)


def _list(root: str, json: bool) -> Table:
    place = resolve_root(root)
    table = Table("data", f"Sets in {place}", ["name", "what", "on disk", "folder", "download"])
    table.add(BUILT_IN, "handwritten digits on photographs, 32×32", None, "built in", None)
    table.add("moving-digits", "clips of handwritten digits that move, 8×32×32", None, "built in", None)
    table.add("solid-digits", "handwritten digits as bodies in space, 32³", None, "built in", None)
    for source in SOURCES.values():
        folder = source.find(place)
        download = Bytes(sum(resource.size for resource in source.resources)) or None
        size = Bytes(_bytes_in(folder)) if folder else None
        table.add(source.name, source.about, size, str(folder) if folder else None, download)
    for name in list_scenes():
        if name == built_in.NAME:
            table.add(name, "scene, 64×64 pixels, 60 bands, 6 classes; made, not measured", None, "built in", None)
            continue
        files = [file for file in scene_files(name, place) or () if file is not None]
        size = Bytes(sum(file.stat().st_size for file in files)) if files else None
        table.add(name, f"scene, {SCENES[name].about}", size, str(files[0].parent) if files else None, None)
    table.add(f"{FOLDER}PATH", "your own images", None, None, None)
    table.add("volumes:PATH", "your own volumes: NIfTI, DICOM, NumPy, TIFF", None, None, None)
    table.add("clips:PATH", "your own video, or folders of frames", None, None, None)
    table.add(f"{SCENE}PATH", "your own scene of many bands", None, None, None)
    show([table], json=json)
    return table


def _download(name: str, root: str, extra: bool, json: bool) -> dict[str, str]:
    if name in (*MADE, built_in.NAME) or name.startswith((*FOLDERS, SCENE)):
        raise ValueError(f"{name} needs no download")
    if is_scene(name):
        files = scene_files(name, root or None)
        raise ValueError(how_to_get(name, root or None) if files is None else f"{name} is in {files[0].parent}")
    result = {
        "name": name,
        "folder": str(download_dataset(name, root or None, optional=extra, progress=display_for(json=True))),
    }
    print(json_module.dumps(result) if json else f"{name} is in {result['folder']}")
    return result


def _data_recipe(name: str, root: str, options: dict[str, str], words: Sequence[str]) -> DataRecipe:
    """The data keys of a recipe, as `tcpvit train --set` takes them; `options` are those that were given by name."""
    plain = Recipe(data=DataRecipe(name=name, root=root or None))
    given = [f"data.options.{key}={value}" for key, value in options.items() if value]
    for word, (key, _) in zip(words, plain.resolve(words), strict=True):
        if not key.startswith("data."):
            raise ValueError(f"a set can be looked at with other data.* keys, got {word!r}")
    return plain.override([*given, *words]).data


def _check(data: DataRecipe, json: bool) -> list[FileCheck]:
    own = data.name.startswith(FOLDER)
    checks, notes = _check_folder(data) if own else (_check_source(data), [])
    table = Table("check", f"Check of {data.name}", ["file", "good", "found"], notes=notes)
    for check in checks:
        table.add(check.file, check.ok, check.detail)
    show([table], json=json)
    if bad := sum(not check.ok for check in checks):
        if own:
            raise ValueError(f"{data.name} has files that cannot be used; repair or remove them, or {SKIP}")
        raise ValueError(f"{bad} of {len(checks)} checks of {data.name} failed")
    return checks


def _check_source(data: DataRecipe) -> list[FileCheck]:
    name, root = data.name, data.root
    if name in (*MADE, built_in.NAME):
        raise ValueError(f"{name} is made on the spot; there is nothing to check")
    if name.startswith(tuple(FOLDERS)):
        parts = load_splits(data).parts()
        about = {part: f"{len(images):,} {images.unit}, {images.task}" for part, images in parts.items()}
        return [FileCheck(part, True, found) for part, found in about.items()]
    if name.startswith(SCENE):
        raise ValueError(f"look into your own scene with `tcpvit scene info {name.removeprefix(SCENE)}`")
    if is_scene(name):
        return check_scene(name, root)
    return get_source(name).check(find_dataset(name, root))


def _check_folder(data: DataRecipe) -> tuple[list[FileCheck], list[str]]:
    """Read every image, and name those that cannot be used; and how to train on the others."""
    progress = display_for(json=True)
    options = {**data.options, "on_bad": "skip", "stream": False}
    splits = load_splits(replace(data, image_size=32, options=options), progress)
    counts = [
        FileCheck(part, True, f"{len(images):,} images, {images.task} in {len(images.classes)} classes")
        for part, images in splits.parts().items()
    ]
    chosen = {key: options[key] for key in ("bands", "classes") if key in options}
    about = describe(expand_user(data.name[len(FOLDER) :]), progress=progress, **chosen)
    facts = [FileCheck(what, True, found) for what, found in about.items()]
    bad = [FileCheck("bad files", False, note.removesuffix("; skipped")) for note in splits.notes]
    skipping = " --set data.options.on_bad=skip" if bad else ""
    command = f"tcpvit train --task {splits.train.task} --data {shlex.quote(data.name)}{skipping}"
    return [*counts, *facts, *bad], [f"train on it with `{command}`"]


def _show(data: DataRecipe, part: str, out: str, json: bool) -> str:
    if is_scene(data.name):
        raise ValueError(f"draw a scene with `tcpvit scene info {data.name.removeprefix(SCENE)} --images FOLDER`")
    splits = load_splits(data)
    images = {"train": splits.train, "val": splits.val, "test": splits.test}[part]
    path = out or f"{Path(data.name.removeprefix(FOLDER)).name}.png"
    contact_sheet(images).save(path, optimize=True)
    result = {"name": data.name, "part": part, "images": len(images), "classes": images.classes, "sheet": path}
    print(json_module.dumps(result) if json else f"{len(images):,} images in {part}; some of them are in {path}")
    return path


def _bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
