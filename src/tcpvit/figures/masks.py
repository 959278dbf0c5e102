"""Masks over their images: colours that differ in lightness too, and a line where classes meet, for grey prints."""

from __future__ import annotations

import colorsys
import io

import numpy as np
from PIL import Image

IGNORED = 255
UNKNOWN = "#9a9a9a"
ERRORS = {"correct": "#b5e3bf", "wrong": "#b2182b", "ignored": UNKNOWN}  # light, dark, between
# Okabe and Ito's colours for the first classes; class 0 is left as it is in overlays.
COLOURS = ((0, 0, 0), (0, 158, 115), (213, 94, 0), (0, 114, 178), (204, 121, 167), (230, 159, 0), (86, 180, 233))
LINE = (255, 255, 255)  # where classes meet


def overlay(image: np.ndarray, mask: np.ndarray, *, strength: float = 0.5, edges: bool = False) -> np.ndarray:
    """(H, W, 3) uint8: the image with every class but 0 tinted in its colour; `edges` adds a line where classes meet.

    >>> overlay(np.zeros((1, 3, 3), dtype=np.uint8), np.array([[0, 1, 255]])).tolist()
    [[[0, 0, 0], [0, 79, 58], [77, 77, 77]]]
    """
    pixels = image.copy()
    tinted = mask > 0
    colours = (1 - strength) * pixels[tinted] + strength * palette()[mask[tinted].astype(np.uint8)]
    pixels[tinted] = colours.round()
    if edges:
        meet = np.zeros_like(tinted)
        meet[:, 1:] |= mask[:, 1:] != mask[:, :-1]
        meet[1:] |= mask[1:] != mask[:-1]
        pixels[meet] = LINE
    return pixels


def palette() -> np.ndarray:
    """(256, 3) uint8: a colour for each class; 255, which is ignored, is grey."""
    hues = [colorsys.hsv_to_rgb(0.618 * k % 1, 0.65, 0.9) for k in range(256 - len(COLOURS))]
    colours = np.concatenate([np.array(COLOURS), 255 * np.array(hues)]).astype(np.uint8)
    colours[IGNORED] = rgb(UNKNOWN)
    return colours


def rgb(color: str) -> tuple[int, int, int]:
    """The three numbers of "#rrggbb"."""
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)


def as_png(image: Image.Image | np.ndarray) -> bytes:
    """An image, or pixels (H, W, 3), as a PNG file."""
    content = io.BytesIO()
    (Image.fromarray(image) if isinstance(image, np.ndarray) else image).save(content, format="PNG")
    return content.getvalue()
