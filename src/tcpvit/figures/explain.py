"""One figure for one image: its slices, what each contributes, the answer without it, attention by block and head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tcpvit.figures.style import BLUE, FAINT, INK, ORANGE, SKY, house_style, show_image
from tcpvit.fonts import Letters, letters_for

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH, EDGE, GAP, TITLE = 7.2, 0.12, 0.06, 0.2  # inches
PANEL, SMALLEST, LARGEST = 1.18, 0.2, 0.62  # inches: an image, and an attention map
DEPTH = 0.75  # inches: what each depth of a volume contributes
LETTER, NAME_LETTER, SHARE = 0.0685, 0.047, 0.41  # inches: a wide letter of a label, one of a name, "  78 %" and a gap
STEP, ROWS = 0.42, 4  # the height of a row of the answer, and how many have room at least
SLICES = 3  # shown; a longer tube is shown by its first slices
COLOURS = (INK, ORANGE, SKY)
PLAIN: dict[str, Any] = {"parse_math": False}


@dataclass(frozen=True)
class Row:
    """A bar of the answer: what was taken away, the label that is then found, and the share of the first answer."""

    name: str
    label: str
    share: float


def draw_explanation(
    title: str,
    pixels: np.ndarray,
    slices: np.ndarray | None,
    by_slice: np.ndarray,
    rollout: np.ndarray,
    attention: np.ndarray,
    rows: Sequence[Row],
    mask: np.ndarray | None = None,
    changed: np.ndarray | None = None,
    by_depth: np.ndarray | None = None,
    change: str = "changes",
    who: str = "the class token looks",
) -> Figure:
    """The image (H, W, 3) uint8 with its slices (C, H, W, 3), contributions (C, h, w), rollout (S, h, w) and attention
    (L, S, heads, h, w); of a segmenter also the mask over the image (H, W, 3), and the pixels (C, H, W) that change
    without a slice, or what else `change` calls them; of a volume the contributions by depth (t,). Attention is where
    `who` says."""
    letters = letters_for([title, *(row.label for row in rows)])
    with house_style(letters.families) as Figure:
        columns = 1 + min(len(by_slice), SLICES)
        bands = [band for band in (slices, by_slice, changed) if band is not None]
        top = TITLE + 0.1
        side, split = _map_side(attention)
        below_rows = 0 if by_depth is None else DEPTH
        least = STEP * min(len(rows), ROWS) + 0.25 + (0.2 if len(rows) > ROWS else 0)  # what the rows need
        tall = max(len(bands) * (PANEL + TITLE), TITLE + least + below_rows)
        left = EDGE + columns * (PANEL + GAP) + 0.3
        _, slices_seen, heads = attention.shape[:3]
        beside = 0.75 + slices_seen * ((heads + 1) * (side + GAP) + split) < left  # the maps leave the rows their room
        above = top + (len(bands) * (PANEL + TITLE) if beside else tall)
        height = max(above + 0.5 + attention.shape[0] * (side + GAP), top + tall) + EDGE
        figure = Figure(figsize=(WIDTH, height))
        canvas = _Canvas(figure, height)
        canvas.write(EDGE, 0.14, letters.shortened(title, 90), weight="bold", fontsize=8.5)
        _draw_images(canvas, top, pixels, slices, by_slice, rollout, mask, changed, change)
        _draw_rows(canvas, left, top + TITLE, tall - TITLE - below_rows, rows, letters)
        if by_depth is not None:
            _draw_depth(canvas, left, top + tall - DEPTH + 0.1, by_depth)
        _draw_attention(canvas, above + 0.18, side, split, attention, who)
        return figure


class _Canvas:
    """A figure whose places are inches from the left and from the top."""

    def __init__(self, figure: Figure, height: float):
        self.figure, self.height = figure, height

    def panel(self, left: float, top: float, width: float, height: float) -> Any:
        place = (left / WIDTH, 1 - (top + height) / self.height, width / WIDTH, height / self.height)
        panel = self.figure.add_axes(place)
        panel.set_axis_off()
        return panel

    def write(self, left: float, top: float, text: str, **style: Any) -> None:
        style = {"fontsize": 7.5, "va": "center", **style, **PLAIN}
        self.figure.text(left / WIDTH, 1 - top / self.height, text, **style)


def _draw_images(
    canvas: _Canvas,
    top: float,
    pixels: np.ndarray,
    slices: np.ndarray | None,
    by_slice: np.ndarray,
    rollout: np.ndarray,
    mask: np.ndarray | None,
    changed: np.ndarray | None,
    change: str,
) -> None:
    """The image and its slices, and below what each slice contributes."""
    shown = min(len(by_slice), SLICES)
    grey = pixels.mean(-1)
    signed_roots = np.sign(by_slice) * np.sqrt(np.abs(by_slice))  # else one patch would hide all others
    strongest = float(np.abs(signed_roots).max()) or 1.0
    lines: list[tuple[str, Any, list[Any]]] = []
    if slices is not None:
        lines.append(("image", pixels, [(f"slice {k}", slices[k], None) for k in range(shown)]))
    totals = [f"grad × input {each.sum():+.2g}".replace("-", "−") for each in by_slice]
    lines.append(("rollout", (pixels, rollout.mean(0)), [(totals[k], None, signed_roots[k]) for k in range(shown)]))
    if changed is not None:
        lines.append(("mask", mask, [(f"{change} without {k}", changed[k], None) for k in range(shown)]))
    for line, (name, first, others) in enumerate(lines):
        y = top + line * (PANEL + TITLE)
        if first is not None:
            canvas.write(EDGE, y + 0.1, name)
            panel = canvas.panel(EDGE, y + TITLE, PANEL, PANEL)
            _show(panel, first if isinstance(first, np.ndarray) else spotlight(*first))
        for k, (title, image, weights) in enumerate(others):
            x = EDGE + (k + 1) * (PANEL + GAP)
            canvas.write(x, y + 0.1, title, color=COLOURS[k])
            panel = canvas.panel(x, y + TITLE, PANEL, PANEL)
            if image is not None:
                _show(panel, image)
            else:
                _show(panel, np.repeat(grey[..., None], 3, -1).astype(np.uint8))
                extent = (-0.5, pixels.shape[1] - 0.5, pixels.shape[0] - 0.5, -0.5)
                style = {"cmap": "RdBu_r", "vmin": -strongest, "vmax": strongest, "alpha": 0.72}
                panel.imshow(weights, extent=extent, interpolation="nearest", **style)


def _draw_rows(canvas: _Canvas, left: float, top: float, height: float, rows: Sequence[Row], letters: Letters) -> None:
    """The answer with everything, and without each slice."""
    width = WIDTH - left - EDGE
    canvas.write(left, top - 0.1, "the answer, and without a slice")
    for i, row in enumerate(rows):
        y = top + i * STEP
        if y + STEP > top + height - 0.25:
            canvas.write(left, y + 0.1, f"and {len(rows) - i} more", color="#777777")
            break
        panel = canvas.panel(left, y + 0.22, width, 0.09)
        panel.barh(0, 1, 1, color=FAINT)
        panel.barh(0, row.share, 1, color=BLUE if i == 0 else COLOURS[(i - 1) % 3] if len(rows) <= 4 else SKY)
        panel.set_xlim(0, 1)
        panel.set_ylim(-0.5, 0.5)
        canvas.write(left, y + 0.12, row.name)
        room = int((width - SHARE - NAME_LETTER * len(row.name)) / LETTER)  # beside the name, for the label
        found = f"{letters.shortened(row.label, max(room, 6))}  {100 * row.share:.0f} %"
        canvas.write(left + width, y + 0.12, found, ha="right", weight="bold" if i == 0 else "normal")
    for line, text in enumerate(("gradient × input: red patches speak", "for the answer, blue ones against it")):
        canvas.write(left, top + height - 0.22 + 0.14 * line, text, fontsize=6.5, color="#777777")


def _draw_depth(canvas: _Canvas, left: float, top: float, by_depth: np.ndarray) -> None:
    """What each depth of a volume contributes, from its first patches to its last."""
    canvas.write(left, top, "gradient × input by depth")
    panel = canvas.panel(left, top + 0.12, WIDTH - left - EDGE, 0.42)
    colours = [ORANGE if value > 0 else BLUE for value in by_depth]
    panel.bar(range(len(by_depth)), by_depth, 0.8, color=colours)
    panel.axhline(0, color=INK, linewidth=0.5)


def _map_side(attention: np.ndarray) -> tuple[float, float]:
    """How wide an attention map is, and how far groups of slices stand apart."""
    _, slices, heads = attention.shape[:3]
    split, across = 0.14, slices * (heads + 1)
    side = (WIDTH - 0.75 - EDGE - across * GAP - (slices - 1) * split) / across
    return min(LARGEST, max(side, SMALLEST)), split


def _draw_attention(canvas: _Canvas, top: float, side: float, split: float, attention: np.ndarray, who: str) -> None:
    """Attention: a row for each block, a column for each head of each slice, then their mean."""
    blocks, slices, heads = attention.shape[:3]
    canvas.write(EDGE, top, f"where {who}")
    for block in range(blocks):
        y = top + 0.32 + block * (side + GAP)
        canvas.write(EDGE, y + side / 2, f"block {block + 1}", fontsize=7)
        for s in range(slices):
            for head in range(heads + 1):
                x = 0.75 + s * ((heads + 1) * (side + GAP) + split) + head * (side + GAP)
                weights = attention[block, s, head] if head < heads else attention[block, s].mean(0)
                panel = canvas.panel(x, y, side, side)
                panel.imshow(weights, cmap="viridis", vmin=0, interpolation="nearest", aspect="auto")
                if block == 0:
                    name = str(head + 1) if head < heads else "mean"
                    colour = COLOURS[s % 3] if slices > 1 else INK
                    canvas.write(x + side / 2, y - 0.08, name, fontsize=6, ha="center", color=colour)
        if block == 0 and slices > 1:
            for s in range(slices):
                x = 0.75 + s * ((heads + 1) * (side + GAP) + split)
                canvas.write(x, y - 0.2, f"slice {s}", fontsize=7, color=COLOURS[s % 3])


def spotlight(pixels: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The image (H, W, 3), light where the weights (h, w) are large and dark elsewhere.

    >>> spotlight(np.full((2, 2, 3), 200, np.uint8), np.array([[1.0, 0.0]]))[0, :, 0].tolist()
    [200, 30]
    """
    height, width = (full // part for full, part in zip(pixels.shape, weights.shape, strict=False))
    share = np.sqrt(weights / max(float(weights.max()), 1e-12)).repeat(height, 0).repeat(width, 1)
    return (pixels * (0.15 + 0.85 * share[..., None])).astype(np.uint8)


def _show(panel: Any, image: np.ndarray) -> None:
    mono: dict[str, Any] = {"cmap": "gray_r", "vmin": -0.1, "vmax": 1} if image.ndim == 2 else {}  # 0 is no white
    show_image(panel, image, aspect="auto", **mono)
