"""What a model needs to know about the bands, from training pixels only: their scale, and the frequencies to keep."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tcpvit.data.scenes.scene import Scene
from tcpvit.data.scenes.splits import SceneSplit

ENERGY = 0.95  # of the variance of the spectra that the kept frequencies should hold
BLOCK = 1 << 24  # values read at a time when all pixels are used

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SceneStatistics:
    """Mean, standard deviation and covariance of the used bands, and the frequencies worth keeping.

    `bands` are the numbers of the bands that are used. `energy` is the share of the variance of the (centred, not
    rescaled) spectra at each frequency of their DCT; the first `kept_frequencies` hold what `reason` says.
    `transductive` is True when all pixels of the scene were used, the test pixels too: results must say so.
    """

    bands: NDArray[np.intp]
    mean: Floats
    std: Floats
    covariance: Floats  # (bands, bands)
    energy: Floats
    kept_frequencies: int
    reason: str
    pixels: int
    transductive: bool

    @property
    def origin(self) -> str:
        """The pixels that were used, for the line under a result."""
        which = (
            "all pixels of the scene, test pixels included (transductive)" if self.transductive else "training pixels"
        )
        return f"{self.pixels:,} {which}"


def fit_statistics(
    scene: Scene,
    split: SceneSplit | None = None,
    *,
    transductive: bool = False,
    energy: float = ENERGY,
) -> SceneStatistics:
    """Measure the good bands on the training pixels of `split`, or on all pixels of the scene with `transductive`.

    `energy` is the share of the variance that the suggested number of frequencies should hold.
    """
    if not 0 < energy < 1:
        raise ValueError(f"energy is a share of the variance above 0 and below 1, got {energy}")
    bands = scene.good_bands
    number, mean, covariance = _moments(scene, _spectra(scene, split, bands, transductive), transductive)
    std = np.sqrt(np.diag(covariance))
    std = np.where(std > 0, std, 1.0)  # a band without variation says nothing, at any scale
    shares = frequency_energy(covariance)
    kept = int(np.searchsorted(np.cumsum(shares), energy - 1e-12) + 1)
    reason = (
        f"the first {kept} of {len(bands)} frequencies hold {shares[:kept].sum():.1%} of the variance of {number:,} "
        f"{'spectra of the whole scene' if transductive else 'training spectra'} (the fewest that hold {energy:.0%})"
    )
    return SceneStatistics(bands, mean, std, covariance, shares, kept, reason, number, transductive)


def frequency_energy(covariance: Floats) -> Floats:
    """The share of variance at each frequency of the DCT along the bands: the diagonal of Φ Σ Φᵀ."""
    bands = len(covariance)
    k, j = np.mgrid[:bands, :bands]
    phi = np.sqrt(2 / bands) * np.cos(np.pi * k * (2 * j + 1) / (2 * bands))  # DCT-II, orthonormal
    phi[0] /= np.sqrt(2)
    variances = np.einsum("kj,ji,ki->k", phi, covariance, phi, optimize=True).clip(min=0)
    total = variances.sum()
    return variances / total if total > 0 else np.eye(1, bands)[0]


def _spectra(scene: Scene, split: SceneSplit | None, bands: NDArray[np.intp], transductive: bool) -> Iterator[Floats]:
    """Blocks of spectra (n, bands)."""
    height, width, all_bands = scene.shape
    if transductive:
        rows = max(1, BLOCK // (width * all_bands))
        for top in range(0, height, rows):
            block = np.asarray(scene.data[top : top + rows], np.float64)[..., bands]
            known = slice(None) if scene.missing is None else ~scene.missing[top : top + rows]
            if len(spectra := block[known].reshape(-1, len(bands))):
                yield spectra
        return
    if split is None:
        raise ValueError(
            "statistics are measured on training pixels: give a split, or transductive=True for all pixels"
        )
    if split.codes.shape != (height, width):
        raise ValueError(f"the split has the shape {split.codes.shape}, the scene {height}×{width} pixels")
    pixels = split.pixels("train")
    number = max(1, BLOCK // all_bands)
    for first in range(0, len(pixels), number):
        row, column = pixels[first : first + number].T
        yield np.asarray(scene.data[row, column], np.float64)[:, bands]


def _moments(scene: Scene, blocks: Iterator[Floats], transductive: bool) -> tuple[int, Floats, Floats]:
    """Number, mean (B,) and covariance (B, B) in one pass, each block joined to what came before (Chan et al.)."""
    number, mean, scatter = 0, np.zeros(1), np.zeros((1, 1))
    for block in blocks:
        if not (finite := np.isfinite(block)).all():
            which = "pixels of the scene" if transductive else "training pixels"
            bad = scene.good_bands[~finite.all(0)] + 1
            named = f"{', '.join(map(str, bad[:5]))}{f' and {len(bad) - 5} more' if len(bad) > 5 else ''}"
            raise ValueError(
                f"{scene.name}: some {which} are not finite numbers; fill them, declare them as no data (data ignore "
                f"value of an ENVI header, GDAL_NODATA of a TIFF: nan), or mark their bands as bad (bbl of an ENVI "
                f"header): band {named}"
            )
        own = block.mean(0)
        centred, step = block - own, own - mean
        together = number + len(block)
        scatter = scatter + centred.T @ centred + np.outer(step, step) * (number * len(block) / together)
        mean = mean + step * (len(block) / together)
        number = together
    return number, mean, scatter / number
