"""What the slices see: images by slice with their attention, accuracies, energies and gradients slice by slice.

A slice has its colour, dash and marker in every figure: 0 is dark, 1 orange, 2 light blue.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tcpvit.figures.style import FAINT, GREEN, INK, ORANGE, PINK, SKY, TEXT_WIDTH, house_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLES: tuple[dict[str, Any], ...] = (
    {"color": INK, "linestyle": "-", "marker": "o"},
    {"color": ORANGE, "linestyle": "--", "marker": "s"},
    {"color": SKY, "linestyle": "-.", "marker": "D"},
    {"color": GREEN, "linestyle": ":", "marker": "^"},
    {"color": PINK, "linestyle": (0, (5, 1)), "marker": "v"},
)
GAP, APART, HEAD, LEFT = 0.03, 0.12, 0.34, 0.62  # inches: between images, between groups, for titles, for names

Groups = Mapping[str, Mapping[str, Sequence[np.ndarray]]]  # group -> column -> an image for each row


def slice_images(pixels: np.ndarray, matrix: np.ndarray, gain: float = 1.0) -> list[np.ndarray]:
    """An image (H, W, C) from each of its slices alone, values 0..1: contrasts lie around grey, enlarged by `gain`.

    `matrix` is the transform, (C, C), whose first slice is the brightness.

    >>> flat = slice_images(np.full((1, 1, 2), 0.5), np.array([[1, 1], [1, -1]]) / 2**0.5)
    >>> [image.round(2).tolist() for image in flat]
    [[[[0.5, 0.5]]], [[[0.5, 0.5]]]]
    """
    hat = pixels @ matrix.T
    alone = [hat[..., k, None] * matrix[k] for k in range(len(matrix))]  # the transform is orthogonal
    return [np.clip(part if k == 0 else 0.5 + gain * part, 0, 1) for k, part in enumerate(alone)]


def attention_image(pixels: np.ndarray, attention: np.ndarray) -> np.ndarray:
    """A map over patches (rows × columns, 0..1) as colours, dark to yellow, over the image (H, W, 3) in grey."""
    from matplotlib import colormaps

    height, width = (full // part for full, part in zip(pixels.shape, attention.shape, strict=False))
    colors = colormaps["viridis"](np.kron(attention, np.ones((height, width))))[..., :3]
    return 0.75 * colors + 0.25 * pixels.mean(-1, keepdims=True)


def draw_slice_images(groups: Groups, names: Sequence[str]) -> Figure:
    """A row for each name, a column for each column of each group, with the groups' titles above their columns."""
    if not groups or not names:
        raise ValueError(f"images by slice need a group and a name, got {len(groups)} and {len(names)}")
    columns = sum(len(group) for group in groups.values())
    side = (TEXT_WIDTH - LEFT - GAP * (columns - len(groups)) - APART * (len(groups) - 1)) / columns
    height = HEAD + len(names) * (side + GAP)
    with house_style() as Figure:
        figure = Figure(figsize=(TEXT_WIDTH, height))
        left = LEFT
        for title, group in groups.items():
            begin = left
            for column, images in group.items():
                for row, image in enumerate(images):
                    bottom = height - HEAD - (row + 1) * side - row * GAP
                    place = (left / TEXT_WIDTH, bottom / height, side / TEXT_WIDTH, side / height)
                    _show(figure.add_axes(place), image)
                _write(figure, left + side / 2, height - HEAD + 0.05, height, column, fontsize=7)
                left += side + GAP
            _write(figure, (begin + left - GAP) / 2, height - 0.14, height, title)
            left += APART - GAP
        for row, name in enumerate(names):
            middle = height - HEAD - row * (side + GAP) - side / 2
            _write(figure, LEFT - 0.06, middle, height, name, ha="right", va="center", fontsize=7)
        return figure


def draw_ablation(models: Mapping[str, Mapping[str, Mapping[str, float]]], chance: float) -> Figure:
    """A panel for each model: accuracies in per cent by what is left of the slices, a marker for each way.

    >>> figure = draw_ablation({"paper": {"at the entry": {"all": 60.0, "without 0": 20.0}}}, chance=10.0)
    >>> [label.get_text() for label in figure.axes[0].get_yticklabels()]
    ['all', 'without 0']
    """
    marks: tuple[dict[str, Any], ...] = (
        {"marker": "o", "color": INK},
        {"marker": "D", "color": ORANGE, "markerfacecolor": "none"},
        {"marker": "|", "color": SKY, "markersize": 9, "markeredgewidth": 2.2},
    )
    with house_style() as Figure:
        rows = list(next(iter(next(iter(models.values())).values())))
        figure, panels = _panels(Figure, len(models), 0.9 + 0.2 * len(rows), sharex=True)
        for panel, (title, ways) in zip(panels, models.items(), strict=True):
            panel.axvline(chance, color=INK, linewidth=0.9, linestyle=":", label="chance")
            for mark, (way, found) in zip(marks, ways.items(), strict=False):
                values = [found[row] for row in rows]
                panel.plot(values, range(len(rows)), label=way, **{"linestyle": "", "markersize": 4.5, **mark})
            panel.set_title(title)
            panel.set_xlabel("top-1, %")
            panel.grid(axis="both", color=FAINT)
        panels[0].set_xlim(left=0)  # after all is drawn: the panels share it
        panels[0].set_yticks(range(len(rows)), rows)
        panels[0].invert_yaxis()
        _legend(figure, panels[0])
        return figure


def draw_classes(models: Mapping[str, Sequence[Sequence[float]]], classes: Sequence[str]) -> Figure:
    """A panel for each model: the change of each class's accuracy in points, a marker for each slice taken away."""
    with house_style() as Figure:
        figure, panels = _panels(Figure, len(models), 0.9 + 0.17 * len(classes), sharex=True)
        for panel, (title, slices) in zip(panels, models.items(), strict=True):
            panel.axvline(0, color=INK, linewidth=0.8)
            for k, (style, changes) in enumerate(zip(STYLES, slices, strict=False)):
                look = {"color": style["color"], "marker": style["marker"]}
                rows = [row + 0.2 * (k - (len(slices) - 1) / 2) for row in range(len(classes))]  # no mark hides another
                panel.plot(changes, rows, linestyle="", markersize=4, label=f"without slice {k}", **look)
            panel.set_title(title)
            panel.set_xlabel("change of accuracy, points")
            panel.grid(axis="both", color=FAINT)
        panels[0].set_yticks(range(len(classes)), classes)
        panels[0].invert_yaxis()
        _legend(figure, panels[0])
        return figure


def draw_energy(models: Mapping[str, Mapping[str, Sequence[float]]]) -> Figure:
    """A panel for each model: the share of each slice in the energy, place by place, as stacked bars."""
    with house_style() as Figure:
        figure, panels = _panels(Figure, len(models), 2.2)
        for panel, (title, places) in zip(panels, models.items(), strict=True):
            shares = np.array([[100 * value / sum(row) for value in row] for row in places.values()])  # (places, C)
            low = np.zeros(len(shares))
            for k, style in enumerate(STYLES[: shares.shape[1]]):
                color = style["color"]
                panel.bar(range(len(shares)), shares[:, k], 0.74, bottom=low, color=color, label=f"slice {k}")
                low = low + shares[:, k]
            panel.set_xticks(range(len(shares)), [place.replace("block ", "") for place in places])
            panel.set_title(title)
            panel.margins(x=0.02)
        panels[0].set_ylabel("share of the energy, %")
        _legend(figure, panels[0])
        return figure


def draw_gradients(models: Mapping[str, tuple[Sequence[int], Sequence[Sequence[float]]]]) -> Figure:
    """A panel for each model: steps, and the gradient's norm of each slice; as measured and as a running median."""
    with house_style() as Figure:
        from matplotlib.ticker import LogLocator

        figure, panels = _panels(Figure, len(models), 2.3)
        for panel, (title, (steps, slices)) in zip(panels, models.items(), strict=True):
            for k, (style, norms) in enumerate(zip(STYLES, slices, strict=False)):
                panel.plot(steps, norms, color=style["color"], linewidth=0.5, alpha=0.3)
                look = {"color": style["color"], "linestyle": style["linestyle"]}
                panel.plot(steps, running_median(norms, 21), label=f"slice {k}", **look)
            panel.set_yscale("log")
            panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            panel.yaxis.set_major_formatter("{x:g}")
            panel.yaxis.set_minor_formatter("")
            panel.set_title(title)
            panel.set_xlabel("step")
            panel.grid(axis="y", color=FAINT)
        panels[0].set_ylabel("norm of the gradient")
        _legend(figure, panels[0])
        return figure


def running_median(values: Sequence[float], width: int) -> list[float]:
    """The median of so many values around each, fewer at the ends.

    >>> running_median([1, 9, 2, 3], 3)
    [5.0, 2.0, 3.0, 2.5]
    """
    half = width // 2
    return [float(np.median(values[max(i - half, 0) : i + half + 1])) for i in range(len(values))]


def _panels(Figure: Any, number: int, height: float, sharex: bool = False) -> tuple[Figure, list[Any]]:
    """Panels side by side that share their vertical axis."""
    if number == 0:
        raise ValueError("a figure of slices needs at least one model, got none")
    figure = Figure(figsize=(TEXT_WIDTH, math.ceil(10 * height) / 10), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.08)
    return figure, list(figure.subplots(1, number, sharex=sharex, sharey=True, squeeze=False)[0])


def _legend(figure: Figure, panel: Any) -> None:
    handles, labels = panel.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), handlelength=2.4)


def _show(panel: Any, image: np.ndarray) -> None:
    panel.imshow(image, interpolation="nearest")
    panel.set_axis_off()


def _write(figure: Figure, x: float, y: float, height: float, text: str, **look: Any) -> None:
    figure.text(x / TEXT_WIDTH, y / height, text, **{"ha": "center", **look})
