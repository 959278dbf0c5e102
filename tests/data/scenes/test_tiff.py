"""TIFF files in every arrangement of bands, GeoTIFF tags, folders of bands, and damaged files."""

from __future__ import annotations

import importlib.util
import struct

import numpy as np
import pytest
import tifffile
from PIL import Image

from tcpvit.data.decode import read_pixels
from tcpvit.data.scenes import read_scene
from tcpvit.data.volumes.read import read_volume

CUBE = np.random.RandomState(0).randint(0, 9000, (6, 5, 4)).astype(np.uint16)
SCALE, TIEPOINT = (33550, 12, 3, (20.0, 20.0, 0.0)), (33922, 12, 6, (0.0, 0.0, 0.0, 6e5, 4.1e6, 0.0))
KEYS = (34735, 3, 8, (1, 1, 0, 1, 3072, 0, 1, 32616))
ASCII = (34737, 2, 0, "WGS 84 / UTM zone 16N|")
GEO = [(*tag, True) for tag in (SCALE, TIEPOINT, KEYS, ASCII)]


def save(path, cube, **options):
    tifffile.imwrite(path, cube, **({"photometric": "minisblack", "metadata": None} | options))


@pytest.mark.parametrize("compression", [None, "zlib"])
@pytest.mark.parametrize("byteorder", ["<", ">"])
@pytest.mark.parametrize("arrangement", ["samples", "planes", "pages", "tiles"])
def test_bands_as_samples_planes_pages_or_tiles(arrangement, byteorder, compression, tmp_path):
    path, options = tmp_path / "a.tif", {"byteorder": byteorder, "compression": compression}
    if arrangement == "samples":
        save(path, CUBE, planarconfig="contig", **options)
    elif arrangement == "planes":
        save(path, CUBE.transpose(2, 0, 1), planarconfig="separate", **options)
    elif arrangement == "tiles":
        save(path, CUBE, planarconfig="contig", tile=(16, 16), **options)
    else:
        save(path, CUBE.transpose(2, 0, 1), **options)
    np.testing.assert_array_equal(read_scene(path).data, CUBE)


@pytest.mark.parametrize("dtype", ["u1", "i2", "u2", "i4", "f4", "f8"])
def test_types(dtype, tmp_path):
    save(tmp_path / "a.tif", CUBE.astype(dtype), planarconfig="contig")
    scene = read_scene(tmp_path / "a.tif")
    assert scene.data.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(scene.data, CUBE.astype(dtype))


def test_an_uncompressed_image_is_mapped(tmp_path):
    save(tmp_path / "a.tif", CUBE, planarconfig="contig")
    assert isinstance(read_scene(tmp_path / "a.tif").data, np.memmap)


def test_label_maps_have_one_band(tmp_path):
    save(tmp_path / "cube.tif", CUBE, planarconfig="contig", extratags=GEO)
    labels = np.random.RandomState(0).randint(0, 3, (6, 5)).astype(np.uint8)
    save(tmp_path / "labels.tif", labels)
    scene = read_scene(tmp_path / "cube.tif", tmp_path / "labels.tif")
    np.testing.assert_array_equal(scene.labels, labels)
    with pytest.raises(ValueError, match="has 4 bands, a label map has one"):
        read_scene(tmp_path / "cube.tif", tmp_path / "cube.tif")


def test_geotiff_tags_are_kept(tmp_path):
    save(tmp_path / "a.tif", CUBE, planarconfig="contig", extratags=GEO)
    place = read_scene(tmp_path / "a.tif").georeference
    assert place.kind == "geotiff"
    assert place.entries[33550] == (12, (20.0, 20.0, 0.0))
    assert place.entries[33922][1][3:5] == (6e5, 4.1e6)
    assert place.entries[34735][1][-1] == 32616
    assert place.entries[34737][1].startswith("WGS 84 / UTM zone 16N")


def test_a_folder_of_bands_in_natural_order(tmp_path):
    names = ["B1", "B2", "B8", "B8A", "B10"]  # a plain sort would put B10 second
    bands = {name: np.full((3, 4), number, np.uint16) for number, name in enumerate(names)}
    for name, band in bands.items():
        save(tmp_path / f"S2_{name}.tif", band)
    save(
        tmp_path / "T_rest.TIFF",
        np.dstack([bands["B2"] + 50, bands["B2"] + 60, bands["B2"] + 70]),
        planarconfig="contig",
    )
    (tmp_path / "readme.txt").write_text("not a band")
    assert read_scene(tmp_path).data[0, 0].tolist() == [0, 1, 2, 3, 4, 51, 61, 71]


def test_bands_of_two_sizes_or_places_are_refused(tmp_path):
    save(tmp_path / "b1.tif", CUBE[:, :, 0])
    save(tmp_path / "b2.tif", CUBE[:4, :, 0])
    with pytest.raises(ValueError, match=r"b2.tif has 4×5 pixels and b1.tif 6×5; resample"):
        read_scene(tmp_path)
    save(tmp_path / "b2.tif", CUBE[:, :, 0], extratags=GEO)
    with pytest.raises(ValueError, match="different georeferences"):
        read_scene(tmp_path)


@pytest.mark.parametrize(
    ("rows", "dtype", "compression", "found"),
    [
        (4, "uint16", None, "4×6×5 uint16, 3×4×5 uint16"),
        (6, "uint8", None, "4×6×5 uint16, 3×6×5 uint8"),
        (6, "uint16", "zlib", "4×6×5 uint16, 3×6×5 uint16"),
    ],
)
def test_a_file_of_several_images_is_refused(rows, dtype, compression, found, tmp_path):
    path = tmp_path / "a.tif"
    with tifffile.TiffWriter(path) as file:
        for page in CUBE.transpose(2, 0, 1):
            file.write(page, metadata=None)
        for page in np.zeros((3, rows, 5), dtype):
            file.write(page, compression=compression, metadata=None)
    for read in (read_scene, read_volume):
        with pytest.raises(ValueError, match=rf"a.tif holds 2 images .*\({found}\).* a file of its own"):
            read(path)


@pytest.mark.parametrize(("dtype", "compression"), [("uint8", None), ("uint16", "zlib")])
def test_a_page_that_differs_in_the_middle_of_a_stack_is_refused(dtype, compression, tmp_path):
    path, pages = tmp_path / "a.tif", np.random.RandomState(1).randint(0, 255, (10, 16, 16)).astype(np.uint16)
    for other in (None, 3):
        with tifffile.TiffWriter(path) as file:
            for number, page in enumerate(pages):
                options = {"compression": compression} if number == other else {}
                page = page.astype(dtype) if number == other else page
                file.write(page, metadata=None, contiguous=False, **options)
        if other is None:
            np.testing.assert_array_equal(read_scene(path).data, pages.transpose(1, 2, 0))
    for read in (read_scene, read_volume, lambda path: read_pixels(str(path), "all")):
        with pytest.raises(ValueError, match=rf"page 4 \(16×16 {dtype}\) differs from the first \(16×16 uint16\)"):
            read(path)


@pytest.mark.parametrize("kind", ["overviews", "levels", "preview first", "mask"])
def test_overviews_previews_and_masks_belong_to_the_image(kind, tmp_path):
    path = tmp_path / "a.tif"
    bands = {"photometric": "minisblack", "planarconfig": "contig", "metadata": None}
    small = CUBE[::2, ::2]
    with tifffile.TiffWriter(path) as file:
        if kind == "preview first":
            file.write(small[:, :, 0], subfiletype=1, metadata=None)
        file.write(CUBE, subifds=1 if kind == "levels" else None, **bands)
        if kind in ("overviews", "levels"):
            file.write(small, subfiletype=1, **bands)
        if kind == "mask":
            file.write(np.ones(CUBE.shape[:2], bool), photometric="mask", subfiletype=4, metadata=None)
    np.testing.assert_array_equal(read_scene(path).data, CUBE)


def test_an_empty_folder(tmp_path):
    with pytest.raises(ValueError, match="holds no TIFF files"):
        read_scene(tmp_path)


def test_complex_values_are_refused(tmp_path):
    save(tmp_path / "a.tif", CUBE.astype(np.complex64), planarconfig="contig")
    with pytest.raises(ValueError, match="complex numbers"):
        read_scene(tmp_path / "a.tif")


@pytest.mark.parametrize("compression", [None, "zlib"])
@pytest.mark.parametrize("share", [0.05, 0.5, 0.95])
def test_a_file_cut_short(share, compression, tmp_path):
    path = tmp_path / "a.tif"
    save(path, np.random.RandomState(0).rand(40, 40, 4), planarconfig="contig", compression=compression)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ValueError, match=r"cut short|damaged|could not be read"):
        read_scene(path)


@pytest.mark.parametrize("compression", [None, "zlib"])
def test_a_header_that_lies_about_its_size(compression, tmp_path):
    path = tmp_path / "a.tif"
    save(path, np.zeros((40, 40, 4), np.uint16), planarconfig="contig", compression=compression)
    with tifffile.TiffFile(path) as file:
        places = [file.pages[0].tags[name].valueoffset for name in ("ImageWidth", "ImageLength")]
    content = bytearray(path.read_bytes())
    for place in places:
        content[place : place + 4] = struct.pack("<I", 60_000)
    path.write_bytes(bytes(content))
    with pytest.raises(ValueError, match=r"damaged|cut short|made to fill the memory"):
        read_scene(path)


@pytest.mark.skipif(importlib.util.find_spec("imagecodecs") is not None, reason="imagecodecs reads these files")
def test_a_compression_that_needs_another_package_names_it(tmp_path):
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "a.tif", compression="tiff_lzw")
    with pytest.raises(ValueError, match="pip install imagecodecs"):
        read_scene(tmp_path / "a.tif")
