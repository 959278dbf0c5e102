"""ENVI files in every interleave, type and byte order, against bytes laid out by hand and against Spectral Python."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tcpvit.data.scenes import read_scene
from tcpvit.data.scenes.envi import TYPES, parse_header

LINES, SAMPLES, BANDS = 3, 4, 5
REAL = {number: code for number, code in TYPES.items() if not code.startswith("c")}


def write(path, *, interleave="bsq", number=2, order=0, offset=0, extra="", cube=None, **changes):
    """The header path.hdr and the values path.img, one value after another in plain loops."""
    dtype = np.dtype("<>"[order] + TYPES[number])
    if cube is None:
        cube = np.arange(LINES * SAMPLES * BANDS).reshape(LINES, SAMPLES, BANDS)
    lines, samples, bands = cube.shape
    ranges = {"l": range(lines), "s": range(samples), "b": range(bands)}
    axes = {"bsq": "bls", "bil": "lbs", "bip": "lsb"}.get(interleave, "bls")
    content = bytearray(b"\xee" * offset)
    for places in itertools.product(*(ranges[axis] for axis in axes)):
        at = dict(zip(axes, places, strict=True))
        content += np.array(cube[at["l"], at["s"], at["b"]]).astype(dtype).tobytes()
    fields = {
        "samples": samples,
        "lines": lines,
        "bands": bands,
        "header offset": offset,
        "data type": number,
        "interleave": interleave,
        "byte order": order,
    } | {name.replace("_", " "): value for name, value in changes.items()}
    text = "".join(f"{name} = {value}\n" for name, value in fields.items() if value is not None)
    path.with_suffix(".hdr").write_text(f"ENVI\ndescription = {{a test,\n  of two lines}}\n{text}{extra}")
    path.with_suffix(".img").write_bytes(bytes(content))
    return cube.astype(dtype)


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("number", REAL)
@pytest.mark.parametrize("interleave", ["bsq", "bil", "bip"])
def test_every_interleave_type_and_byte_order(interleave, number, order, tmp_path):
    cube = write(tmp_path / "a", interleave=interleave, number=number, order=order, offset=7 if order else 0)
    scene = read_scene(tmp_path / "a.hdr")
    assert scene.data.dtype == np.dtype("<>"[order] + REAL[number])
    assert isinstance(scene.data, np.memmap)
    np.testing.assert_array_equal(scene.data, cube)


@pytest.mark.parametrize("interleave", ["bsq", "bil", "bip"])
@pytest.mark.parametrize("dtype", ["u1", "i2", "f4", "u4", "f8"])
def test_files_of_spectral_python_are_read_as_it_reads_them(interleave, dtype, tmp_path):
    envi = pytest.importorskip("spectral.io.envi")
    cube = np.random.RandomState(0).randint(0, 200, (6, 5, 8)).astype(dtype)
    metadata = {"wavelength": [str(w) for w in np.linspace(0.4, 2.5, 8)], "wavelength units": "Micrometers"}
    path = str(tmp_path / "a.hdr")
    envi.save_image(path, cube, interleave=interleave, byteorder=1, metadata=metadata)
    theirs = envi.open(path)
    scene = read_scene(path)
    np.testing.assert_array_equal(scene.data, cube)
    np.testing.assert_array_equal(scene.data, np.asarray(theirs.load(dtype=cube.dtype)))
    np.testing.assert_allclose(scene.wavelengths, 1000 * np.array(theirs.bands.centers))


def test_classifications_of_spectral_python(tmp_path):
    envi = pytest.importorskip("spectral.io.envi")
    labels = np.random.RandomState(0).randint(0, 4, (6, 5)).astype(np.uint8)
    colours = [(0, 0, 0), (250, 0, 0), (0, 251, 0), (0, 0, 252)]
    names = ["Unclassified", "corn", "wheat", "woods"]
    envi.save_classification(str(tmp_path / "truth.hdr"), labels, class_names=names, class_colors=colours)
    np.save(tmp_path / "cube.npy", np.zeros((6, 5, 2)))
    scene = read_scene(tmp_path / "cube.npy", tmp_path / "truth.hdr")
    np.testing.assert_array_equal(scene.labels, labels)
    assert scene.class_names == ("corn", "wheat", "woods")
    assert scene.colours == ((250, 0, 0), (0, 251, 0), (0, 0, 252))


EXTRA = """; a comment = {not read}
Wavelength Units = Micrometers
wavelength = {0.4, 0.5,
 0.6,
 0.7, 2.5}
bbl = {1, 1, 0, 1, 0}
map info = {UTM, 1.000, 1.000, 620000.0, 4100000.0, 2.0e+01, 2.0e+01, 16, North, WGS-84, units=Meters}
coordinate system string = {PROJCS["UTM_Zone_16N",GEOGCS["GCS_WGS_1984"]]}
"""


def test_wavelengths_bad_bands_and_georeference(tmp_path):
    write(tmp_path / "a", extra=EXTRA)
    scene = read_scene(tmp_path / "a.img")
    np.testing.assert_allclose(scene.wavelengths, [400, 500, 600, 700, 2500])
    assert scene.good_bands.tolist() == [0, 1, 3]
    assert scene.georeference.kind == "envi"
    assert scene.georeference.entries["map info"].startswith("UTM, 1.000, 1.000, 620000.0")
    assert scene.georeference.entries["coordinate system string"].endswith('GEOGCS["GCS_WGS_1984"]]')
    assert parse_header(tmp_path / "a.hdr")["description"] == "a test,\n  of two lines"


@pytest.mark.parametrize(
    ("unit", "values", "nanometres"),
    [
        ("Nanometers", "400, 500, 600, 700, 800", [400, 500, 600, 700, 800]),
        ("Unknown", "400, 500, 600, 700, 800", [400, 500, 600, 700, 800]),
        ("Unknown", ".4, .5, .6, .7, .8", [400, 500, 600, 700, 800]),
        ("Index", "1, 2, 3, 4, 5", None),
    ],
)
def test_units_of_wavelengths(unit, values, nanometres, tmp_path):
    write(tmp_path / "a", extra=f"wavelength units = {unit}\nwavelength = {{{values}}}\n")
    found = read_scene(tmp_path / "a.hdr").wavelengths
    if nanometres is None:
        assert found is None
    else:
        np.testing.assert_allclose(found, nanometres)


@pytest.mark.parametrize("name", ["a", "a.dat", "a.raw", "a.bil"])
def test_data_are_found_beside_the_header_and_the_header_beside_the_data(name, tmp_path):
    cube = write(tmp_path / "a")
    (tmp_path / "a.img").rename(tmp_path / name)
    for path in (tmp_path / "a.hdr", tmp_path / name):
        np.testing.assert_array_equal(read_scene(path).data, cube)
    (tmp_path / "a.hdr").rename(tmp_path / f"{name}.hdr")
    np.testing.assert_array_equal(read_scene(tmp_path / name).data, cube)
    np.testing.assert_array_equal(read_scene(tmp_path / f"{name}.hdr").data, cube)


def test_raw_values_that_look_like_another_kind_of_file(tmp_path):
    cube = np.frombuffer(b"PK\x03\x04\x93NUMPY\0", np.uint8).reshape(1, 1, -1)
    write(tmp_path / "a", number=1, cube=cube)
    np.testing.assert_array_equal(read_scene(tmp_path / "a.img").data, cube)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"samples": -4}, "'samples' should be at least 1"),
        ({"lines": 0}, "'lines' should be at least 1"),
        ({"bands": "many"}, "'bands' should be a whole number, got 'many'"),
        ({"bands": None}, "does not say 'bands'"),
        ({"samples": 10**9, "lines": 10**9, "bands": 10**9}, "is cut short or its header is wrong"),
        ({"samples": 10**30}, "below 2\\^40"),
        ({"lines": LINES + 1}, "is cut short or its header is wrong"),
        ({"lines": LINES - 1}, "is longer than its header says"),
        ({"header_offset": -8}, "'header offset' should be at least 0"),
        ({"header_offset": 8}, "is cut short"),
        ({"data_type": 6}, "complex numbers"),
        ({"data_type": 9}, "complex numbers"),
        ({"data_type": 7}, "data type 7 is none of ENVI's"),
        ({"byte_order": 2}, "byte order should be 0"),
        ({"interleave": "bbq"}, "interleave should be bsq, bil or bip, got 'bbq'"),
        ({"file_compression": 1}, "compressed"),
        ({"major_frame_offsets": "{0, 128}"}, "major frame offsets"),
        ({"wavelength": "{1, 2"}, "braces of 'wavelength' are never closed"),
        ({"wavelength": "{1, x, 3, 4, 5}"}, "'wavelength' should be a list of numbers"),
        ({"wavelength": "{100, 200}"}, "2 wavelengths were given for 5 bands"),
        ({"bbl": "{1, 1}"}, "2 bad_bands were given for 5 bands"),
    ],
)
def test_headers_that_lie(changes, sentence, tmp_path):
    write(tmp_path / "a", **changes)
    with pytest.raises(ValueError, match=sentence):
        read_scene(tmp_path / "a.hdr")


def test_a_header_that_is_none_and_a_header_alone(tmp_path):
    (tmp_path / "a.hdr").write_text("samples = 3\n")
    with pytest.raises(ValueError, match="first line should be ENVI"):
        read_scene(tmp_path / "a.hdr")
    write(tmp_path / "b")
    (tmp_path / "b.img").unlink()
    with pytest.raises(ValueError, match=r"no data beside it: b or b\.img is missing"):
        read_scene(tmp_path / "b.hdr")


def test_an_image_is_no_label_map(tmp_path):
    write(tmp_path / "a")
    with pytest.raises(ValueError, match="has 5 bands, a label map has one"):
        read_scene(tmp_path / "a.hdr", tmp_path / "a.hdr")
