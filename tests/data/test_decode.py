"""Files of the official formats, with the bands and values that they have; tifffile and Pillow are the oracles."""

from __future__ import annotations

import csv
import os
import sys

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image, ImageOps

from tcpvit.cli import main
from tcpvit.data import Batches, load_dataset
from tcpvit.data.augment import Augment
from tcpvit.data.decode import MAX_PIXELS, as_colour, read_image, read_layout, read_mask, read_pixels
from tcpvit.data.image_set import ImageSet, measure_statistics
from tcpvit.data.images import resize_pixels
from tcpvit.data.tiff import MAX_BYTES
from tcpvit.inference import load_model

random = np.random.default_rng(0)


def some(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    if dtype.startswith("float"):
        return random.normal(size=shape).astype(dtype)
    return random.integers(0, np.iinfo(dtype).max, shape, dtype=dtype)


SAMPLES = {"planarconfig": "contig", "photometric": "minisblack"}
# How the array is written, and where its bands are in it.
WRITTEN = {
    "12 samples": ((9, 7, 12), SAMPLES, (0, 1, 2)),
    "12 planes": ((12, 9, 7), {"planarconfig": "separate", "photometric": "minisblack"}, (1, 2, 0)),
    "12 pages": ((12, 9, 7), {"photometric": "minisblack"}, (1, 2, 0)),
    "2 samples": ((9, 7, 2), SAMPLES, (0, 1, 2)),
    "4 samples": ((9, 7, 4), SAMPLES, (0, 1, 2)),
    "colour and alpha": ((9, 7, 4), {"photometric": "rgb", "extrasamples": ["unassalpha"]}, (0, 1, 2)),
    "colour times alpha": ((9, 7, 4), {"photometric": "rgb", "extrasamples": ["assocalpha"]}, (0, 1, 2)),
    "colour and infrared": ((9, 7, 4), {"photometric": "rgb", "extrasamples": ["unspecified"]}, (0, 1, 2)),
    "colour": ((9, 7, 3), {"photometric": "rgb"}, (0, 1, 2)),
    "tiles": ((40, 50, 5), SAMPLES | {"tile": (16, 16)}, (0, 1, 2)),
    "compressed": (
        (9, 7, 6),
        {"photometric": "minisblack", "planarconfig": "contig", "compression": "zlib"},
        (0, 1, 2),
    ),
    "big": ((9, 7, 8), {"photometric": "minisblack", "planarconfig": "contig", "bigtiff": True}, (0, 1, 2)),
    "other bytes first": (
        (9, 7, 8),
        {"photometric": "minisblack", "planarconfig": "contig", "byteorder": ">"},
        (0, 1, 2),
    ),
}


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
@pytest.mark.parametrize("how", WRITTEN)
def test_tiffs_have_the_bands_and_values_they_were_written_with(tmp_path, how, dtype):
    shape, options, order = WRITTEN[how]
    written = some(shape, dtype)
    tifffile.imwrite(tmp_path / "x.tif", written, **options)
    pixels = read_pixels(str(tmp_path / "x.tif"))
    assert pixels.dtype == dtype
    np.testing.assert_array_equal(pixels, written.transpose(order))
    layout = read_layout(str(tmp_path / "x.tif"))
    assert (layout.height, layout.width, layout.bands, layout.dtype) == (*pixels.shape, dtype)


@pytest.mark.parametrize(("dtype", "read_as"), [("uint16", "uint16"), ("int16", "float32"), ("float32", "float32")])
def test_grey_beyond_a_byte_is_one_band(tmp_path, dtype, read_as):
    written = some((9, 7), dtype)
    tifffile.imwrite(tmp_path / "x.tif", written)
    pixels = read_pixels(str(tmp_path / "x.tif"))
    assert (pixels.shape, pixels.dtype) == ((9, 7, 1), read_as)
    np.testing.assert_array_equal(pixels[:, :, 0], written)
    if dtype == "uint16":
        Image.fromarray(written).save(tmp_path / "x.png")
        Image.fromarray(written).save(tmp_path / "x.pgm")
        for name in ("x.png", "x.pgm"):
            np.testing.assert_array_equal(read_pixels(str(tmp_path / name)), pixels)
            assert read_layout(str(tmp_path / name)) == (7, 9, 1, "uint16")


@pytest.mark.parametrize("name", ["x.png", "x.tif", "x.bmp", "x.gif"])
def test_grey_of_a_byte_is_colour(tmp_path, name):
    grey = some((9, 7), "uint8")
    Image.fromarray(grey).save(tmp_path / name)
    np.testing.assert_array_equal(read_pixels(str(tmp_path / name)), np.stack([grey] * 3, -1))
    assert read_layout(str(tmp_path / name)) == (7, 9, 3, "uint8")


def test_transparency_of_a_png_is_dropped(tmp_path):
    written = some((9, 7, 4), "uint8")
    Image.fromarray(written).save(tmp_path / "x.png")
    np.testing.assert_array_equal(read_pixels(str(tmp_path / "x.png")), written[..., :3])


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("bands", [3, 4, 6])
def test_orientations_are_those_of_pillow(tmp_path, orientation, bands):
    written = some((9, 7, bands), "uint8")
    options = {"photometric": "rgb"} if bands < 6 else {"photometric": "minisblack", "planarconfig": "contig"}
    path = str(tmp_path / "x.tif")
    tifffile.imwrite(path, written, extratags=[(274, "H", 1, orientation, True)], **options)
    photo = Image.fromarray(written[..., :3])
    photo.getexif()[274] = orientation
    theirs = np.asarray(ImageOps.exif_transpose(photo))
    pixels = read_pixels(path)
    np.testing.assert_array_equal(pixels[..., :3], theirs)
    assert read_layout(path)[:3] == (pixels.shape[1], pixels.shape[0], bands)


def write_deep_png(path, colour_type: int) -> None:
    """A PNG of 16 bits a sample, by its specification: Pillow writes none in colour."""
    import struct
    import zlib

    samples = {2: 3, 4: 2, 6: 4}[colour_type]
    rows = b"".join(b"\0" + random.bytes(2 * 7 * samples) for _ in range(9))
    chunks = {
        b"IHDR": struct.pack(">IIBBBBB", 7, 9, 16, colour_type, 0, 0, 0),
        b"IDAT": zlib.compress(rows),
        b"IEND": b"",
    }
    parts = [struct.pack(">I", len(c)) + n + c + struct.pack(">I", zlib.crc32(n + c)) for n, c in chunks.items()]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))


@pytest.mark.parametrize("colour_type", [2, 4, 6])
def test_deep_colour_that_pillow_would_cut_is_refused(tmp_path, colour_type):
    write_deep_png(tmp_path / "x.png", colour_type)
    with pytest.raises(ValueError, match=r"colour of 16 bits in a PNG file; save it as TIFF, or read 8 of the bits"):
        read_pixels(str(tmp_path / "x.png"))
    assert read_pixels(str(tmp_path / "x.png"), "rgb").shape == (9, 7, 3)


def test_tiffs_that_are_no_one_image_are_refused(tmp_path):
    path = str(tmp_path / "x.tif")
    tifffile.imwrite(path, some((5, 9, 7, 3), "uint8"), photometric="rgb")  # pages in colour
    with pytest.raises(ValueError, match=r"bands along one of them are read, so save one image in each file"):
        read_pixels(path)
    with tifffile.TiffWriter(path) as writer:
        writer.write(some((9, 7), "uint8"))
        writer.write(some((4, 4), "uint8"))
    with pytest.raises(ValueError, match=r"2 images of different kinds \(9×7, 4×4\)"):
        read_pixels(path)
    tifffile.imwrite(path, some((9, 7, 5), "uint32"), photometric="minisblack", planarconfig="contig")
    with pytest.raises(ValueError, match="values of type uint32; save it as uint8, uint16 or float32"):
        read_pixels(path)
    tifffile.imwrite(path, np.full((9, 7, 5), np.nan, np.float32), photometric="minisblack", planarconfig="contig")
    with pytest.raises(ValueError, match="it holds NaN or infinity"):
        read_pixels(path)


def test_without_tifffile(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tifffile", None)
    four = some((9, 7, 4), "uint8")
    Image.fromarray(four).save(tmp_path / "x.tif")
    np.testing.assert_array_equal(read_pixels(str(tmp_path / "x.tif")), four)
    Image.fromarray(four[..., 0]).save(tmp_path / "x.tif", save_all=True, append_images=[Image.fromarray(four[..., 1])])
    with pytest.raises(ImportError, match=r"pip install 'tcpvit\[tiff\]'"):
        read_pixels(str(tmp_path / "x.tif"))


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n"


@pytest.mark.parametrize("read", [read_pixels, read_mask, read_layout])
def test_other_formats_are_not_opened_whatever_they_are_called(tmp_path, monkeypatch, read):
    started = []
    monkeypatch.setattr("subprocess.check_call", lambda *args, **_: started.append(args))
    monkeypatch.setattr("subprocess.Popen", lambda *args, **_: started.append(args))
    (tmp_path / "cat.png").write_bytes(EPS)
    with pytest.raises(OSError, match=r"none of BMP, GIF, JPEG, PNG, PPM, TIFF"):
        read(str(tmp_path / "cat.png"))
    assert not started


@pytest.mark.parametrize("read", [read_pixels, read_mask, read_layout])
def test_too_many_pixels_are_refused(tmp_path, read):
    side = int(MAX_PIXELS**0.5) + 1
    (tmp_path / "x.pgm").write_bytes(b"P5 %d %d 255\n" % (side, side))
    with pytest.raises(ValueError, match=r"more than [\d,]+ pixels; cut it into tiles"):
        read(str(tmp_path / "x.pgm"))


def test_too_many_bands_are_refused(tmp_path):
    path = tmp_path / "x.tif"
    tifffile.imwrite(path, shape=(5000, 5000, 100), dtype="uint8", photometric="minisblack", planarconfig="contig")
    os.truncate(path, 4096)  # its head tells
    with pytest.raises(ValueError, match=r"2\.5 GB of pixels, where 2\.1 GB are read; cut it into tiles"):
        read_pixels(str(path))
    assert MAX_BYTES == 2**31


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
def test_bands_are_resized_as_pillow_resizes_each(dtype):
    pixels = some((40, 30, 5), dtype)
    resized = resize_pixels(pixels, (16, 12), (3.0, 4.0, 27.0, 36.0))
    assert (resized.shape, resized.dtype) == ((12, 16, 5), dtype)
    for k in range(5):
        plane = Image.fromarray(pixels[..., k].astype(np.float32))
        theirs = np.asarray(plane.resize((16, 12), Image.Resampling.BILINEAR, box=(3.0, 4.0, 27.0, 36.0)))
        np.testing.assert_allclose(resized[..., k], theirs, atol=1 if dtype == "uint8" else 0.51, rtol=0)


def test_colour_to_look_at():
    bytes_ = some((9, 7, 5), "uint8")
    np.testing.assert_array_equal(as_colour(bytes_), bytes_[..., :3])
    ramp = np.linspace(-3, 5, 63, dtype=np.float32).reshape(9, 7, 1)
    shown = as_colour(ramp)
    assert (shown.min(), shown.max(), shown.shape) == (0, 255, (9, 7, 3))
    assert (np.diff(shown[..., 0].ravel().astype(int)) >= 0).all()


def write_scans(folder, bands: int = 4, dtype: str = "uint16", count: int = 12) -> None:
    for label, name in enumerate(("field", "wood")):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            pixels = some((20, 16, bands), "float32")
            pixels[(slice(10), slice(None)) if label else (slice(None), slice(8))] += 4  # upper or left half
            pixels = pixels if dtype == "float32" else (pixels.clip(-8, 8) * 1000 + 9000).astype(dtype)
            options = {"planarconfig": "contig"} if bands > 1 else {}
            tifffile.imwrite(folder / name / f"{i}.tif", pixels.squeeze(), photometric="minisblack", **options)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("bands", "dtype"), [(4, "uint16"), (12, "float32"), (1, "uint16")])
def test_a_set_keeps_bands_and_type_and_is_normalised(tmp_path, bands, dtype, stream):
    write_scans(tmp_path, bands, dtype)
    train = load_dataset(f"folder:{tmp_path}", image_size=16, stream=stream).train
    assert (train.image_shape, str(train.dtype)) == ((bands, 16, 16), f"torch.{dtype}")
    images = torch.cat([images for images, _ in Batches(train, 5, workers=0)])
    torch.testing.assert_close(images.mean((0, 2, 3)), torch.zeros(bands), atol=1e-3, rtol=0)
    torch.testing.assert_close(images.std((0, 2, 3), correction=0), torch.ones(bands), atol=1e-3, rtol=0)
    augment = Augment(shift=2, flip=0.5, zoom=0.5, colour=0.2, mixup=0.2)
    for images, _ in Batches(train, 6, augment=augment, shuffle=True, workers=2 * stream):
        assert images.isfinite().all()
        assert images.abs().max() < 20


def test_statistics_of_a_constant_band():
    images = torch.tensor([[[[7.0, 7.0]], [[1.0, 3.0]]]])
    mean, std = measure_statistics([images, images], 2.0)
    assert mean == (3.5, 1.0)
    assert std == (1.0, 0.5)


def test_resized_and_zoomed_sets_keep_their_type():
    images = torch.randint(0, 65535, (4, 5, 8, 8)).to(torch.uint16)
    data = ImageSet(images, torch.zeros(4).long(), classes=("a",), source="made", mean=(0.0,) * 5, std=(1.0,) * 5)
    assert data.resized(4).images.dtype == torch.uint16
    whole = torch.tensor([[1.0, 1.0, 0.0, 0.0]]).repeat(4, 1)
    torch.testing.assert_close(data.fetch(torch.arange(4), whole).images.int(), images.int(), atol=1, rtol=0)


def test_train_eval_and_predict_on_tiffs_of_four_bands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_scans(tmp_path / "scans")
    words = ["data.image_size=16", "model.options.img_size=16", "schedule.epochs=1", "device=cpu", "data.batch_size=8"]
    changes = [part for word in words for part in ("--set", word)]
    assert main(["train", "demo", "--data", "folder:scans", "--name", "four", "--quiet", *changes]) == 0
    assert main(["eval", "runs/four", "--json"]) == 0
    capsys.readouterr()
    assert main(["predict", "runs/four", "scans", "--top", "1", "--sheet", "sheet.png", "--images", "labelled"]) == 0
    loaded = load_model("runs/four")
    mean, std = (torch.tensor(loaded.preprocessing[key]).view(4, 1, 1) for key in ("mean", "std"))
    lines = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert len(lines) == 24
    for line in lines:
        middle = torch.from_numpy(tifffile.imread(line["file"])[2:18].astype(np.float32)).permute(2, 0, 1)
        with torch.no_grad():
            chances = loaded.model(((middle / 65535 - mean) / std)[None]).softmax(1)[0]
        assert line["label_1"] == ("field", "wood")[int(chances.argmax())]
        assert float(line["probability_1"]) == pytest.approx(float(chances.max()), abs=1e-4)
    Image.new("RGB", (16, 16)).save("photo.png")
    assert main(["predict", "runs/four", "photo.png"]) == 1
    assert "3 bands of uint8, where 4 bands of uint16 are expected" in capsys.readouterr().err
    assert main(["data", "show", "folder:scans"]) == 0
    assert read_image("scans.png").size[0] > 100
