"""Bands of another sensor: linear interpolation by its definition, and what is refused."""

import numpy as np
import pytest

from tcpvit.data.scenes import Scene, resample_scene


def scene(wavelengths, **options):
    data = np.random.default_rng(0).normal(size=(3, 4, len(wavelengths)))
    return Scene(data, wavelengths=np.array(wavelengths, float), **options)


def test_values_are_interpolated_pixel_by_pixel():
    have, wanted = [400.0, 410.0, 430.0, 500.0], np.array([400.0, 415.0, 499.0])
    given = scene(have)
    found = resample_scene(given, wanted)
    for row, column in np.ndindex(3, 4):
        expected = np.interp(wanted, have, given.data[row, column])
        np.testing.assert_allclose(found.data[row, column], expected, rtol=1e-5, atol=1e-6)
    assert found.data.dtype == np.float32
    assert found.wavelengths is not None
    assert found.wavelengths.tolist() == wanted.tolist()


def test_overlapping_detectors_and_bad_bands():
    """Bands out of order are sorted; bad ones are not read."""
    given = scene([400.0, 430.0, 420.0, 460.0], bad_bands=np.array([False, False, False, True]))
    found = resample_scene(given, [410.0, 425.0])
    values = np.asarray(found.data)
    np.testing.assert_allclose(values[..., 0], (given.data[..., 0] + given.data[..., 2]) / 2, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(values[..., 1], (given.data[..., 1] + given.data[..., 2]) / 2, rtol=1e-5, atol=1e-6)
    assert found.bad_bands is None


def test_the_same_sensor_is_left_alone():
    given = scene([400.0, 410.0])
    assert resample_scene(given, (400.0, 410.005)) is given


def test_half_a_band_beyond_the_ends_is_taken_and_no_more():
    given = scene([400.0, 410.0, 420.0])
    np.testing.assert_allclose(resample_scene(given, [396.0, 425.0]).data, given.data[..., [0, 2]], rtol=1e-6)
    with pytest.raises(ValueError, match=r"covers 400 to 420 nm, but the model needs 394 to 900 nm: 2 of its 3 bands"):
        resample_scene(given, [394.0, 410.0, 900.0])


def test_a_scene_without_wavelengths_is_refused():
    with pytest.raises(ValueError, match="does not say its wavelengths"):
        resample_scene(Scene(np.zeros((2, 2, 3))), [400.0, 500.0, 600.0])
