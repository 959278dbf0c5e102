"""Every example of every `--help` is run as it stands there, in a folder that has what the examples name.

Only what surrounds the command lines is small: the recipes that come with the package are shortened to one epoch, the
built-in set to a few images, cifar10 is a made one, studies take one of these sets, shapes that are timed have one
block, one image and eight channels at most, and timm gives models without downloading their weights.
"""

from __future__ import annotations

import inspect
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from published import write_cifar, write_classes, write_masks
from test_folder import stripes

from tcpvit.analysis import bench
from tcpvit.cli import app
from tcpvit.compare.study import Planned
from tcpvit.compat import repair_torchvision
from tcpvit.data import digits_on_photos, registry
from tcpvit.data.files import FileCheck
from tcpvit.data.scenes import materials_scene
from tcpvit.timing import interleaved
from tcpvit.training import recipe

ENDLESS = ("serve",)  # its own tests start and stop it
SLOW = ("torchrun", "--seeds 3", "--epochs 40", "tensorize", "reproduce segmentation")
SHORT_SET = """from tcpvit.data import digits_on_photos
digits_on_photos.load.__kwdefaults__["sizes"] = (60, 20, 30)
"""


def examples() -> list:
    found = []
    for verb, (target, _) in app.VERBS.items():
        lines = app._section(inspect.getdoc(app.load(target)) or "", "Examples").splitlines()
        for line in lines if verb not in ENDLESS else ():
            marks = [pytest.mark.slow] if any(word in line for word in SLOW) else []
            found.append(pytest.param(line, id=line, marks=marks))
    return found


def shorten(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Recipes of one epoch, a built-in set of 60 images, and sets in `folder`."""
    recipes = folder / "recipes"
    if not recipes.exists():
        recipes.mkdir(parents=True)
        for file in recipe.SHIPPED.glob("*.yaml"):
            lines = [line for line in file.read_text().splitlines() if "warmup" not in line]
            short = ["  epochs: 1" if line.startswith("  epochs:") else line for line in lines]
            (recipes / file.name).write_text("\n".join(short).replace("split: paper", "split: official"))
    patch.setattr(recipe, "SHIPPED", recipes)
    patch.setitem(digits_on_photos.load.__kwdefaults__, "sizes", (60, 20, 30))
    patch.setenv("TCPVIT_DATA", str(folder / "data"))
    patch.setenv("HOME", str(folder))
    checked = replace(registry.SOURCES["cifar10"], check=lambda _: [FileCheck("made", True, "")])
    patch.setitem(registry.SOURCES, "cifar10", checked)
    patch.setattr(Planned, "resolved", small_run(Planned.resolved))
    patch.setattr(bench, "interleaved", lambda contenders, seconds: interleaved(contenders, 0.0))
    for name, shape in bench.SHAPES.items():
        patch.setitem(bench.SHAPES, name, replace(shape, depth=1, batch=1, tube=min(shape.tube, 8)))


def small_run(resolve: Callable[..., recipe.Recipe]) -> Callable[..., recipe.Recipe]:
    """What a study plans, on images that are here, for one epoch."""

    def resolved(self: Planned, epochs: int | None = None, root: Path | None = None) -> recipe.Recipe:
        planned = resolve(self, 1, root)
        if self.recipe == "scene":
            return replace(planned, data=replace(planned.data, name="materials"))
        name = "folder:scans" if "segmentation" in self.recipe else "digits-on-photos"
        return replace(planned, data=replace(planned.data, name=name, options={}))

    return resolved


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> Path:
    """The folders, images and runs that the examples name."""
    folder = tmp_path_factory.mktemp("examples")
    (folder / "data").mkdir()
    write_cifar(folder / "data", binary=True)
    for name in ("images", "my_images"):
        write_classes(folder / name, {"cat": 10, "dog": 10})
    masks = {f"p{i}": stripes() for i in range(10)}
    write_masks(folder / "scans", masks)
    write_masks(folder / "my_masks", {name: 255 * (mask > 0) for name, mask in masks.items()})
    scene = materials_scene()
    np.save(folder / "cube.npy", scene.data[:24, 20:44])
    np.save(folder / "labels.npy", scene.labels[:24, 20:44])
    (folder / "holiday").mkdir()
    for file in ("holiday.jpg", "holiday/cat.jpg"):
        Image.new("RGB", (60, 40), (200, 120, 40)).save(folder / file)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        shorten(patch, folder)
        for command in (
            "train demo --model std_vit_cifar --name short --quiet",
            "train paper-classification --model std_vit_cifar --name std --quiet",
            "demo",
            "export tcp_vit_cifar_plus --out plus.onnx",
            "train --scene cube.npy --labels labels.npy --split random --name field --quiet",
        ):
            assert app.main(shlex.split(command)) == 0
    return folder


@pytest.mark.parametrize("line", examples())
def test_the_example_works(line, prepared, tmp_path, monkeypatch, capsys):
    place = tmp_path / "place"
    shutil.copytree(prepared, place)
    monkeypatch.chdir(place)
    program, *words = shlex.split(line)
    if "--name" in words:
        shutil.rmtree(place / "runs" / words[words.index("--name") + 1], ignore_errors=True)
    if program == "torchrun":
        (place / "sitecustomize.py").write_text(SHORT_SET)  # which Python imports when it starts
        path = os.pathsep.join([str(place), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        done = subprocess.run([Path(sys.executable).with_name(program), *words], env=environment, timeout=280)
        assert done.returncode == 0
        return
    shorten(monkeypatch, place)
    words = [os.path.expanduser(word) for word in words]  # as a shell does
    if words[0] == "tensorize":
        repair_torchvision()  # before timm imports it
        timm = pytest.importorskip("timm")
        create = timm.create_model
        monkeypatch.setattr(timm, "create_model", lambda name, pretrained=False, **options: create(name, **options))
    assert program == "tcpvit"
    assert app.main(words) == 0, capsys.readouterr().err
