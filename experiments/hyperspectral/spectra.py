"""Spectra as the networks of the study take them: standardised, or as their coordinates on principal axes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tcpvit.data.scenes import SceneStatistics


class Spectra:
    """Standardises spectra by the statistics of a scene, and with `components` takes so many principal components."""

    def __init__(self, statistics: SceneStatistics, components: int | None = None):
        self.statistics = statistics
        correlation = statistics.covariance / np.outer(statistics.std, statistics.std)
        self.axes = None if components is None else principal_axes(correlation, components)

    @property
    def channels(self) -> int:
        """How many values a pixel has after `apply`."""
        return len(self.statistics.bands) if self.axes is None else len(self.axes)

    def apply(self, spectra: NDArray[Any]) -> NDArray[np.float32]:
        """Spectra (..., B) of the scene -> (..., channels)."""
        bands, mean, std = self.statistics.bands, self.statistics.mean, self.statistics.std
        chosen = spectra if len(bands) == spectra.shape[-1] else spectra[..., bands]
        scaled = (chosen - mean.astype(np.float32)) / std.astype(np.float32)
        if self.axes is not None:
            scaled = scaled @ self.axes.T.astype(np.float32)
        return scaled.astype(np.float32, copy=False)


def principal_axes(correlation: NDArray[np.float64], number: int) -> NDArray[np.float64]:
    """(number, B), by falling variance; the largest entry of each is positive, so that the answer is unique."""
    axes = np.linalg.eigh(correlation).eigenvectors[:, ::-1].T[:number]
    return axes * np.sign(axes[np.arange(number), np.abs(axes).argmax(1)])[:, None]
