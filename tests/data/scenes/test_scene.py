"""A scene checks itself when it is made."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tcpvit.data.scenes import Scene, class_colours

CUBE = np.arange(24, dtype=np.uint16).reshape(2, 3, 4)


def test_a_scene_completes_its_class_names_and_colours():
    scene = Scene(CUBE, labels=np.array([[0.0, 1, 2], [3, 3, 0]]))
    assert scene.labels.dtype == np.int32
    assert scene.class_names == ("class 1", "class 2", "class 3")
    assert len(set(scene.colours)) == 3
    assert scene.class_counts().tolist() == [1, 1, 2]
    assert scene.shape == (2, 3, 4)


def test_a_scene_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Scene(CUBE).name = "other"


def test_good_bands_leave_out_the_bad_ones():
    assert Scene(CUBE).good_bands.tolist() == [0, 1, 2, 3]
    assert Scene(CUBE, bad_bands=np.array([True, False, False, True])).good_bands.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"data": CUBE[0]}, "rows, columns and bands, got an array of shape"),
        ({"data": CUBE[:0]}, "rows, columns and bands, got an array of shape"),
        ({"data": CUBE.astype(np.complex64)}, "complex numbers"),
        ({"data": CUBE.astype(object)}, "expected real numbers"),
        ({"labels": np.zeros((3, 2), int)}, "labels of 3×2 pixels do not fit an image of 2×3"),
        ({"labels": np.full((2, 3), -1)}, "between 0"),
        ({"labels": np.full((2, 3), 0.5)}, "whole numbers"),
        ({"labels": np.full((2, 3), np.nan)}, "between 0"),
        ({"labels": np.full((2, 3), 3), "class_names": ("a", "b")}, "label 3 has no name among the 2"),
        ({"wavelengths": np.arange(1.0, 4.0)}, "3 wavelengths were given for 4 bands"),
        ({"wavelengths": np.array([1.0, 2.0, np.nan, 4.0])}, "positive numbers"),
        ({"bad_bands": np.ones(4, bool)}, "all 4 bands are marked as bad"),
        ({"bad_bands": np.ones(5, bool)}, "5 bad_bands were given for 4 bands"),
        ({"class_names": ("a",), "colours": ((0, 0, 0), (1, 1, 1))}, "2 colours were given for 1 class"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(fields, sentence):
    with pytest.raises(ValueError, match=sentence):
        Scene(**({"data": CUBE} | fields))


def test_without_labels_the_error_says_what_to_give():
    with pytest.raises(ValueError, match="has no labels: give a label map of 2×3 pixels"):
        Scene(CUBE).require_labels()


def test_colours_of_many_classes_differ():
    assert len(set(class_colours(64))) == 64
