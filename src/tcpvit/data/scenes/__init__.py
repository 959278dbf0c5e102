"""Scenes of many bands: read from files, split into training and test pixels, measured, and cut into windows.

`read_scene` or `find_scene` gives a `Scene`; `disjoint_split` or `random_split` says which pixels train and test;
`fit_statistics` measures the bands on training pixels; `scene_splits` gives windows as sets of images, which `Batches`
iterates over; `scene_windows` gives those of the whole scene;
`resample_scene` fits the bands of another sensor to those of a model; `write_class_map` writes what was predicted, in
its place on earth.
"""

from tcpvit.data.scenes.built_in import materials_scene
from tcpvit.data.scenes.composite import class_spectra, composite
from tcpvit.data.scenes.load import make_split, open_scene, open_split, scene_splits
from tcpvit.data.scenes.named import NamedScene, check_scene, find_scene, list_scenes, scene_files
from tcpvit.data.scenes.read import read_scene, with_labels
from tcpvit.data.scenes.resample import resample_scene
from tcpvit.data.scenes.scene import Georeference, Scene, class_colours
from tcpvit.data.scenes.splits import SceneSplit, disjoint_split, random_split, split_from_masks
from tcpvit.data.scenes.statistics import SceneStatistics, fit_statistics
from tcpvit.data.scenes.windows import SceneWindows, WindowSet, cut_windows, scene_windows
from tcpvit.data.scenes.write import write_class_map

__all__ = [
    "Georeference",
    "NamedScene",
    "Scene",
    "SceneSplit",
    "SceneStatistics",
    "SceneWindows",
    "WindowSet",
    "check_scene",
    "class_colours",
    "class_spectra",
    "composite",
    "cut_windows",
    "disjoint_split",
    "find_scene",
    "fit_statistics",
    "list_scenes",
    "make_split",
    "materials_scene",
    "open_scene",
    "open_split",
    "random_split",
    "read_scene",
    "resample_scene",
    "scene_files",
    "scene_splits",
    "scene_windows",
    "split_from_masks",
    "with_labels",
    "write_class_map",
]
