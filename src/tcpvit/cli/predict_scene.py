"""`tcpvit predict --scene`: the class of every pixel of a scene, as a map with confidences."""

from __future__ import annotations

import json as json_module
from pathlib import Path

import torch

from tcpvit.cli.scene_figures import draw_prediction
from tcpvit.cli.shortcuts import scene_name
from tcpvit.cli.show import show
from tcpvit.data.registry import is_scene
from tcpvit.data.scenes import Scene, SceneSplit, open_scene, open_split, scene_splits
from tcpvit.data.scenes.write import check_place
from tcpvit.files import check_writable
from tcpvit.inference.importance import BandImportance, band_importance
from tcpvit.inference.loading import LoadedModel
from tcpvit.inference.scene_map import SceneMap, classify_scene
from tcpvit.layers.bands import BandDCT
from tcpvit.progress import Progress
from tcpvit.training.recipe import DataRecipe

LOOKED_AT = 500  # test windows that the importance is computed from


def predict_scene(
    loaded: LoadedModel,
    scene: str | None,
    labels: Path | None,
    *,
    key: str | None = None,
    out: Path | None,
    images: Path | None,
    batch_size: int,
    device: str,
    json: bool,
    progress: Progress,
) -> SceneMap:
    """Classify a scene, by default that of the run; write the map, and the figures into `images`."""
    opened, split = open_for(loaded, scene, labels, key)
    places = _places(opened) if out is None else [out]
    for place in places:
        check_place(place, opened)
    if images is not None:
        check_writable(images / "figure")
    if out is None and (there := [place for place in places if place.exists()]):
        raise ValueError(f"{there[0]} is there already; name the file of the map with --out, or remove it")
    found = classify_scene(loaded, opened, batch_size=batch_size, device=device, progress=progress)
    files = [file for place in places for file in found.write(place)]
    if images is not None:
        known = split is not None and isinstance(getattr(loaded.model, "bands", None), BandDCT)
        importance = importance_on_test(loaded, opened, split) if known else None
        files += draw_prediction(found, opened, split, importance, images)
    table = found.table()
    if json:
        about = {"scene": opened.name, "seconds": round(found.seconds, 3), "files": [str(file) for file in files]}
        rows = [dict(zip(table.columns, row.cells, strict=True)) for row in table.rows]
        print(json_module.dumps({**about, "classes": rows}, indent=2))
    else:
        table.notes.append(f"written: {', '.join(map(str, files))}")
        show([table])
    return found


def importance_on_test(loaded: LoadedModel, scene: Scene, split: SceneSplit | None) -> BandImportance:
    """What the model looks at, over some of the test windows."""
    if split is None:
        raise ValueError(f"{loaded.name} does not say which pixels are for its test; take the folder of its run")
    test = loaded.prepare(scene_splits(scene.name, scene, split).test)
    some = torch.linspace(0, len(test) - 1, min(len(test), LOOKED_AT)).long()
    return band_importance(loaded.model.cpu(), test.subset(some))


def open_for(
    loaded: LoadedModel, scene: str | None = None, labels: Path | None = None, key: str | None = None
) -> tuple[Scene, SceneSplit | None]:
    """The scene that is named, with its labels; without a name that of the run, with its split."""
    if scene is not None:
        return open_scene(scene_name(scene), labels=None if labels is None else str(labels), key=key), None
    data = loaded.recipe.data if loaded.recipe is not None else DataRecipe()
    if not is_scene(data.name):
        raise ValueError(f"{loaded.name} does not say which scene to classify; name one with --scene FILE")
    if labels is not None or key is not None:
        raise ValueError("--labels and --key belong to a --scene; the scene of the run has its own")
    return open_split(data.name, data.root, image_size=data.image_size, **data.options)


def _places(scene: Scene) -> list[Path]:
    """PNG to look at, NumPy to compute with, and the format that keeps the georeference if there is one."""
    endings = [".png", ".npy"]
    if scene.georeference is not None:
        endings.append(".hdr" if scene.georeference.kind == "envi" else ".tif")
    return [Path(f"{scene.name}_classes{ending}") for ending in endings]
