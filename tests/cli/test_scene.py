"""Scenes from the command line: what a stranger may give, each answered in one sentence, and what is written."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tcpvit.cli import app
from tcpvit.data.scenes import SceneSplit, materials_scene

SHORT = ["--epochs", "1", "--set", "depth=1", "--set", "train_size=32", "--device", "cpu", "--quiet"]
HEADER = "ENVI\nsamples = 24\nlines = 24\nbands = {bands}\ndata type = 12\ninterleave = bip\nbyte order = 0\n"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A corner of the built-in scene as NumPy and ENVI files, and files that are wrong in one way each."""
    folder = tmp_path_factory.mktemp("scene")
    scene = materials_scene()
    cube, labels = scene.data[:24, 20:44], scene.labels[:24, 20:44]
    np.save(folder / "cube.npy", cube)
    np.save(folder / "labels.npy", labels)
    np.save(folder / "other.npy", labels[::-1])
    np.save(folder / "far.npy", np.where(labels == 6, 255, labels))
    np.save(folder / "one.npy", labels > 0)
    np.save(folder / "narrow.npy", labels[:, :-1])
    np.save(folder / "seven.npy", np.eye(24, dtype=np.uint8) * (np.arange(24) < 3))
    np.savez(folder / "several.npz", a=cube, b=cube[:, :, :5], labels=labels, mask=labels > 0)
    np.save(folder / "measured.npy", np.random.default_rng(0).random((24, 24)))
    np.save(folder / "nan.npy", np.where(np.arange(60) == 7, np.nan, cube).astype(np.float32))
    (folder / "cut.npy").write_bytes((folder / "cube.npy").read_bytes()[:-100])
    for name, bands in (("envi", 60), ("lies", 61)):
        (folder / f"{name}.hdr").write_text(HEADER.format(bands=bands))
        cube.astype("<u2").tofile(folder / f"{name}.img")
    (folder / "half.img").write_bytes(b"something else")
    labels.astype("u1").tofile(folder / "strange.img")
    strange = HEADER.format(bands=1).replace("type = 12", "type = 1")
    (folder / "strange.hdr").write_text(f"{strange}class names = {{no, {', '.join(6 * [chr(0x13000)])}}}\n", "utf-8")
    np.savez(folder / "both.npz", cube=cube, labels=labels)
    np.save(folder / "named.npy", cube)
    np.save(folder / "named_classes.npy", labels)  # the user's own
    with (folder / "envi.hdr").open("a") as header:
        header.write("map info = {UTM, 1, 1, 500000, 4500000, 20, 20, 16, North}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        line = "scene split cube.npy --labels other.npy --kind random --out s.npz"
        assert app.main(line.split()) == 0
        words = ["train", "--scene", "cube.npy", "--labels", "labels.npy", "--split", "random", "--name", "run"]
        assert app.main([*words, *SHORT]) == 0
    return folder


@pytest.fixture
def folder(prepared, monkeypatch):
    monkeypatch.chdir(prepared)
    return prepared


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("scene info lies.hdr", "tcpvit: lies.img is cut short or its header is wrong: in lies.hdr 24 lines"),
        ("scene split cube.npy --labels seven.npy --kind random", "the random split has no test pixels; label more"),
        ("scene info several.npz", "2 arrays that could be an image of rows × columns × bands: a 24×24×60 uint16, b"),
        ("scene info cube.npy --labels several.npz", "say which one with labels_key=NAME"),
        ("scene info cut.npy", "is cut short"),
        (
            "scene info nan.npy",
            "or mark their bands as bad (bbl of an ENVI header): band 8",
        ),
        ("scene info cube.npy --labels far.npy", "label 255 stands far from the others"),
        ("scene info indian-pine", "no scene is known by that name; did you mean 'indian-pines'"),
        ("scene info labels.npy", "is not an image of rows × columns × bands"),
        ("scene split cube.npy", "has no labels: give a label map of 24×24 pixels, --labels FILE"),
        ("scene split cube.npy --labels narrow.npy", "labels of 24×23 pixels do not fit an image of 24×24"),
        ("scene split cube.npy --labels measured.npy", "labels should be whole numbers"),
        ("scene split cube.npy --labels labels.npy --window 25", "25×25 pixels is wider than cube"),
        ("scene split cube.npy --labels labels.npy --window 4", "odd width"),
        ("scene split cube.npy --labels labels.npy --fraction 0.1", "--fraction and --count are for --kind random"),
        ("scene split cube.npy --labels labels.npy --kind random --out split.txt", "a split is saved as .npz"),
        ("scene info cube.npy --out x.npz", "--out is for `tcpvit scene split`"),
        ("train --scene cube.npy --labels labels.npy --split s.npz", "was made for another label map"),
        ("train --scene nan.npy --labels labels.npy --split random", "are not finite numbers"),
        ("train --scene cube.npy --labels one.npy --split random", "have one class only"),
        ("train --scene cube.npy --data cifar10", "--scene and --data both name a set"),
        ("train --data cifar10 --labels labels.npy", "--labels is for scenes, but cifar10 is none"),
        ("train --scene cube.npy --labels labels.npy --split random --window 5", "patch"),
        ("eval runs/run --scene cube.npy --labels nowhere.npy", "nowhere.npy"),
        ("predict runs/run cube.npy", "classifies the pixels of a scene; name it with --scene cube.npy"),
        ("predict runs/run --scene cube.npy --out map.jpg", "cannot be written as '.jpg'"),
        ("predict runs/run --scene cube.npy --out cube.npy", "written over cube.npy, which is read here"),
        ("predict runs/run --scene envi.hdr --out envi.hdr", "written over envi.hdr, which is read here"),
        ("predict runs/run --scene envi.hdr --out half.hdr", "half.img is there already, and is no part of a map"),
        ("predict runs/run --scene envi.hdr --out map.tif", "cannot keep the scene's georeference"),
        ("predict runs/run --out runs", "cannot be written as ''"),  # of the run's own scene
        ("predict runs/run --scene named.npy", "named_classes.npy is there already"),
        ("scene split both.npz --labels both.npz --out both.npz", "written over both.npz, which is read here"),
        ("scene split cube.npy --labels labels.npy --out both.npz", "is there already, and is no saved split"),
        ("predict tcp_vit_cifar_plus", "name the images, or folders of images, to label"),
        ("predict tcp_vit_cifar_plus --scene cube.npy", "was not trained on a scene"),
        ("data download materials", "needs no download"),
    ],
)
def test_what_is_wrong_is_one_sentence(words, sentence, folder, capsys):
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert app.main(words.split()) == 1
    said = capsys.readouterr().err
    assert sentence in said
    assert len(said.strip().splitlines()) == 1, said
    assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_info_and_split_say_what_there_is(folder, capsys):
    assert app.main(["scene", "info", "cube.npy", "--labels", "labels.npy", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"scene", "classes", "frequencies"}
    assert {"property": "labels", "value": "576 pixels in 6 classes"} in found["scene"]["rows"]
    line = "scene split envi.hdr --labels labels.npy --kind random --count 9 --out own.npz"
    assert app.main(line.split()) == 0
    assert "test windows contain a training pixel" in capsys.readouterr().out
    split = SceneSplit.load("own.npz")
    assert split.kind == "random"
    assert (split.mask("train") | split.mask("validation")).sum() % 9 == 0


def test_a_map_keeps_coordinates_and_another_split_is_measured(folder, capsys):
    assert app.main(["predict", "runs/run", "--scene", "envi.hdr", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {file.rpartition(".")[2] for file in found["files"]} == {"png", "npy", "hdr", "img"}
    assert "500000, 4500000" in (folder / "envi_classes.hdr").read_text()
    assert np.load("envi_classes.npy").shape == (24, 24)
    line = "eval runs/run --scene envi.hdr --labels labels.npy --split random --json"
    assert app.main(line.split()) == 0
    measured = json.loads(capsys.readouterr().out)
    assert "random split of seed 0" in " ".join(measured["notes"])
    assert 0 <= measured["oa"] <= 1


def test_a_name_that_no_font_has_is_told_in_one_sentence(folder, capsys):
    """Warnings of ours read like messages, without the file and line of our code."""
    assert app.main(["scene", "info", "cube.npy", "--labels", "strange.hdr", "--images", "figures"]) == 0
    said = capsys.readouterr().err.strip().splitlines()
    assert [line.startswith("tcpvit: no installed font has the letters") for line in said] == [True], said
