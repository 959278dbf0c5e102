"""What a model sees along the spectrum: class means, variance by frequency, importance, accuracy by what is kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tcpvit.figures.style import BLUE, FAINT, INK, ORANGE, SKY, TEXT_WIDTH, house_style
from tcpvit.fonts import letters_for

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Colour = tuple[int, int, int]
LONGEST = 26  # letters of a class
GAP = 3.0  # a step so many times the usual one is a gap between bands
DASHES = ("-", "--", "-.", ":")  # colours repeat for grey prints


def draw_spectra(
    mean: np.ndarray, names: Sequence[str], colours: Sequence[Colour], wavelengths: np.ndarray | None = None
) -> Figure:
    """The mean spectrum (classes, bands) of each class, named in a legend; lines break where bands are missing.

    >>> figure = draw_spectra(np.ones((2, 3)), ["a", "b"], [(0, 0, 0), (9, 9, 9)])
    >>> [line.get_label() for line in figure.axes[0].lines]
    ['a', 'b']
    """
    letters = letters_for(names)
    with house_style(letters.families) as Figure:
        figure = Figure(figsize=(TEXT_WIDTH, max(2.6, 0.5 + 0.155 * len(names))), layout="constrained")
        panel = figure.subplots()
        x, broken = _axis(mean, wavelengths)
        for k, (name, colour, values) in enumerate(zip(names, colours, broken, strict=True)):
            shade = [level / 255 for level in colour]
            label = letters.shortened(name, LONGEST)
            panel.plot(x, values, label=label, color=shade, linewidth=1.1, linestyle=DASHES[k // 4 % len(DASHES)])
        panel.set_ylabel("mean value")
        _label(panel, wavelengths)
        figure.legend(loc="outside right center", fontsize=7, handlelength=2.2, labelspacing=0.35)
        return figure


def draw_energy(energy: np.ndarray, kept: int) -> Figure:
    """The variance of the spectra that the first K frequencies hold, with the suggested K."""
    total = 100 * np.cumsum(energy)
    with house_style() as Figure:
        figure = Figure(figsize=(TEXT_WIDTH, 2.2), layout="constrained")
        panel = figure.subplots()
        numbers = np.arange(1, len(total) + 1)
        panel.plot(numbers, total, color=BLUE, marker="." if len(total) < 40 else "")
        panel.axvline(kept, color=ORANGE, linestyle="--", linewidth=1.0)
        panel.annotate(
            f"{kept} hold {total[kept - 1]:.1f} %", (kept, total[kept - 1]), (6, -12), textcoords="offset points"
        )
        panel.set_xscale("log")
        panel.set_xlabel("kept frequencies of the DCT along the spectrum")
        panel.set_ylabel("variance held (%)")
        panel.grid(color=FAINT)
        _plain_ticks(panel, [k for k in (1, 2, 5, 10, 20, 50, 100, 200, 500) if k <= len(total)])
        return figure


def draw_importance(by_band: np.ndarray, by_frequency: np.ndarray, wavelengths: np.ndarray | None = None) -> Figure:
    """Shares of the importance of each band (above) and of each kept frequency (below)."""
    with house_style() as Figure:
        figure = Figure(figsize=(TEXT_WIDTH, 3.4), layout="constrained")
        above, below = figure.subplots(2, 1)
        x, (broken,) = _axis(100 * by_band[None], wavelengths)
        above.plot(x, broken, color=BLUE, linewidth=1.1)
        above.fill_between(x, 0, np.nan_to_num(broken), where=np.isfinite(broken).tolist(), color=SKY, alpha=0.4)
        above.set_title("by band")
        _label(above, wavelengths)
        below.bar(np.arange(len(by_frequency)), 100 * by_frequency, 0.8, color=BLUE)
        below.set_title("by frequency")
        below.set_xlabel("frequency of the DCT along the spectrum")
        for panel in (above, below):
            panel.set_ylabel("share (%)")
            panel.set_ylim(bottom=0)
            panel.grid(axis="y", color=FAINT)
        return figure


def _axis(values: np.ndarray, wavelengths: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Places of the bands and values (n, bands), sorted, with NaN where bands are missing in between."""
    if wavelengths is None or len(wavelengths) < 2:
        return np.arange(1, values.shape[1] + 1, dtype=float), values
    order = np.argsort(wavelengths)
    x, values = wavelengths[order], values[:, order]
    steps = np.diff(x)
    gaps = np.flatnonzero(steps > GAP * np.median(steps, keepdims=True)) + 1
    return np.insert(x, gaps, x[gaps] - 1e-6), np.insert(values.astype(float), gaps, np.nan, axis=1)


def _label(panel: Any, wavelengths: np.ndarray | None) -> None:
    panel.set_xlabel("band" if wavelengths is None else "wavelength (nm)")
    panel.grid(axis="y", color=FAINT)
    panel.margins(x=0.01)


def _plain_ticks(panel: Any, places: Sequence[int]) -> None:
    panel.set_xticks(list(places), [str(k) for k in places])
    panel.set_xticks([], minor=True)
    panel.tick_params(axis="x", color=INK)
