"""Scenes by name: found on disk, checked, and missing with an address."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.io import savemat

from tcpvit.data.scenes import check_scene, find_scene, list_scenes, scene_files
from tcpvit.data.scenes.named import HOUSTON, SCENES


@pytest.mark.parametrize("known", SCENES.values(), ids=lambda known: known.name)
def test_the_entries_agree_with_themselves(known):
    wavelengths = known.nominal_wavelengths()
    assert len(wavelengths) == known.shape[2]
    assert known.range_nm[0] <= wavelengths.min() < wavelengths.max() <= known.range_nm[1]
    assert str(len(known.class_names)) + " classes" in known.about
    assert len(set(known.class_names)) == len(known.class_names) == len(known.class_counts)
    named = {url.rsplit("/", 1)[-1] for url in known.urls}
    assert not named or named == {known.cube_files[0], known.label_files[0]}


def fake(name, folder, *, shift=0):
    """Files of the right shape and number of labels, with zeros for values."""
    known = SCENES[name]
    folder.mkdir(parents=True, exist_ok=True)
    savemat(folder / known.cube_files[0], {"x": np.zeros(known.shape, np.uint8)}, do_compression=True)
    labels = np.zeros(known.shape[:2], np.uint8)
    classes = np.repeat(np.arange(1, len(known.class_names) + 1), known.class_counts)[shift:]
    labels.flat[: len(classes)] = classes
    savemat(folder / known.label_files[0].lower(), {"y": labels})


@pytest.mark.parametrize("place", ["", "hyperspectral", "hyperspectral/indian-pines", "scenes/indian_pines"])
def test_files_are_found_in_the_usual_folders(place, tmp_path, monkeypatch):
    fake("indian-pines", tmp_path / place)
    monkeypatch.setenv("TCPVIT_DATA", str(tmp_path))
    scene = find_scene("indian-pines")
    assert scene.shape == (145, 145, 200)
    assert scene.class_names[13] == "Woods"
    assert scene.wavelengths.shape == (200,)
    assert (scene.labels > 0).sum() == 10_249
    assert scene.name == "indian-pines"


def test_missing_files_are_answered_with_their_address(tmp_path):
    assert scene_files("salinas", tmp_path) is None
    with pytest.raises(FileNotFoundError, match=r"download https://www.ehu.eus/.*Salinas_corrected.mat and https"):
        find_scene("salinas", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"must be requested at https://machinelearning.ee.uh.edu"):
        find_scene("houston", tmp_path)
    assert not HOUSTON.urls


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'indian-pines'"):
        find_scene("indian_pine")
    assert list_scenes() == ["materials", "indian-pines", "pavia-university", "salinas", "houston"]


def test_other_files_of_the_same_name_are_refused(tmp_path):
    fake("indian-pines", tmp_path, shift=1)
    said = "10,248 labelled pixels in 16 classes, expected 10,249 in 16, by class 46, 1428,"
    with pytest.raises(ValueError, match=said):
        find_scene("indian-pines", tmp_path)
    savemat(tmp_path / "Indian_pines_corrected.mat", {"x": np.zeros((145, 145, 220), np.uint8)}, do_compression=True)
    with pytest.raises(ValueError, match=r"has the shape \(145, 145, 220\)"):
        find_scene("indian-pines", tmp_path)


def test_check_says_what_is_known_about_each_file(tmp_path):
    assert [check.ok for check in check_scene("indian-pines", tmp_path)] == [False]
    fake("indian-pines", tmp_path)
    (tmp_path / "indian_pines_gt.mat").rename(tmp_path / "Indian_pines_gt.mat")
    cube, labels, content = check_scene("indian-pines", tmp_path)
    assert cube.ok
    assert cube.detail == "no md5 is established for it"
    assert not labels.ok  # other bytes than the publisher's
    assert content.ok
    assert content.detail == "145×145×200 uint8, 10,249 labels, by class as published"


def test_the_real_indian_pines(real_data):
    if scene_files("indian-pines", real_data) is None:
        pytest.skip("Indian Pines is not among the real data")
    assert all(check.ok for check in check_scene("indian-pines", real_data))
    scene = find_scene("indian-pines", real_data)
    assert scene.class_counts().tolist() == [
        46, 1428, 830, 237, 483, 730, 28, 478, 20, 972, 2455, 593, 205, 1265, 386, 93,
    ]  # fmt: skip
