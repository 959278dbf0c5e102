"""A small scene without a download: 64×64 pixels, 60 bands, 6 classes, made from a photograph and synthetic spectra.

What it is: the photograph china.jpg that comes with scikit-learn (a temple above a lake), reduced to 64×64, says how
much of each of six materials a pixel holds, by how near its colour is to six anchor colours; its brightness is the
illumination. The spectra are smooth curves that we wrote, with absorptions where published reflectance spectra have
them (chlorophyll at 450 and 670 nm, the red edge at 715 nm, water at 970, 1200, 1450 and 1940 nm, iron oxide near 530
and 880 nm, clay at 2200 nm). They were measured nowhere, and neither were the scene or its labels. Use it to learn the
tools and to test them, never to compare models.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tcpvit.data.scenes.scene import Colour, Scene
from tcpvit.errors import import_extra

NAME = "materials"
SIDE, BANDS = 64, 60
PURE = 0.4  # a pixel has a label when one material makes up so much of it; purer pixels would be told apart by anyone
NOISE = 0.02  # standard deviation, in reflectance
SCALE = 10_000  # stored as whole numbers, as reflectance products are

Floats = NDArray[np.float64]

# Name, colour in figures, and the colour in the photograph that stands for the material: sky, haze, lake, tiles,
# leaves, shadow.
MATERIALS: tuple[tuple[str, Colour, Colour], ...] = (
    ("bare soil", (196, 152, 96), (198, 223, 251)),
    ("dry grass", (232, 208, 88), (232, 233, 238)),
    ("water", (48, 104, 200), (184, 197, 198)),
    ("roof tiles", (200, 72, 48), (172, 112, 76)),
    ("leaves", (64, 160, 64), (98, 96, 62)),
    ("asphalt", (104, 104, 112), (42, 34, 31)),
)
CONTRAST = 28.0  # levels of 255 over which one material gives way to another


def materials_scene(seed: int = 0) -> Scene:
    """Make the scene; the seed changes the noise and the variation of the materials, not the labels."""
    photo = _photograph()  # (H, W, 3)
    wavelengths = np.linspace(400.0, 2450.0, BANDS)
    abundances = _abundances(photo)  # (H, W, 6)
    random = np.random.RandomState(seed)  # its stream is frozen: the same scene everywhere
    tilt = random.normal(0, 0.06, (SIDE, SIDE, 1)) * (wavelengths - wavelengths.mean()) / np.ptp(wavelengths)
    light = 0.3 + 0.7 * photo.mean(2, keepdims=True) / 255
    reflectance = light * (abundances @ spectra(wavelengths)) * (1 + tilt) + random.normal(
        0, NOISE, (SIDE, SIDE, BANDS)
    )
    strongest = abundances.argmax(2) + 1
    return Scene(
        np.rint(SCALE * reflectance.clip(0, 1)).astype(np.uint16),
        labels=np.where(abundances.max(2) >= PURE, strongest, 0).astype(np.int32),
        wavelengths=wavelengths,
        class_names=tuple(name for name, _, _ in MATERIALS),
        colours=tuple(colour for _, colour, _ in MATERIALS),
        name=NAME,
    )


def spectra(wavelengths: Floats) -> Floats:
    """The six synthetic reflectance curves (6, B) at wavelengths in nanometres, in the order of `MATERIALS`."""

    def rise(centre: float, width: float) -> Floats:
        return 1 / (1 + np.exp(-(wavelengths - centre) / width))

    def absorb(centre: float, width: float, depth: float) -> Floats:
        return 1 - depth * np.exp(-(((wavelengths - centre) / width) ** 2) / 2)

    water_in_cells = absorb(970, 25, 0.1) * absorb(1200, 40, 0.2) * absorb(1450, 60, 0.6) * absorb(1940, 80, 0.75)
    soil = (0.08 + 0.34 * rise(750, 220)) * absorb(1410, 30, 0.12) * absorb(1920, 40, 0.2) * absorb(2205, 25, 0.15)
    dry = (0.12 + 0.36 * rise(720, 130)) * absorb(1450, 50, 0.2) * absorb(1940, 60, 0.3) * absorb(2100, 60, 0.25)
    water = 0.02 + 0.09 * (1 - rise(620, 60))
    tiles = (0.06 + 0.36 * rise(590, 35)) * absorb(530, 30, 0.3) * absorb(880, 70, 0.25)
    leaves = (0.10 + 0.42 * rise(715, 14)) * absorb(450, 35, 0.6) * absorb(670, 25, 0.65) * water_in_cells
    asphalt = 0.07 + 0.07 * rise(1100, 500)
    return np.stack([soil, dry, water, tiles, leaves * (1 - 0.35 * rise(1700, 250)), asphalt])


def _abundances(photo: Floats) -> Floats:
    """Shares (H, W, 6) of the materials, by how near the colour of a pixel is to the colour of each."""
    anchors = np.array([colour for _, _, colour in MATERIALS], np.float64)
    squared = ((photo[:, :, None] - anchors) ** 2).sum(-1) / (2 * CONTRAST**2)
    weights = np.exp(squared.min(-1, keepdims=True) - squared)
    return weights / weights.sum(-1, keepdims=True)


def _photograph() -> Floats:
    """The middle square of the photograph, as means of blocks: (64, 64, 3) from 0 to 255."""
    datasets = import_extra("sklearn.datasets", "the built-in scene uses a photograph of scikit-learn", "demo")
    photo = datasets.load_sample_image("china.jpg").astype(np.float64)
    block = photo.shape[0] // SIDE
    side = block * SIDE
    left = (photo.shape[1] - side) // 2
    return photo[:side, left : left + side].reshape(SIDE, block, SIDE, block, 3).mean((1, 3))
