"""MATLAB files of both kinds, written here as MATLAB writes them, and files that lie."""

from __future__ import annotations

import struct
import tracemalloc
import zlib

import h5py
import numpy as np
import pytest
from scipy.io import loadmat, savemat

from tcpvit.data.scenes import raster, read_scene

CUBE = np.random.RandomState(0).randint(0, 9000, (5, 4, 7)).astype(np.uint16)
LABELS = np.random.RandomState(1).randint(0, 4, (5, 4))


def write_v73(path, arrays, **options):
    """As MATLAB does: 512 bytes of its own, axes reversed, a class on each array."""
    with h5py.File(path, "w", userblock_size=512) as file:
        for name, array in arrays.items():
            dataset = file.create_dataset(name, data=array.T, **options)
            dataset.attrs["MATLAB_class"] = np.bytes_("double")
    with open(path, "r+b") as file:
        file.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\x00\x02IM")


@pytest.fixture(params=["v5", "v5 compressed", "v7.3", "v7.3 compressed"])
def write(request):
    """A function that writes arrays to a MATLAB file of each kind."""
    if request.param.startswith("v5"):
        return lambda path, arrays: savemat(path, arrays, do_compression="compressed" in request.param)
    chunks = {"compression": "gzip", "shuffle": True} if "compressed" in request.param else {}
    return lambda path, arrays: write_v73(path, arrays, **chunks)


@pytest.mark.parametrize("dtype", ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8"])
def test_the_array_is_found_by_its_shape(write, dtype, tmp_path):
    cube = CUBE.astype(dtype)
    write(tmp_path / "a.mat", {"about": np.ones((1, 3)), "cube": cube, "truth": LABELS})
    scene = read_scene(tmp_path / "a.mat", tmp_path / "a.mat")
    assert scene.data.dtype.newbyteorder("=") == cube.dtype
    np.testing.assert_array_equal(scene.data, cube)
    np.testing.assert_array_equal(scene.labels, LABELS)


def test_two_candidates_are_listed_and_the_key_decides(write, tmp_path):
    path = tmp_path / "a.mat"
    write(path, {"first": CUBE, "second": CUBE + 1, "truth": LABELS})
    with pytest.raises(ValueError, match=r"2 arrays that could be .* first 5×4×7 uint16, second 5×4×7 .* key="):
        read_scene(path)
    np.testing.assert_array_equal(read_scene(path, key="second").data, CUBE + 1)
    with pytest.raises(ValueError, match="has no array 'secnd'; did you mean 'second'"):
        read_scene(path, key="secnd")
    with pytest.raises(ValueError, match="'truth' is not an image"):
        read_scene(path, key="truth")


def test_of_two_label_maps_the_one_of_the_scenes_size_is_taken(write, tmp_path):
    write(tmp_path / "a.mat", {"cube": CUBE, "other": np.ones((9, 9)), "truth": LABELS})
    np.testing.assert_array_equal(read_scene(tmp_path / "a.mat", tmp_path / "a.mat").labels, LABELS)
    np.testing.assert_array_equal(read_scene(tmp_path / "a.mat", labels_key="truth").labels, LABELS)


def test_no_candidate_at_all(write, tmp_path):
    write(tmp_path / "a.mat", {"truth": LABELS})
    with pytest.raises(ValueError, match="no array that is an image of rows × columns × bands: it holds truth 5×4"):
        read_scene(tmp_path / "a.mat")


def test_complex_and_text_are_refused(tmp_path):
    savemat(tmp_path / "complex.mat", {"cube": CUBE + 1j})
    write_v73(tmp_path / "complex73.mat", {"cube": CUBE.astype([("real", "f8"), ("imag", "f8")])})
    for name in ("complex.mat", "complex73.mat"):
        with pytest.raises(ValueError, match="complex numbers"):
            read_scene(tmp_path / name)
    cells = np.empty((2, 2, 2), object)
    cells[:] = "text"
    savemat(tmp_path / "cells.mat", {"cube": cells})
    with pytest.raises(ValueError, match="no array that is an image"):
        read_scene(tmp_path / "cells.mat")


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9, 0.99])
def test_a_file_cut_short_is_one_sentence(write, share, tmp_path):
    path = tmp_path / "a.mat"
    write(path, {"cube": np.random.RandomState(0).rand(20, 20, 20)})
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ValueError, match=r"cut short|damaged|truncated"):
        read_scene(path)


def element(kind, content, order="<"):
    return struct.pack(f"{order}II", kind, len(content)) + content + b"\0" * (-len(content) % 8)


def matlab5(shape, values, *, kind=2, order="<"):
    """A variable of version 5 with a uint8 array, written by hand."""
    flags, sides = struct.pack(f"{order}II", 9, 0), struct.pack(f"{order}{len(shape)}i", *shape)
    parts = [
        element(6, flags, order),
        element(5, sides, order),
        element(1, b"cube", order),
        element(kind, values, order),
    ]
    return element(14, b"".join(parts), order)


def head(order="<"):
    return b"MATLAB 5.0 MAT-file".ljust(124) + (b"\x00\x01IM" if order == "<" else b"\x01\x00MI")


@pytest.mark.parametrize("order", ["<", ">"])
def test_hand_written_files_are_read_as_scipy_reads_them(order, tmp_path):
    (tmp_path / "a.mat").write_bytes(head(order) + matlab5((2, 3, 4), bytes(range(24)), order=order))
    expected = np.arange(24).reshape((2, 3, 4), order="F")
    np.testing.assert_array_equal(loadmat(tmp_path / "a.mat")["cube"], expected)
    scene = read_scene(tmp_path / "a.mat")
    np.testing.assert_array_equal(scene.data, expected)
    assert isinstance(scene.data, np.memmap)


@pytest.mark.parametrize(
    ("variable", "sentence"),
    [
        (matlab5((2000, 3000, 4000), bytes(24)), "24,000,000,000 values of 1 bytes in 24"),
        (matlab5((2, 3, -4), bytes(24)), r"has the shape \(2, 3, -4\)"),
        (matlab5((2, 3, 4), bytes(24), kind=200), "unknown type 200"),  # SciPy 1.17 crashes on it
        (matlab5((2,) * 2000, bytes(24)), "a name or a shape of 8,000 bytes"),
    ],
)
def test_version_5_tags_that_lie(variable, sentence, tmp_path):
    (tmp_path / "a.mat").write_bytes(head() + variable)
    with pytest.raises(ValueError, match=sentence):
        read_scene(tmp_path / "a.mat")


@pytest.mark.parametrize("shape", [(10, 10, 10), (2, 2048, 2048)])
def test_a_compressed_variable_that_grows_without_bound_is_not_inflated(shape, tmp_path, monkeypatch):
    monkeypatch.setattr(raster, "HARMLESS", 1 << 20)
    bomb = zlib.compress(matlab5(shape, bytes(1 << 23)))
    (tmp_path / "a.mat").write_bytes(head() + struct.pack("<II", 15, len(bomb)) + bomb)
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"made to fill the memory|1,000 values of 1 bytes in 8,388,608"):
        read_scene(tmp_path / "a.mat")
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 1 << 20


def test_bytes_after_the_header_that_are_no_variable(tmp_path):
    (tmp_path / "a.mat").write_bytes(head() + b"\xff" * 64)
    with pytest.raises(ValueError, match="no variable at byte 128"):
        read_scene(tmp_path / "a.mat")


@pytest.mark.parametrize(
    "options",
    [
        {"chunks": (1, 1, 1)},  # nothing is stored: all values are the fill value
        {"chunks": (100, 100, 100), "compression": "gzip"},
        {},
    ],
)
def test_a_v73_array_without_its_values_is_a_bomb(options, tmp_path):
    with h5py.File(tmp_path / "a.mat", "w") as file:
        file.create_dataset("cube", (100_000, 10_000, 1_000), "f8", **options)
    with pytest.raises(ValueError, match=r"claims 8,000,000,000,000 bytes but is stored in 0"):
        read_scene(tmp_path / "a.mat")


def test_a_v73_chunk_far_larger_than_the_file_is_refused(tmp_path):
    with h5py.File(tmp_path / "a.mat", "w") as file:
        shape, chunk = (2, 2, 2), (1000, 1000, 500)
        file.create_dataset("cube", shape, "f8", maxshape=(None,) * 3, chunks=chunk)
    with pytest.raises(ValueError, match="one of its chunks claims 4,000,000,000 bytes"):
        read_scene(tmp_path / "a.mat")


def test_values_in_other_files_are_not_followed(tmp_path):
    (tmp_path / "secret").write_bytes(bytes(range(24)))
    with h5py.File(tmp_path / "a.mat", "w") as file:
        file.create_dataset("cube", (2, 3, 4), "u1", external=[(str(tmp_path / "secret"), 0, 24)])
    with pytest.raises(ValueError, match="in another file, which is not followed"):
        read_scene(tmp_path / "a.mat")
    with h5py.File(tmp_path / "b.mat", "w") as file:
        file["cube"] = h5py.ExternalLink(str(tmp_path / "a.mat"), "cube")
    with pytest.raises(ValueError, match="it holds nothing"):
        read_scene(tmp_path / "b.mat")


def test_plain_hdf5_keeps_its_axes(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["cube"] = CUBE
    np.testing.assert_array_equal(read_scene(tmp_path / "a.h5").data, CUBE)


def test_uncompressed_v73_is_mapped_and_not_read(tmp_path):
    write_v73(tmp_path / "a.mat", {"cube": CUBE})
    assert isinstance(read_scene(tmp_path / "a.mat").data, np.memmap)
