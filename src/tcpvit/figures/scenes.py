"""Maps of a scene: in false colours, by class, by part of the split, where the prediction is wrong, and how sure it is.

All maps are images (H, W, 3) made from arrays by the functions `colour_…`; `draw_maps` puts them side by side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tcpvit.figures.masks import ERRORS, rgb
from tcpvit.figures.style import TEXT_WIDTH, house_style
from tcpvit.fonts import letters_for

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Colour = tuple[int, int, int]
NONE, TRAIN, VALIDATION, GUARD = (255, 255, 255), (0, 0, 0), (90, 90, 90), (200, 200, 200)
PARTS: dict[str, Colour] = {"training": TRAIN, "validation": VALIDATION, "guard": GUARD}
UNUSED_CODE, TRAIN_CODE, VALIDATION_CODE, TEST_CODE, GUARD_CODE = range(5)  # of a saved split
WIDE = 2.2  # a scene that is so many times as wide as high has its maps below each other
LONGEST = 30  # letters of a name in the legend


def colour_classes(classes: np.ndarray, colours: Sequence[Colour]) -> np.ndarray:
    """Classes (H, W) from 1 in their colours; 0, no class, is white.

    >>> colour_classes(np.array([[0, 1]]), [(9, 8, 7)]).tolist()
    [[[255, 255, 255], [9, 8, 7]]]
    """
    return np.array([NONE, *colours], np.uint8)[classes]


def colour_split(codes: np.ndarray, labels: np.ndarray, colours: Sequence[Colour]) -> np.ndarray:
    """Test pixels in the colour of their class, training pixels black, validation dark and guard pixels light grey."""
    image = colour_classes(np.where(codes == TEST_CODE, labels, 0), colours)
    for code, colour in ((TRAIN_CODE, TRAIN), (VALIDATION_CODE, VALIDATION), (GUARD_CODE, GUARD)):
        image[codes == code] = colour
    return image


def colour_errors(labels: np.ndarray, classes: np.ndarray, counted: np.ndarray) -> np.ndarray:
    """Light green where a counted pixel is right, dark red where it is wrong, white where nothing is counted."""
    right, wrong = rgb(ERRORS["correct"]), rgb(ERRORS["wrong"])
    kinds = np.where(counted, 1 + (labels != classes), 0)
    return np.array([NONE, right, wrong], np.uint8)[kinds]


def colour_confidence(confidence: np.ndarray) -> np.ndarray:
    """Confidences (H, W) from 0, dark, to 1, light."""
    return np.repeat(np.rint(255 * confidence.clip(0, 1)).astype(np.uint8)[:, :, None], 3, 2)


def draw_maps(
    maps: Mapping[str, np.ndarray], classes: Mapping[str, Colour], parts: Mapping[str, Colour] | None = None
) -> Figure:
    """Maps (H, W, 3) under their titles, three in a row, or below each other if they are wide; the colours below.

    `classes` are the names of the classes with their colours, `parts` further colours, as `PARTS` of a split.

    >>> image = np.zeros((4, 5, 3), np.uint8)
    >>> figure = draw_maps({"truth": image, "prediction": image}, {"wheat": (200, 180, 40)})
    >>> [panel.get_title() for panel in figure.axes]
    ['truth', 'prediction']
    """
    if not maps:
        raise ValueError("draw_maps needs at least one map, got none")
    letters = letters_for([*maps, *classes])
    height, width = next(iter(maps.values())).shape[:2]
    columns = 1 if width > WIDE * height else min(len(maps), 3)
    rows = -(-len(maps) // columns)
    names = [(letters.shortened(name, LONGEST), colour) for name, colour in [*classes.items(), *(parts or {}).items()]]
    per_line = _per_line(names)
    panel_height = min((TEXT_WIDTH - 0.1) / columns * height / width, 7.5 / rows)
    legend_height = 0.13 * -(-len(names) // per_line) + 0.12
    with house_style(letters.families) as Figure:
        figure = Figure(figsize=(TEXT_WIDTH, rows * (panel_height + 0.22) + legend_height), layout="constrained")
        layout: Any = figure.get_layout_engine()
        layout.set(w_pad=0.02, h_pad=0.03, wspace=0.01, hspace=0.01)
        panels = figure.subplots(rows, columns, squeeze=False).ravel()
        for panel in panels[len(maps) :]:
            panel.remove()
        for panel, (title, image) in zip(panels, maps.items(), strict=False):
            panel.imshow(image, interpolation="nearest" if max(image.shape) < 800 else "auto")
            panel.set_title(letters.shown(title), pad=3)
            panel.set_xticks([])
            panel.set_yticks([])
            for spine in panel.spines.values():
                spine.set(visible=True, linewidth=0.4, color="#bbbbbb")
        _legend(figure, names, per_line)
        return figure


def _per_line(names: Sequence[tuple[str, Colour]]) -> int:
    """How many names of this length stand beside each other."""
    longest = max((sum(2 if ord(letter) > 0x2E80 else 1 for letter in name) for name, _ in names), default=1)
    return max(1, int(TEXT_WIDTH / (0.058 * longest + 0.3)))


def _legend(figure: Figure, names: Sequence[tuple[str, Colour]], per_line: int) -> None:
    from matplotlib.patches import Patch

    handles = [
        Patch(facecolor="#{:02x}{:02x}{:02x}".format(*colour), edgecolor="#888888", linewidth=0.4, label=name)
        for name, colour in names
    ]
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=min(per_line, len(handles)) or 1,
        fontsize=7,
        handlelength=1.0,
        handleheight=0.9,
        columnspacing=1.0,
        labelspacing=0.3,
    )
