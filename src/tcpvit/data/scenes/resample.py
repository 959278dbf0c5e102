"""Spectra of one sensor at the wavelengths of another, for a model that was trained there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpvit.data.scenes.scene import Scene

Floats = NDArray[np.float64]


def resample_scene(scene: Scene, wavelengths: Sequence[float] | Floats) -> Scene:
    """The scene with bands at `wavelengths` (nanometres), interpolated linearly between its own good bands.

    A scene that has these bands already is returned as it is; else pixels are interpolated whenever they are read.
    Wavelengths up to half a band beyond the scene's first and last take the value there; others are refused.
    """
    wanted = np.asarray(wavelengths, np.float64)
    if scene.wavelengths is None:
        raise ValueError(f"{scene.name} does not say its wavelengths, so it cannot be fitted to those of the model")
    good = scene.good_bands
    if len(good) == scene.bands == len(wanted) and np.allclose(scene.wavelengths, wanted, rtol=0, atol=0.01):
        return scene
    weights = resampling_matrix(scene.wavelengths[good], wanted, scene.name).astype(np.float32)  # (bands, wanted)
    data: Any = _Interpolated(scene.data, good, weights)
    return replace(scene, data=data, wavelengths=wanted, bad_bands=None)


class _Interpolated:
    """Stands for an array (H, W, wanted) of which only the pixels that are asked for are read and interpolated."""

    ndim, dtype = 3, np.dtype(np.float32)

    def __init__(self, data: NDArray[Any], good: NDArray[np.intp], weights: NDArray[np.float32]):
        self.data, self.good, self.weights = data, good, weights
        self.shape = (*data.shape[:2], weights.shape[1])

    def __getitem__(self, pixels: Any) -> NDArray[np.float32]:
        """Index rows and columns as those of an array; `...` is not known."""
        return np.asarray(self.data[pixels], np.float32)[..., self.good] @ self.weights

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self[:, :].astype(self.dtype if dtype is None else dtype, copy=False)


def resampling_matrix(have: Floats, wanted: Floats, name: str = "the scene") -> Floats:
    """(bands, wanted): spectra (..., bands) times it are their values at the wanted wavelengths.

    >>> resampling_matrix(np.array([400.0, 500.0]), np.array([425.0, 500.0]))
    array([[0.75, 0.  ],
           [0.25, 1.  ]])
    """
    order = np.argsort(have)  # the detectors of a sensor may overlap
    sorted_have = have[order]
    if len(have) < 2:
        raise ValueError(f"{name} has {len(have)} band, and at least 2 are needed to interpolate between them")
    first, last = (sorted_have[1] - sorted_have[0]) / 2, (sorted_have[-1] - sorted_have[-2]) / 2
    outside = (wanted < sorted_have[0] - first) | (wanted > sorted_have[-1] + last)
    if outside.any():
        raise ValueError(
            f"{name} covers {sorted_have[0]:g} to {sorted_have[-1]:g} nm, but the model needs {wanted.min():g} to "
            f"{wanted.max():g} nm: {outside.sum()} of its {len(wanted)} bands lie outside; take a model for this sensor"
        )
    matrix = np.empty((len(have), len(wanted)))
    for place, unit in zip(order, np.eye(len(have)), strict=True):
        matrix[place] = np.interp(wanted, sorted_have, unit)
    return matrix
