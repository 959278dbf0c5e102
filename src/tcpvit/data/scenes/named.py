"""Scenes that people know by name: where they are published, what their files are called, and what they should hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tcpvit.data.files import FileCheck, data_root, md5_of, words
from tcpvit.data.scenes import built_in
from tcpvit.data.scenes.read import read_scene, with_labels
from tcpvit.data.scenes.scene import Scene
from tcpvit.errors import did_you_mean

HOMES = ("", "hyperspectral", "scenes")
_GIC = "https://www.ehu.eus/ccwintco"
_GIC_PAGE = f"{_GIC}/index.php/Hyperspectral_Remote_Sensing_Scenes"


@dataclass(frozen=True)
class NamedScene:
    """A published scene. File names are in the order in which they are looked for, upper and lower case alike.

    `md5` holds only what could be established; a file without one is checked by the shape and by the published
    number of labelled pixels of each class.
    `range_nm` is the range of the sensor; the `recorded` bands less the `removed` ones (from 1) are in the file.
    """

    name: str
    about: str
    page: str
    cube_files: tuple[str, ...]
    label_files: tuple[str, ...]
    shape: tuple[int, int, int]
    class_counts: tuple[int, ...]
    class_names: tuple[str, ...]
    range_nm: tuple[float, float]
    recorded: int
    removed: tuple[tuple[int, int], ...] = ()
    urls: tuple[str, ...] = ()  # empty where the files must be requested at `page`
    md5: Mapping[str, str] = field(default_factory=dict)

    def nominal_wavelengths(self) -> NDArray[np.float64]:
        """Centres in nm, as if the recorded bands were equally spaced over the range: good for an axis, not exact."""
        centres = np.linspace(*self.range_nm, self.recorded)
        gone = [band - 1 for first, last in self.removed for band in range(first, last + 1)]
        return np.delete(centres, gone)


INDIAN_PINES = NamedScene(
    name="indian-pines",
    about="AVIRIS over farmland in Indiana, 145×145 pixels of 20 m, 200 bands, 16 classes",
    page=_GIC_PAGE,
    cube_files=("Indian_pines_corrected.mat",),
    label_files=("Indian_pines_gt.mat",),
    shape=(145, 145, 200),
    class_counts=(46, 1428, 830, 237, 483, 730, 28, 478, 20, 972, 2455, 593, 205, 1265, 386, 93),
    class_names=words(
        "Alfalfa, Corn-notill, Corn-mintill, Corn, Grass-pasture, Grass-trees, Grass-pasture-mowed, Hay-windrowed, "
        "Oats, Soybean-notill, Soybean-mintill, Soybean-clean, Wheat, Woods, Buildings-Grass-Trees-Drives, "
        "Stone-Steel-Towers"
    ),
    range_nm=(400.0, 2500.0),
    recorded=220,
    removed=((104, 108), (150, 163), (220, 220)),
    urls=(
        f"{_GIC}/uploads/6/67/Indian_pines_corrected.mat",
        f"{_GIC}/uploads/c/c4/Indian_pines_gt.mat",
    ),
    # From a copy whose header names the publisher's machine and date; that of the cube at hand was saved anew.
    md5={"Indian_pines_gt.mat": "9414943dac1d80faaa9165c8b460510c"},
)

PAVIA_UNIVERSITY = NamedScene(
    name="pavia-university",
    about="ROSIS over the University of Pavia, 610×340 pixels of 1.3 m, 103 bands, 9 classes",
    page=_GIC_PAGE,
    cube_files=("PaviaU.mat",),
    label_files=("PaviaU_gt.mat",),
    shape=(610, 340, 103),
    class_counts=(6631, 18649, 2099, 3064, 1345, 5029, 1330, 3682, 947),
    class_names=words(
        "Asphalt, Meadows, Gravel, Trees, Painted metal sheets, Bare Soil, Bitumen, Self-Blocking Bricks, Shadows"
    ),
    range_nm=(430.0, 860.0),
    recorded=103,
    urls=(f"{_GIC}/uploads/e/ee/PaviaU.mat", f"{_GIC}/uploads/5/50/PaviaU_gt.mat"),
)

SALINAS = NamedScene(
    name="salinas",
    about="AVIRIS over Salinas Valley in California, 512×217 pixels of 3.7 m, 204 bands, 16 classes",
    page=_GIC_PAGE,
    cube_files=("Salinas_corrected.mat",),
    label_files=("Salinas_gt.mat",),
    shape=(512, 217, 204),
    class_counts=(2009, 3726, 1976, 1394, 2678, 3959, 3579, 11271, 6203, 3278, 1068, 1927, 916, 1070, 7268, 1807),
    class_names=words(
        "Brocoli_green_weeds_1, Brocoli_green_weeds_2, Fallow, Fallow_rough_plow, Fallow_smooth, Stubble, Celery, "
        "Grapes_untrained, Soil_vinyard_develop, Corn_senesced_green_weeds, Lettuce_romaine_4wk, Lettuce_romaine_5wk, "
        "Lettuce_romaine_6wk, Lettuce_romaine_7wk, Vinyard_untrained, Vinyard_vertical_trellis"
    ),
    range_nm=(400.0, 2500.0),
    recorded=224,
    removed=((108, 112), (154, 167), (224, 224)),
    urls=(f"{_GIC}/uploads/a/a3/Salinas_corrected.mat", f"{_GIC}/uploads/f/fa/Salinas_gt.mat"),
)

HOUSTON = NamedScene(
    name="houston",
    about="CASI over the University of Houston (GRSS contest 2013), 349×1905 pixels of 2.5 m, 144 bands, 15 classes",
    page="https://machinelearning.ee.uh.edu/?page_id=459",
    cube_files=("2013_IEEE_GRSS_DF_Contest_CASI.tif", "Houston.mat", "Houston13.mat"),
    label_files=("Houston_gt.mat", "Houston13_gt.mat"),
    shape=(349, 1905, 144),
    class_counts=(1251, 1254, 697, 1244, 1242, 325, 1268, 1244, 1252, 1227, 1235, 1233, 469, 428, 660),
    class_names=words(
        "Healthy grass, Stressed grass, Synthetic grass, Trees, Soil, Water, Residential, Commercial, Road, Highway, "
        "Railway, Parking Lot 1, Parking Lot 2, Tennis Court, Running Track"
    ),
    range_nm=(380.0, 1050.0),
    recorded=144,
)

SCENES = {scene.name: scene for scene in (INDIAN_PINES, PAVIA_UNIVERSITY, SALINAS, HOUSTON)}


def list_scenes() -> list[str]:
    """The names that `find_scene` knows."""
    return [built_in.NAME, *SCENES]


def find_scene(name: str, root: str | Path | None = None) -> Scene:
    """A scene by its name, from files already on disk; "materials" is made, not read.

    Looked for in `root` (or TCPVIT_DATA, or the user's cache), in its folders hyperspectral and scenes, and in
    the folder of the scene's name in each.
    """
    if name == built_in.NAME:
        return built_in.materials_scene()
    known = _known(name)
    files = scene_files(name, root)
    if files is None:
        raise FileNotFoundError(how_to_get(name, root))
    cube, labels = files
    scene = read_scene(cube)
    if scene.shape != known.shape:
        raise ValueError(f"{cube} has the shape {scene.shape}, {known.about} has {known.shape}; download it again")
    scene = replace(
        scene, wavelengths=known.nominal_wavelengths(), class_names=known.class_names, colours=(), name=name
    )
    if labels is None:
        return scene
    found = with_labels(scene, labels).require_labels()
    counts = np.bincount(found.ravel(), minlength=len(known.class_names) + 1)[1:]
    if counts.tolist() != list(known.class_counts):
        published = sum(known.class_counts)
        raise ValueError(
            f"{labels} has {counts.sum():,} labelled pixels in {found.max()} classes, expected {published:,} in "
            f"{len(known.class_names)}, by class {', '.join(map(str, known.class_counts))}; to use another label map, "
            "give its path"
        )
    return replace(scene, labels=found)


def scene_files(name: str, root: str | Path | None = None) -> tuple[Path, Path | None] | None:
    """The files of the image and of the labels (None where they are missing), or None where the image is missing."""
    known = _known(name)
    base = data_root(root)
    for home in (base / home / own for home in HOMES for own in ("", name, name.replace("-", "_"))):
        if cube := _first_file(home, known.cube_files):
            return cube, _first_file(home, known.label_files)
    return None


def how_to_get(name: str, root: str | Path | None = None) -> str:
    """Where the files of a scene are published, and where they are looked for."""
    known, place = _known(name), data_root(root)
    where = f"put it, with {known.label_files[0]} beside it, into {place / HOMES[1]}"
    if known.urls:
        return f"{known.cube_files[0]} is not under {place}: download {' and '.join(known.urls)}, and {where}"
    return f"{known.cube_files[0]} is not under {place}: it must be requested at {known.page}; then {where}"


def check_scene(name: str, root: str | Path | None = None) -> list[FileCheck]:
    """What can be said about the files of a scene: the md5 where one is established, else shape and labels."""
    known, files = _known(name), scene_files(name, root)
    if files is None:
        return [FileCheck(known.cube_files[0], False, "missing")]
    cube, labels = files
    checks = []
    for path, expected in ((cube, known.cube_files[0]), (labels, known.label_files[0])):
        if path is None:
            checks.append(FileCheck(expected, False, "missing"))
        elif (md5 := known.md5.get(path.name)) is not None and md5_of(path) != md5:
            checks.append(FileCheck(path.name, False, f"differs from the md5 {md5}"))
        else:
            checks.append(FileCheck(path.name, True, "the published md5" if md5 else "no md5 is established for it"))
    try:
        scene = find_scene(name, root)
    except (ValueError, ImportError) as error:
        return [*checks, FileCheck("content", False, str(error))]
    labelled = "no labels" if scene.labels is None else f"{(scene.labels > 0).sum():,} labels, by class as published"
    shape = "×".join(map(str, scene.shape))
    return [*checks, FileCheck("content", True, f"{shape} {scene.data.dtype}, {labelled}")]


def _known(name: str) -> NamedScene:
    if name not in SCENES:
        raise ValueError(f"unknown scene {name!r}{did_you_mean(name, list_scenes())}")
    return SCENES[name]


def _first_file(folder: Path, names: tuple[str, ...]) -> Path | None:
    """The first of `names` that the folder holds, whatever its case."""
    if not folder.is_dir():
        return None
    present = {path.name.lower(): path for path in sorted(folder.iterdir()) if path.is_file()}
    return next((present[name.lower()] for name in names if name.lower() in present), None)
