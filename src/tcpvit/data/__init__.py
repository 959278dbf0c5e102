"""Data: the paper's sets and people's own images as tensors, the paper's subsets, and reproducible batches of them.

`load_dataset` gives train, val and test; `Batches` iterates over one of them. Scenes of many bands are in
`tcpvit.data.scenes`. It depends on no other room.
"""

from tcpvit.data.augment import Augment
from tcpvit.data.contact_sheet import contact_sheet
from tcpvit.data.image_set import IGNORE, Images, ImageSet, Splits
from tcpvit.data.images import ImageFiles
from tcpvit.data.loader import Batches
from tcpvit.data.registry import download_dataset, list_datasets, load_dataset
from tcpvit.data.scenes import Scene, SceneSplit, disjoint_split, find_scene, random_split, read_scene
from tcpvit.data.subsets import draw

__all__ = [
    "IGNORE",
    "Augment",
    "Batches",
    "ImageFiles",
    "ImageSet",
    "Images",
    "Scene",
    "SceneSplit",
    "Splits",
    "contact_sheet",
    "disjoint_split",
    "download_dataset",
    "draw",
    "find_scene",
    "list_datasets",
    "load_dataset",
    "random_split",
    "read_scene",
]
