"""Windows against np.pad, the eight symmetries against np.rot90, batches that repeat, and memory that stays flat."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tcpvit.data.scenes import Scene, SceneBatches, cut_windows, fit_statistics, random_split, scene_windows
from tcpvit.data.scenes.windows import reflect

RANDOM = np.random.RandomState(0)
CUBE = RANDOM.rand(11, 13, 6).astype(np.float32)
LABELS = RANDOM.randint(0, 4, (11, 13)).astype(np.int32)
SCENE = Scene(CUBE, labels=LABELS)
SPLIT = random_split(LABELS, window=5, seed=0, fraction=0.3, validation=0.3)
STATISTICS = fit_statistics(SCENE, SPLIT)


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
    np.testing.assert_array_equal(found.numpy(), expected)


def test_a_window_wider_than_the_scene():
    small = Scene(CUBE[:2, :1])
    found = cut_windows(small, np.array([(0, 0)]), 7)
    np.testing.assert_array_equal(found[0].numpy(), padded_window(CUBE[:2, :1], 0, 0, 7))


def test_the_eight_symmetries_are_the_turns_and_mirrors_of_the_square():
    pixel = np.array([(5, 6)])
    plain = padded_window(CUBE, 5, 6, 5)
    expected = [np.rot90(view, k, (1, 2)) for view in (plain, plain[:, :, ::-1]) for k in range(4)]
    found = [cut_windows(SCENE, pixel, 5, None, np.array([k]))[0].numpy() for k in range(8)]
    for view in found:
        assert sum(np.array_equal(view, other) for other in expected) == 1
        assert sum(np.array_equal(view, other) for other in found) == 1
    np.testing.assert_array_equal(found[0], plain)


@pytest.mark.parametrize(("rows", "columns", "batch"), [(1, 1, 1), (4, 5, 7), (16, 256, 1000), (11, 13, 143)])
def test_the_whole_scene_in_tiles_is_every_window_once(rows, columns, batch):
    parts = list(scene_windows(SCENE, 5, batch, STATISTICS, rows=rows, columns=columns))
    pixels = np.concatenate([part.pixels for part in parts])
    windows = torch.cat([part.windows for part in parts])
    assert sorted(map(tuple, pixels.tolist())) == [(r, c) for r in range(11) for c in range(13)]
    torch.testing.assert_close(windows, cut_windows(SCENE, pixels, 5, STATISTICS), rtol=0, atol=0)
    assert max(len(part.windows) for part in parts) <= batch


def test_batches_hold_the_pixels_of_the_part_with_classes_from_zero():
    for part in ("train", "validation", "test"):
        batches = SceneBatches(SCENE, SPLIT, part, 8, statistics=STATISTICS)
        windows, targets = (torch.cat(parts) for parts in zip(*batches, strict=True))
        np.testing.assert_array_equal(targets.numpy() + 1, LABELS[SPLIT.mask(part)])
        np.testing.assert_array_equal(windows[:, :, 2, 2].numpy(), STATISTICS.apply(CUBE[SPLIT.mask(part)]))
        assert len(list(batches)) == len(batches)


def training_batches(**options):
    return SceneBatches(
        SCENE, SPLIT, "train", 8, statistics=STATISTICS, shuffle=True, augment=True, noise=0.1, **options
    )


def test_a_batch_is_a_function_of_seed_epoch_and_number():
    batches = training_batches(seed=3)
    batches.set_epoch(2)
    whole = list(batches)
    again = training_batches(seed=3)
    again.set_epoch(2, start=1)
    for (windows, targets), (expected, expected_targets) in zip(again, whole[1:], strict=True):
        torch.testing.assert_close(windows, expected, rtol=0, atol=0)
        torch.testing.assert_close(targets, expected_targets, rtol=0, atol=0)
    batches.set_epoch(3)
    assert not torch.equal(next(iter(batches))[0], whole[0][0])


def test_noise_has_the_standard_deviation_asked_for():
    quiet = SceneBatches(SCENE, SPLIT, "train", 999, statistics=STATISTICS)
    noisy = SceneBatches(SCENE, SPLIT, "train", 999, statistics=STATISTICS, noise=0.3)
    difference = next(iter(noisy))[0] - next(iter(quiet))[0]
    count = difference.numel()
    assert abs(difference.std().item() - 0.3) < 4 * 0.3 / np.sqrt(2 * count)
    assert abs(difference.mean().item()) < 4 * 0.3 / np.sqrt(count)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"batch_size": 0}, "batch_size ≥ 1"),
        ({"noise": float("nan")}, "noise ≥ 0"),
        ({"window": 7}, "keeps windows of 5 pixels apart, 7 is wider"),
        ({"window": 4}, "odd width"),
        ({"scene": Scene(CUBE)}, "has no labels"),
        ({"scene": Scene(CUBE, labels=LABELS[::-1])}, "made for another label map"),
    ],
)
def test_options_that_make_no_sense(options, sentence):
    given = {"scene": SCENE, "split": SPLIT, "part": "train", "batch_size": 8, "statistics": STATISTICS}
    with pytest.raises(ValueError, match=sentence):
        SceneBatches(**(given | options))


def test_a_part_without_pixels():
    split = random_split(LABELS, window=5, seed=0, fraction=0.3)
    with pytest.raises(ValueError, match="no validation pixels"):
        SceneBatches(SCENE, split, "validation", 8, statistics=STATISTICS)


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
