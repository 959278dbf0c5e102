"""Confusion matrices side by side, each row in per cent of its truth (paper, fig. seg_confusion)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tcpvit.figures.style import COLUMN_WIDTH, INK, TEXT_WIDTH, house_style
from tcpvit.fonts import letters_for

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WITH_NUMBERS, WITH_NAMES = 12, 120  # up to so many classes the cells have numbers, the axes names
LONGEST = 28  # letters of a name
SHORT = 12  # letters that the usual width has room for


def draw_confusions(
    matrices: Mapping[str, Sequence[Sequence[int]]], classes: Sequence[str], *, in_column: bool = False
) -> Figure:
    """`matrices` has the counts of each model: rows are the truth, columns the prediction.

    They take the width of the text, or `in_column` that of a column, without the bar that explains the shades.

    >>> figure = draw_confusions({"std": [[8, 2], [1, 9]], "tcp": [[7, 3], [0, 10]]}, ["cat", "dog"])
    >>> [text.get_text() for text in figure.axes[0].texts]
    ['80.0', '20.0', '10.0', '90.0']
    """
    if not matrices:
        raise ValueError("draw_confusions needs at least one matrix, got none")
    for model, matrix in matrices.items():
        if any(len(side) != len(classes) for side in (matrix, *matrix)):
            raise ValueError(f"the matrix of {model} should have {len(classes)} rows and columns, one for each class")
    letters = letters_for([*classes, *matrices])
    names = [letters.shortened(name, LONGEST) for name in classes]
    with house_style(letters.families) as Figure:
        shape, side = _arrange(len(matrices), len(classes), in_column)
        room = _room(names)
        size = (shape[1] * (side + (room if shape[1] == 1 else room / 2)) + 0.5, shape[0] * (side + 0.35 + room))
        figure = Figure(figsize=size, layout="constrained")
        axes = list(figure.subplots(*shape, squeeze=False, sharey=shape[0] == 1).flat)
        for panel, (model, matrix) in zip(axes, matrices.items(), strict=True):
            image = _draw(panel, _in_percent(matrix))
            panel.set_title(letters.shortened(model, 60), parse_math=False)
            panel.set_xlabel("prediction")
            _name_axes(panel, names)
            if panel.get_subplotspec().is_first_col():
                panel.set_ylabel("truth")
        if in_column:
            axes[0].set_yticks(range(len(names)), names, rotation=90, va="center")
            return figure
        bar = figure.colorbar(image, ax=axes, shrink=0.75 / shape[0], pad=0.02, aspect=28)
        bar.set_label("% of the truth")
        bar.outline.set_visible(False)
        return figure


def _arrange(count: int, classes: int, in_column: bool) -> tuple[tuple[int, int], float]:
    """Rows and columns of matrices, and the side of one in inches: many classes need more room than a page has."""
    if classes <= WITH_NUMBERS or in_column:
        return (1, count), (COLUMN_WIDTH - 0.5 if in_column else TEXT_WIDTH) / max(2, count)
    return (count, 1), max(TEXT_WIDTH, 0.115 * min(classes, WITH_NAMES))


def _room(names: Sequence[str]) -> float:
    """Inches that long names take beside and below a matrix."""
    longest = max(map(len, names))
    if len(names) > WITH_NAMES or longest <= SHORT:
        return 0.0
    return (longest - SHORT) * (0.07 if len(names) <= WITH_NUMBERS else 0.055)


def _in_percent(matrix: Sequence[Sequence[int]]) -> list[list[float]]:
    """Each row of counts by its sum; a class that does not occur has a row of zeros."""
    return [[100 * count / max(sum(row), 1) for count in row] for row in matrix]


def _draw(panel: Any, percent: list[list[float]]) -> Any:
    image = panel.imshow(percent, cmap="Blues", vmin=0, vmax=100)
    panel.spines[:].set_visible(False)
    panel.tick_params(length=0)
    size, digits = 6.5 if len(percent) > 5 else 9, 1 if len(percent) <= 3 else 0
    if len(percent) <= WITH_NUMBERS:
        for row, values in enumerate(percent):
            for column, value in enumerate(values):
                if value >= 0.5 or row == column:
                    ink = "white" if value > 60 else INK
                    panel.text(column, row, f"{value:.{digits}f}", ha="center", va="center", color=ink, fontsize=size)
    return image


def _name_axes(panel: Any, names: Sequence[str]) -> None:
    if len(names) > WITH_NAMES:  # numbers in place of names
        for axis in (panel.xaxis, panel.yaxis):
            axis.get_major_locator().set_params(integer=True, nbins=10)
        panel.set_xlabel("prediction (number of the class)")
        return
    size = 7.5 if len(names) <= WITH_NUMBERS else 6.5
    fits = max(map(len, names)) * len(names) <= 30  # side by side below the matrix
    turned: dict[str, Any] = {"rotation": 90}
    if len(names) <= WITH_NUMBERS:
        turned = {} if fits else {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
    panel.set_xticks(range(len(names)), names, fontsize=size, parse_math=False, **turned)
    panel.set_yticks(range(len(names)), names, fontsize=size, parse_math=False)
