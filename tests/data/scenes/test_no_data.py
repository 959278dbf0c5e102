"""What a file calls no data enters nothing: statistics, labels, windows, maps."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tcpvit.data.scenes import Scene, fit_statistics, random_split, read_scene, scene_splits, scene_windows
from tcpvit.data.scenes.composite import composite
from tcpvit.data.scenes.windows import cut_windows
from tcpvit.data.scenes.write import write_class_map

tifffile = pytest.importorskip("tifffile")
GONE = -9999


@pytest.fixture
def cube():
    """Values (8, 10, 4) and labels; a corner has no data, one pixel of the rest lacks it in one band."""
    values = np.random.default_rng(0).integers(1, 100, (8, 10, 4)).astype(np.int16)
    values[:3, :3] = GONE
    values[6, 6, 2] = GONE
    return values, np.tile([1, 2], (8, 5)).astype(np.uint8)


def write_envi(path, values, **fields):
    height, width, bands = values.shape
    code = {"int16": 2, "float32": 4}[values.dtype.name]
    fields = {"samples": width, "lines": height, "bands": bands, "data type": code, "interleave": "bip"} | fields
    path.write_text("ENVI\n" + "".join(f"{name} = {value}\n" for name, value in fields.items()))
    path.with_suffix(".img").write_bytes(values.tobytes())


def write(folder, kind, values, no_data):
    if kind == "envi":
        write_envi(folder / "cube.hdr", values, **{"data ignore value": no_data})
        return folder / "cube.hdr"
    tag = [(42113, "s", len(no_data) + 1, no_data, True)]
    if kind == "tiff":
        tifffile.imwrite(folder / "cube.tif", values.transpose(2, 0, 1), photometric="minisblack", extratags=tag)
        return folder / "cube.tif"
    (folder / "bands").mkdir()
    for band in range(values.shape[2]):
        tifffile.imwrite(folder / "bands" / f"B{band}.tif", values[..., band], extratags=tag)
    return folder / "bands"


@pytest.mark.parametrize("kind", ["envi", "tiff", "folder"])
@pytest.mark.parametrize(
    ("dtype", "value"), [("int16", "-9999"), ("float32", "nan"), ("float32", "-3.4028234663852886e+38")]
)
def test_files_say_which_pixels_have_no_data(tmp_path, cube, kind, dtype, value):
    values, labels = cube
    wanted = (values == GONE).any(-1)
    stored = np.where(values == GONE, np.array(value, dtype), values.astype(dtype)).astype(dtype)
    np.save(tmp_path / "labels.npy", labels)
    scene = read_scene(write(tmp_path, kind, stored, value), tmp_path / "labels.npy")
    assert (scene.missing == wanted).all()
    assert scene.unmeasured == 10
    assert (scene.labels == np.where(wanted, 0, labels)).all()


def test_a_label_map_with_no_data_has_no_label_there(tmp_path, cube):
    values, labels = cube
    labels[5:] = 255
    np.save(tmp_path / "cube.npy", values)
    tifffile.imwrite(tmp_path / "labels.tif", labels, extratags=[(42113, "s", 4, "255", True)])
    assert read_scene(tmp_path / "cube.npy", tmp_path / "labels.tif").class_counts().tolist() == [25, 25]


def test_bands_that_are_bad_anyway_do_not_count(tmp_path, cube):
    values, _ = cube
    values[..., 3] = GONE
    write_envi(tmp_path / "cube.hdr", values, **{"data ignore value": GONE})
    with pytest.raises(ValueError, match="no pixel has data in all bands; mark the bands that lack data as bad"):
        read_scene(tmp_path / "cube.hdr")
    write_envi(tmp_path / "cube.hdr", values, **{"data ignore value": GONE, "bbl": "{1, 1, 1, 0}"})
    assert read_scene(tmp_path / "cube.hdr").missing.sum() == 10
    write_envi(tmp_path / "cube.hdr", values, **{"data ignore value": "none"})
    with pytest.raises(ValueError, match="'data ignore value' should be a number, got 'none'"):
        read_scene(tmp_path / "cube.hdr")


def test_statistics_and_colours_are_of_measured_pixels(cube):
    values, labels = cube
    missing = (values == GONE).any(-1)
    scene = Scene(values, labels, missing=missing)
    known = values[~missing].astype(float)
    everywhere = fit_statistics(scene, transductive=True)
    assert everywhere.pixels == 70
    np.testing.assert_allclose(everywhere.mean, known.mean(0))
    np.testing.assert_allclose(everywhere.std, known.std(0))
    assert np.unique(composite(scene)[~missing]).size > 20
    assert (composite(scene)[:3, :3] == 0).all()
    splits = scene_splits("x", scene, random_split(scene.labels, window=5, seed=0, fraction=0.5))
    assert "10 labelled pixels have no data and are left out" in splits.notes
    assert len(splits.train) + len(splits.test) == 70
    assert splits.train.fetch(torch.arange(len(splits.train))).images.min() > 0


def test_in_windows_the_centre_stands_for_what_is_missing(cube):
    values, labels = cube
    scene = Scene(values, labels, missing=(values == GONE).any(-1))
    window = cut_windows(scene, np.array([[3, 3]]), 3)[0].permute(1, 2, 0)
    assert window[0, 0].tolist() == values[3, 3].tolist()
    assert window[0, 1].tolist() == values[2, 3].tolist()
    for pixels, windows in scene_windows(scene, 5, 16, lambda tile: 2 * tile, rows=4, columns=6):
        torch.testing.assert_close(windows, 2 * cut_windows(scene, pixels, 5))


@pytest.mark.parametrize("name", ["map.tif", "map.hdr"])
def test_maps_say_that_0_is_no_data(tmp_path, cube, name):
    values, labels = cube
    scene = Scene(values, labels, missing=(values == GONE).any(-1))
    write_class_map(tmp_path / name, scene.labels, scene, confidence=(scene.labels > 0) * 0.5)
    if name == "map.hdr":
        assert "data ignore value = 0" in (tmp_path / name).read_text()
        return
    for file in (name, "map_confidence.tif"):
        with tifffile.TiffFile(tmp_path / file) as written:
            assert written.pages[0].tags[42113].value == "0"
