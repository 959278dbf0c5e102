"""The built-in scene: the same each time, with classes that can be told apart by their spectra."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.svm import SVC

from tcpvit.data.scenes import disjoint_split, find_scene, fit_statistics, materials_scene
from tcpvit.data.scenes.built_in import spectra


def test_it_is_the_same_each_time_and_its_seed_changes_the_noise_alone():
    first, again, other = materials_scene(), find_scene("materials"), materials_scene(seed=1)
    np.testing.assert_array_equal(first.data, again.data)
    np.testing.assert_array_equal(first.labels, other.labels)
    assert (first.data != other.data).any()


def test_it_is_what_its_description_says():
    scene = materials_scene()
    assert scene.shape == (64, 64, 60)
    assert scene.num_classes == 6
    assert scene.class_counts().min() > 100
    assert scene.wavelengths[[0, -1]].tolist() == [400, 2450]
    assert scene.data.dtype == np.uint16


def test_curves_are_reflectances_with_their_features():
    nm = np.arange(400.0, 2451.0)
    curves = spectra(nm)
    assert (curves > 0).all()
    assert (curves < 1).all()
    leaves = curves[4]
    at = {int(w): leaves[int(w) - 400] for w in nm}
    assert at[800] > 5 * at[670]  # the red edge
    assert at[550] > at[670]
    assert at[550] > at[450]  # green between two absorptions of chlorophyll
    assert at[1940] < at[1650]  # water


@pytest.mark.parametrize("seed", range(4))
def test_spectra_classify_far_from_where_they_were_seen(seed):
    scene = materials_scene()
    split = disjoint_split(scene.labels, window=5, seed=seed)
    assert split.counts(scene.labels)["test"].min() > 0
    statistics = fit_statistics(scene, split)
    train, test = split.mask("train"), split.mask("test")
    values = (scene.data - statistics.mean) / statistics.std
    found = SVC(C=10).fit(values[train], scene.labels[train]).score(values[test], scene.labels[test])
    assert 0.8 < found < 1  # neither hopeless nor trivial
