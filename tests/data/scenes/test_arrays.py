"""NumPy files, honest and hostile."""

from __future__ import annotations

import io
import zipfile

import numpy as np
import pytest

from tcpvit.data.scenes import raster, read_scene

CUBE = np.random.RandomState(0).rand(5, 4, 7).astype(np.float32)
LABELS = np.random.RandomState(1).randint(0, 4, (5, 4))


@pytest.mark.parametrize("cube", [CUBE, np.asfortranarray(CUBE), CUBE.astype(">f8"), CUBE > 0.5])
def test_npy_is_mapped(cube, tmp_path):
    np.save(tmp_path / "a.npy", cube)
    scene = read_scene(tmp_path / "a.npy")
    assert isinstance(scene.data, np.memmap)
    np.testing.assert_array_equal(scene.data, cube)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_by_shape(save, tmp_path):
    save(tmp_path / "a.npz", cube=CUBE, truth=LABELS, other=np.zeros((3, 3)))
    scene = read_scene(tmp_path / "a.npz", tmp_path / "a.npz")
    np.testing.assert_array_equal(scene.data, CUBE)
    np.testing.assert_array_equal(scene.labels, LABELS)


def test_a_key_for_a_file_of_one_array_is_an_error(tmp_path):
    np.save(tmp_path / "a.npy", CUBE)
    with pytest.raises(ValueError, match="holds one array"):
        read_scene(tmp_path / "a.npy", key="cube")


def test_objects_and_complex_numbers_are_refused(tmp_path):
    np.save(tmp_path / "objects.npy", np.full((2, 2, 2), None), allow_pickle=True)
    with pytest.raises(ValueError, match="Python objects"):
        read_scene(tmp_path / "objects.npy")
    np.savez(tmp_path / "objects.npz", a=np.full((2, 2, 2), None))
    with pytest.raises(ValueError, match="no array that is an image"):
        read_scene(tmp_path / "objects.npz")
    np.save(tmp_path / "complex.npy", CUBE + 1j)
    np.savez(tmp_path / "complex.npz", a=CUBE + 1j)
    for name in ("complex.npy", "complex.npz"):
        with pytest.raises(ValueError, match="complex numbers"):
            read_scene(tmp_path / name)


def npy(shape, content=b""):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": shape})
    return file.getvalue() + content


@pytest.mark.parametrize("shape", [(10**6, 10**6, 100), (10**30, 2, 2), (3, 3, 3)])
def test_npy_headers_that_lie(shape, tmp_path):
    (tmp_path / "a.npy").write_bytes(npy(shape, bytes(80)))
    with pytest.raises(ValueError, match="cut short"):
        read_scene(tmp_path / "a.npy")


def test_impossible_npy_headers(tmp_path):
    (tmp_path / "a.npy").write_bytes(npy((-1, 2, 5), bytes(80)))
    with pytest.raises(ValueError, match="impossible shape"):
        read_scene(tmp_path / "a.npy")
    (tmp_path / "a.npy").write_bytes(npy((1, 2, 5))[:20])
    with pytest.raises(ValueError, match="not a NumPy file"):
        read_scene(tmp_path / "a.npy")


def test_npz_members_that_lie_or_grow(tmp_path, monkeypatch):
    monkeypatch.setattr(raster, "HARMLESS", 1 << 20)
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("cube.npy", npy((10**5, 10**5, 100), bytes(80)))
    with pytest.raises(ValueError, match="announces 8,000,000,000,000 bytes and has"):
        read_scene(tmp_path / "a.npz")
    with zipfile.ZipFile(tmp_path / "b.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("cube.npy", npy((2, 512, 1024), bytes(1 << 23)))
    with pytest.raises(ValueError, match="made to fill the memory"):
        read_scene(tmp_path / "b.npz")


@pytest.mark.parametrize("share", [0.2, 0.5, 0.95])
def test_npz_cut_short(share, tmp_path):
    np.savez(tmp_path / "a.npz", cube=CUBE)
    content = (tmp_path / "a.npz").read_bytes()
    (tmp_path / "a.npz").write_bytes(content[: int(share * len(content))])
    with pytest.raises(ValueError, match="damaged or cut short"):
        read_scene(tmp_path / "a.npz")


def test_a_damaged_npz_member(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", cube=CUBE)
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[len(content) // 2] ^= 0xFF
    (tmp_path / "a.npz").write_bytes(bytes(content))
    with pytest.raises(ValueError, match=r"damaged|not a NumPy file"):
        read_scene(tmp_path / "a.npz")


@pytest.mark.parametrize("content", [b"", b"\0", b"hello, this is no scene", bytes(600)])
def test_other_files_are_refused_with_the_list_of_kinds(content, tmp_path):
    (tmp_path / "a.bin").write_bytes(content)
    with pytest.raises(ValueError, match="is not a scene that can be read: expected MATLAB"):
        read_scene(tmp_path / "a.bin")


def test_a_missing_file_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_scene(tmp_path / "nothing.mat")
