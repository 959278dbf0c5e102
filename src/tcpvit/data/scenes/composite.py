"""What people look at first: three bands of a scene as colours, and the mean spectrum of each class."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpvit.data.scenes.scene import Scene

INFRARED = (850.0, 650.0, 550.0)  # nm, shown as red, green and blue: plants are red
LARGEST = 1 << 21  # pixels: larger scenes are thinned out
SPECTRA = 2000  # pixels of a class that its mean is taken of


def composite_bands(scene: Scene) -> tuple[int, int, int]:
    """The good bands nearest to near infrared, red and green; without wavelengths three that are evenly spread."""
    good = scene.good_bands
    if scene.wavelengths is None:
        places = np.rint(np.array([0.75, 0.45, 0.15]) * (len(good) - 1)).astype(int)
    else:
        places = np.abs(scene.wavelengths[good][None] - np.array(INFRARED)[:, None]).argmin(1)
    red, green, blue = (int(good[place]) for place in places)
    return red, green, blue


def composite(scene: Scene) -> NDArray[np.uint8]:
    """(H, W, 3) uint8: three bands, each stretched from its 2nd to its 98th percentile; large scenes are thinned."""
    height, width, _ = scene.shape
    step = max(1, int(np.ceil(np.sqrt(height * width / LARGEST))))
    missing = None if scene.missing is None else scene.missing[::step, ::step]
    planes = [_stretched(scene.data[::step, ::step, band], missing) for band in composite_bands(scene)]
    return np.stack(planes, -1)


def class_spectra(scene: Scene) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and standard deviation (classes, bands) of the labelled pixels; NaN for a class without any.

    Of a class with more than 2,000 pixels, so many are taken at equal distances.
    """
    labels = scene.require_labels()
    mean = np.full((scene.num_classes, scene.bands), np.nan)
    deviation = mean.copy()
    for k in range(scene.num_classes):
        rows, columns = np.nonzero(labels == k + 1)
        if len(rows):
            chosen = np.linspace(0, len(rows) - 1, min(len(rows), SPECTRA)).astype(int)
            spectra = np.asarray(scene.data[rows[chosen], columns[chosen]], np.float64)
            mean[k], deviation[k] = spectra.mean(0), spectra.std(0)
    return mean, deviation


def _stretched(plane: NDArray[Any], missing: NDArray[np.bool_] | None) -> NDArray[np.uint8]:
    values = np.asarray(plane, np.float64)
    finite = np.isfinite(values) if missing is None else np.isfinite(values) & ~missing
    if not finite.any():
        return np.zeros(values.shape, np.uint8)
    low, high = np.percentile(values[finite], [2, 98])
    shown = (np.where(finite, values, low) - low) / max(high - low, np.finfo(float).tiny)
    return np.rint(255 * shown.clip(0, 1)).astype(np.uint8)
