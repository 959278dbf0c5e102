"""Windows against np.pad, the whole scene in tiles, and memory that stays flat."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tcpvit.data.scenes import Scene, cut_windows, scene_windows
from tcpvit.data.scenes.windows import reflect

RANDOM = np.random.RandomState(0)
CUBE = RANDOM.rand(11, 13, 6).astype(np.float32)
SCENE = Scene(CUBE, bad_bands=[False, True, False, False, False, True])


def padded_window(cube, row, column, window):
    """The window of one pixel from a padded copy of the whole cube, (B, w, w)."""
    radius = window // 2
    padded = np.pad(cube, ((radius, radius), (radius, radius), (0, 0)), mode="reflect")
    return padded[row : row + window, column : column + window].transpose(2, 0, 1)


@given(st.integers(1, 9), st.integers(-40, 40))
def test_reflection_is_that_of_numpy(size, index):
    wide = np.pad(np.arange(size), 40, mode="reflect")
    assert reflect(np.array([index]), size)[0] == wide[40 + min(index, size + 39)]


@pytest.mark.parametrize("window", [1, 3, 5, 9, 11])
def test_windows_are_those_of_a_padded_copy(window):
    pixels = np.array([(0, 0), (10, 12), (0, 12), (5, 6), (10, 3)])
    found = cut_windows(SCENE, pixels, window)
    expected = np.stack([padded_window(CUBE, row, column, window) for row, column in pixels])
    np.testing.assert_array_equal(found.numpy(), expected[:, [0, 2, 3, 4]])  # the good bands


def test_a_window_wider_than_the_scene():
    small = Scene(CUBE[:2, :1])
    found = cut_windows(small, np.array([(0, 0)]), 7)
    np.testing.assert_array_equal(found[0].numpy(), padded_window(CUBE[:2, :1], 0, 0, 7))


@pytest.mark.parametrize(("rows", "columns", "batch"), [(1, 1, 1), (4, 5, 7), (16, 256, 1000), (11, 13, 143)])
def test_the_whole_scene_in_tiles_is_every_window_once(rows, columns, batch):
    parts = list(scene_windows(SCENE, 5, batch, lambda tile: 2 * tile, rows=rows, columns=columns))
    pixels = np.concatenate([part.pixels for part in parts])
    windows = torch.cat([part.windows for part in parts])
    assert sorted(map(tuple, pixels.tolist())) == [(r, c) for r in range(11) for c in range(13)]
    torch.testing.assert_close(windows, 2 * cut_windows(SCENE, pixels, 5), rtol=0, atol=0)
    assert max(len(part.windows) for part in parts) <= batch


def test_memory_does_not_grow_with_the_scene(tmp_path):
    """A mapped scene of 256 MB, of which the file system stores nothing, in a few MB of memory."""

    def peak(height):
        (tmp_path / "a.img").touch()
        with (tmp_path / "a.img").open("wb") as file:
            file.truncate(height * 400 * 32 * 2)
        cube = np.memmap(tmp_path / "a.img", np.uint16, "r", 0, (32, height, 400)).transpose(1, 2, 0)
        tracemalloc.start()
        parts = scene_windows(Scene(cube), 3, 512)
        for number, _ in enumerate(parts):
            if number == 60:  # more than one row of tiles
                break
        parts.close()
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    small, large = peak(100), peak(10_000)
    assert large < 1.1 * small
    assert large < 10 << 20
