"""Class maps written and read back, by ourselves and by others."""

from __future__ import annotations

import numpy as np
import pytest
import tifffile
from PIL import Image

from tcpvit.data.scenes import Georeference, Scene, read_scene, write_class_map

CUBE = np.zeros((6, 5, 3), np.float32)
CLASSES = np.random.RandomState(0).randint(0, 4, (6, 5))
CONFIDENCE = np.random.RandomState(1).rand(6, 5).astype(np.float32)
ENVI = Georeference("envi", {"map info": "UTM, 1, 1, 620000, 4100000, 20, 20, 16, North, WGS-84", "x start": "7"})
GEOTIFF = Georeference(
    "geotiff",
    {
        33550: (12, (20.0, 20.0, 0.0)),
        33922: (12, (0.0, 0.0, 0.0, 6e5, 4.1e6, 0.0)),
        34735: (3, (1, 1, 0, 1, 3072, 0, 1, 32616)),
        34737: (2, "WGS 84 / UTM zone 16N|"),
    },
)


def scene(georeference=None, **fields):
    return Scene(CUBE, class_names=("corn", "wheat", "woods"), georeference=georeference, **fields)


def read_back(path):
    return read_scene_of(path).labels


def read_scene_of(path):
    np.save(path.parent / "cube.npy", CUBE)
    return read_scene(path.parent / "cube.npy", path)


def test_envi_keeps_classes_colours_and_place(tmp_path):
    ours = scene(ENVI)
    files = write_class_map(tmp_path / "map.hdr", CLASSES, ours, confidence=CONFIDENCE)
    assert sorted(f.name for f in files) == ["map.hdr", "map.img", "map_confidence.hdr", "map_confidence.img"]
    found = read_scene_of(tmp_path / "map.hdr")
    np.testing.assert_array_equal(found.labels, CLASSES)
    assert (found.class_names, found.colours) == (ours.class_names, ours.colours)
    assert found.georeference == ENVI
    confidence = read_scene(tmp_path / "map_confidence.hdr")
    np.testing.assert_array_equal(confidence.data[:, :, 0], CONFIDENCE)
    assert confidence.georeference == ENVI


def test_envi_as_spectral_python_reads_it(tmp_path):
    envi = pytest.importorskip("spectral.io.envi")
    write_class_map(tmp_path / "map.hdr", CLASSES, scene(ENVI))
    theirs = envi.open(str(tmp_path / "map.hdr"))
    np.testing.assert_array_equal(np.asarray(theirs.read_band(0)), CLASSES)
    assert theirs.metadata["class names"] == ["Unclassified", "corn", "wheat", "woods"]
    assert theirs.metadata["map info"][:2] == ["UTM", "1"]


def test_geotiff_keeps_classes_colours_and_place(tmp_path):
    ours = scene(GEOTIFF)
    write_class_map(tmp_path / "map.tif", CLASSES, ours, confidence=CONFIDENCE)
    np.testing.assert_array_equal(read_back(tmp_path / "map.tif"), CLASSES)
    confidence = read_scene(tmp_path / "map_confidence.tif")
    np.testing.assert_array_equal(confidence.data[:, :, 0], CONFIDENCE)
    for found in (read_scene_of(tmp_path / "map.tif"), confidence):
        assert found.georeference == GEOTIFF
    with Image.open(tmp_path / "map.tif") as image:
        np.testing.assert_array_equal(np.asarray(image.convert("RGB"))[CLASSES == 2][0], ours.colours[1])
    with tifffile.TiffFile(tmp_path / "map.tif") as file:
        assert file.is_geotiff
        assert file.geotiff_metadata["ProjectedCSTypeGeoKey"] == 32616


def test_png_shows_the_colours(tmp_path):
    ours = scene()
    write_class_map(tmp_path / "map.png", CLASSES, ours, confidence=CONFIDENCE)
    with Image.open(tmp_path / "map.png") as image:
        np.testing.assert_array_equal(np.asarray(image), CLASSES)
        palette = np.array([(0, 0, 0), *ours.colours])
        np.testing.assert_array_equal(np.asarray(image.convert("RGB")), palette[CLASSES])
    with Image.open(tmp_path / "map_confidence.png") as image:
        np.testing.assert_array_equal(np.asarray(image), np.rint(255 * CONFIDENCE))


def test_npy_holds_the_numbers(tmp_path):
    write_class_map(tmp_path / "map.npy", CLASSES, scene(), confidence=CONFIDENCE)
    np.testing.assert_array_equal(np.load(tmp_path / "map.npy"), CLASSES)
    np.testing.assert_array_equal(np.load(tmp_path / "map_confidence.npy"), CONFIDENCE)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["map.npy", "map_confidence.npy"]


def test_more_than_255_classes(tmp_path):
    many = Scene(CUBE, class_names=tuple(f"c{k}" for k in range(400)))
    classes = np.full((6, 5), 399)
    for name in ("map.tif", "map.hdr", "map.npy"):
        write_class_map(tmp_path / name, classes, many)
    np.testing.assert_array_equal(read_back(tmp_path / "map.tif"), classes)
    np.testing.assert_array_equal(read_back(tmp_path / "map.hdr"), classes)
    with pytest.raises(ValueError, match="255 classes at most"):
        write_class_map(tmp_path / "map.png", classes, many)


@pytest.mark.parametrize(("georeference", "name", "advice"), [(ENVI, "a.tif", ".hdr"), (GEOTIFF, "a.hdr", ".tif")])
def test_a_place_that_would_be_lost_is_an_error(georeference, name, advice, tmp_path):
    with pytest.raises(ValueError, match=f"cannot keep the scene's georeference.* write {advice}"):
        write_class_map(tmp_path / name, CLASSES, scene(georeference))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "classes", "sentence"),
    [
        ("a.jpg", CLASSES, "cannot be written as '.jpg'"),
        ("a.png", CLASSES.T, "6×5 pixels, got"),
        ("a.png", CLASSES + 9, "has 3 classes"),
        ("a.png", CLASSES - 1, "between 0"),
    ],
)
def test_maps_that_do_not_fit(name, classes, sentence, tmp_path):
    with pytest.raises(ValueError, match=sentence):
        write_class_map(tmp_path / name, classes, scene())
