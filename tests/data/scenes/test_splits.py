"""Splits: what they promise, on random label maps and on Indian Pines."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from tcpvit.data.scenes import SceneSplit, disjoint_split, find_scene, random_split, split_from_masks
from tcpvit.data.scenes.fields import deal_fields

PARTS = ("train", "validation", "test", "guard", "unused")
LABELS = np.kron(np.random.RandomState(0).randint(0, 5, (8, 8)), np.ones((6, 6), int)).astype(np.int32)


@st.composite
def label_maps(draw):
    """Blocks of random classes, a few pixels wide, with single pixels of noise on top."""
    shape = draw(st.tuples(st.integers(1, 6), st.integers(1, 6)))
    coarse = draw(npst.arrays(np.int32, shape, elements=st.integers(0, 3)))
    labels = np.kron(coarse, np.ones((draw(st.integers(1, 7)), draw(st.integers(1, 7))), np.int32))
    noise = np.random.RandomState(draw(st.integers(0, 1000))).rand(*labels.shape) < 0.05
    return np.where(noise, 1, labels).astype(np.int32)


def squares(pixels, radius):
    """Every pixel of the windows around `pixels`, slowly."""
    steps = range(-radius, radius + 1)
    return {(r + dr, c + dc) for r, c in pixels.tolist() for dr in steps for dc in steps}


def made(make, *arguments, **options):
    """A split, or None where the label map leaves no test or training pixel."""
    try:
        return make(*arguments, **options)
    except ValueError as error:
        if "has no test pixels" not in str(error) and "nothing to split" not in str(error):
            raise
        return None


@given(
    label_maps(), st.sampled_from([1, 3, 5, 7]), st.integers(0, 99), st.sampled_from([0.0, 0.3, 0.7]),
    st.sampled_from(["fields", "pixels"]),
)  # fmt: skip
def test_no_pixel_of_a_test_window_stands_in_a_training_window(labels, window, seed, validation, by):
    options = {"window": window, "seed": seed, "cap": 9}
    split = made(disjoint_split, labels, validation=validation, validation_by=by, **options)
    if split is None:
        return
    radius = window // 2
    assert not squares(split.pixels("test"), radius) & squares(split.pixels("train"), radius)
    assert split.leakage == 0
    assert (labels[split.codes > 0] > 0).all()
    plain = disjoint_split(labels, **options)
    np.testing.assert_array_equal(split.mask("test"), plain.mask("test"))
    trained = set(np.unique(labels[split.mask("train")]))
    assert trained == set(np.unique(labels[labels > 0]))  # validation takes no class away
    if by == "fields":
        assert not squares(split.pixels("validation"), radius) & set(map(tuple, split.pixels("train").tolist()))
    assert max(split.counts(labels)["train"]) <= 9


@given(label_maps(), st.sampled_from([1, 3, 5]), st.integers(0, 99), st.sampled_from([0.0, 0.5]))
def test_random_splits_use_every_labelled_pixel_once(labels, window, seed, validation):
    split = made(random_split, labels, window=window, seed=seed, fraction=0.2, validation=validation)
    if split is None:
        return
    assert (split.mask("unused") == (labels == 0)).all()
    assert not split.mask("guard").any()
    trained = set(np.unique(labels[split.mask("train")]))
    assert trained == set(np.unique(labels[labels > 0]))
    train = set(map(tuple, split.pixels("train").tolist()))
    leaking = [bool(squares(pixel[None], window // 2) & train) for pixel in split.pixels("test")]
    assert split.leakage == pytest.approx(np.mean(leaking))


def test_fields_are_dealt_whole():
    labels = np.zeros((30, 30), np.int32)
    for k, (row, column) in enumerate([(0, 0), (0, 20), (20, 0), (20, 20), (10, 10)]):
        labels[row : row + 6, column : column + 6] = 1
        labels[row + 6, column + 6] = 1  # touches at a corner: the same field
        labels[row, column] = 1 + (k == 4)
    for seed in range(5):
        taken = deal_fields(labels, 0.4, np.random.RandomState(seed))
        for row, column in [(0, 0), (0, 20), (20, 0), (20, 20)]:
            field = taken[row : row + 7, column : column + 7][labels[row : row + 7, column : column + 7] == 1]
            assert field.all() or not field.any()


@pytest.mark.parametrize("shape", [(40, 10), (10, 40)])
def test_one_large_field_is_cut_across_its_longer_side(shape):
    taken = deal_fields(np.ones(shape, np.int32), 0.3, np.random.RandomState(0))
    assert taken.sum() == 120
    whole_lines = taken.all(1) if shape[0] > shape[1] else taken.all(0)
    assert whole_lines.sum() == 12


def test_the_same_seed_gives_the_same_split_and_another_seed_another():
    for make, options in ((random_split, {"fraction": 0.1}), (disjoint_split, {})):
        first, again, other = (make(LABELS, window=3, seed=seed, **options) for seed in (4, 4, 5))
        np.testing.assert_array_equal(first.codes, again.codes)
        assert (first.codes != other.codes).any()


def test_counts_for_each_class():
    wanted = {1: 3, 2: 7, 3: 1, 4: 0}
    split = random_split(LABELS, window=3, seed=0, counts=wanted)
    assert split.counts(LABELS)["train"].tolist() == [3, 7, 1, 0]
    split = random_split(LABELS, window=3, seed=0, counts=10, validation=0.3)
    assert split.counts(LABELS)["train"].tolist() == [7] * 4
    assert split.counts(LABELS)["validation"].tolist() == [3] * 4


@pytest.mark.parametrize(
    ("make", "options", "sentence"),
    [
        (random_split, {}, "either fraction= or counts="),
        (random_split, {"fraction": 0.1, "counts": 5}, "either fraction= or counts="),
        (random_split, {"fraction": 1.0}, "above 0 and below 1, got 1.0"),
        (random_split, {"fraction": float("nan")}, "above 0 and below 1, got nan"),
        (random_split, {"counts": 10**6}, "class 1 has .* labelled pixels, 1000000 were asked"),
        (random_split, {"counts": {1: 3}}, "no number for class 2"),
        (random_split, {"fraction": 0.1, "validation": 1.0}, "from 0 to below 1"),
        (random_split, {"fraction": 0.1, "seed": -1}, "a seed lies between"),
        (random_split, {"fraction": 0.1, "window": 4}, "odd width such as 9, got 4"),
        (disjoint_split, {"window": 0}, "odd width"),
        (disjoint_split, {"share": 0}, "above 0 and below 1, got 0"),
        (disjoint_split, {"cap": 0}, "at least 1 pixel a class"),
        (disjoint_split, {"validation_by": "luck"}, "fields or pixels, got 'luck'"),
        (disjoint_split, {"window": 99}, "has no test pixels"),
    ],
)
def test_options_that_make_no_sense(make, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        make(LABELS, **({"window": 3, "seed": 0} | options))


def test_nothing_to_split():
    with pytest.raises(ValueError, match="nothing to split"):
        random_split(np.zeros((4, 4), np.int32), window=3, seed=0, fraction=0.1)


def test_the_users_own_masks_from_arrays_and_files(tmp_path):
    train = (LABELS > 0) & (np.arange(48)[:, None] < 20)
    test = (LABELS > 0) & (np.arange(48)[:, None] >= 22)
    np.save(tmp_path / "test.npy", test.astype(np.uint8) * 7)
    split = split_from_masks(LABELS, window=5, train=train, test=tmp_path / "test.npy")
    np.testing.assert_array_equal(split.mask("train"), train)
    np.testing.assert_array_equal(split.mask("test"), test)
    assert split.leakage == 0  # rows 19 and 22 are 3 apart: a window of radius 2 does not reach
    assert split.shared_windows > 0  # but the windows meet
    assert split_from_masks(LABELS, window=7, train=train, test=test).leakage > 0


@pytest.mark.parametrize(
    ("train", "test", "sentence"),
    [
        (LABELS > 0, LABELS > 1, "pixels of the test mask are in another mask too"),
        (LABELS >= 0, LABELS > 1, "pixels of the train mask have no label"),
        (LABELS[1:] > 0, LABELS > 1, "the train mask has the shape"),
        (LABELS == 1, LABELS == 9, "has no test pixels"),
    ],
)
def test_masks_that_do_not_fit(train, test, sentence):
    with pytest.raises(ValueError, match=sentence):
        split_from_masks(LABELS, window=5, train=train, test=test)


@pytest.fixture
def splits():
    return [
        random_split(LABELS, window=5, seed=3, counts={1: 9, 2: 9, 3: 9, 4: 9}, validation=0.2),
        disjoint_split(LABELS, window=3, seed=3, validation=0.2),
        split_from_masks(LABELS, window=3, train=LABELS == 1, test=LABELS == 2),
    ]


def test_splits_are_saved_with_how_they_were_made(splits, tmp_path):
    for split in splits:
        again = SceneSplit.load(split.save(tmp_path / "split.npz"))
        np.testing.assert_array_equal(again.codes, split.codes)
        for name in ("kind", "seed", "window", "labels_md5", "parameters", "leakage"):
            assert getattr(again, name) == getattr(split, name)
        again.check_labels(LABELS)
    with pytest.raises(ValueError, match=r"saved as \.npz"):
        splits[0].save(tmp_path / "split.png")


def test_a_split_of_another_label_map_is_refused(splits):
    with pytest.raises(ValueError, match="made for another label map"):
        splits[0].check_labels(np.where(LABELS == 1, 2, LABELS))


def test_saved_splits_that_were_changed_are_refused(splits, tmp_path):
    path = splits[1].save(tmp_path / "split.npz")
    with np.load(path) as content:
        codes, about = content["codes"], content["about"]
    nearer = np.where(codes == 4, 3, codes).astype(np.uint8)  # guard pixels tested after all
    np.savez(path, codes=nearer, about=about)
    with pytest.raises(ValueError, match="test windows share pixels with training windows"):
        SceneSplit.load(path)
    np.savez(path, codes=codes + 4, about=about)
    with pytest.raises(ValueError, match="code from 0 to 4"):
        SceneSplit.load(path)
    np.savez(path, codes=codes, about=np.frombuffer(b"{oops", np.uint8)[None])
    with pytest.raises(ValueError, match="is not a saved split"):
        SceneSplit.load(path)
    np.savez(path, codes=codes)
    with pytest.raises(ValueError, match="no array 'about'"):
        SceneSplit.load(path)
    path.write_bytes(b"PK\x03\x04 and then nothing")
    with pytest.raises(ValueError, match="damaged or cut short"):
        SceneSplit.load(path)


def test_the_stated_leakage_is_checked(splits, tmp_path):
    path = splits[0].save(tmp_path / "split.npz")
    with np.load(path) as content:
        codes, about = content["codes"], content["about"].tobytes()
    stated = re.search(rb'"leakage": [\d.]+', about)[0]
    for leakage, message in (
        (b"0.0001", "was changed: it states a leakage of"),
        (b"-0.5", "not a saved split .its record.leakage should be a number of at least 0"),
        (b'"none"', "not a saved split .its record.leakage should be a number"),
    ):
        changed = about.replace(stated, b'"leakage": ' + leakage)
        np.savez(path, codes=codes, about=np.frombuffer(changed, np.uint8)[None])
        with pytest.raises(ValueError, match=message):
            SceneSplit.load(path)


def test_an_unknown_part_is_answered_with_the_nearest(splits):
    with pytest.raises(ValueError, match="did you mean 'train'"):
        splits[0].mask("trian")


@pytest.fixture(scope="module")
def indian_pines(real_data):
    try:
        return find_scene("indian-pines", real_data).labels
    except FileNotFoundError:
        pytest.skip("Indian Pines is not among the real data")


def test_indian_pines_at_random_leaks_almost_everywhere(indian_pines):
    for seed in range(3):
        split = random_split(indian_pines, window=9, seed=seed, fraction=0.1)
        assert split.mask("train").sum() == 1026
        assert split.mask("test").sum() == 9223
        assert 0.993 < split.leakage < 1


def test_indian_pines_by_fields_does_not_leak(indian_pines):
    for seed in range(3):
        split = disjoint_split(indian_pines, window=9, seed=seed)
        assert split.mask("train").sum() == 1189
        assert 2800 < split.mask("test").sum() < 4700
        assert split.leakage == 0
        assert {1, 7, 9} <= set(np.flatnonzero(split.counts(indian_pines)["test"] == 0) + 1)
