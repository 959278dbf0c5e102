from __future__ import annotations

import sys

import numpy as np
import torch

from tcpvit.data import ImageSet, contact_sheet
from tcpvit.data.contact_sheet import CELL, GAP, MARGIN, TINTS


def pixels(sheet) -> np.ndarray:
    return np.asarray(sheet)


def test_a_row_for_each_class():
    images = torch.cat([torch.full((4, 3, 16, 16), 50), torch.full((4, 3, 16, 16), 200)]).to(torch.uint8)
    data = ImageSet(images, torch.tensor([0] * 4 + [1] * 4), classes=("dark", "bright"), source="made")
    sheet = pixels(contact_sheet(data, columns=3))
    assert sheet.shape[0] == 2 * MARGIN + 2 * CELL + GAP
    right = sheet.shape[1] - MARGIN - CELL // 2
    assert (sheet[MARGIN + CELL // 2, right] == 50).all()
    assert (sheet[MARGIN + CELL + GAP + CELL // 2, right] == 200).all()


def test_masks_are_tinted():
    images = torch.full((4, 3, 32, 32), 100, dtype=torch.uint8)
    masks = torch.zeros(4, 32, 32, dtype=torch.uint8)
    masks[:, 16:] = 1
    sheet = pixels(contact_sheet(ImageSet(images, masks, classes=("a", "b"), source="made"), columns=2))
    left = sheet.shape[1] - MARGIN - CELL
    mask = sheet[MARGIN + CELL + GAP :, left : left + CELL]
    assert np.ptp(mask[CELL // 4, CELL // 2]) == 0  # grey
    assert np.abs(mask[3 * CELL // 4, CELL // 2].astype(int) - TINTS[0].numpy()).max() < 40


def test_other_channels_are_shown_as_they_can_be():
    for channels in (1, 2, 5):
        images = torch.zeros(4, channels, 8, 8, dtype=torch.uint8)
        data = ImageSet(images, torch.arange(4) % 2, classes=("a", "b"), source="made", mean=(0.5,) * channels,
                        std=(0.5,) * channels)  # fmt: skip
        assert contact_sheet(data, columns=2).mode == "RGB"


def test_large_images_are_reduced():
    images = torch.full((2, 3, 300, 300), 77, dtype=torch.uint8)
    sheet = pixels(contact_sheet(ImageSet(images, torch.arange(2), classes=("a", "b"), source="made"), columns=1))
    assert sheet.shape[0] == 2 * MARGIN + 2 * CELL + GAP


def test_names_of_any_script_are_drawn_or_shown_as_codes(monkeypatch):
    """Two names that differ in one letter look different: no letter becomes an empty box."""
    images, labels = torch.zeros(2, 3, 8, 8, dtype=torch.uint8), torch.arange(2)

    def name_of(name: str) -> np.ndarray:
        sheet = pixels(contact_sheet(ImageSet(images, labels, classes=(name, "b"), source="made"), columns=1))
        return sheet[:CELL, : -CELL - 2 * MARGIN]

    def differ() -> bool:
        one, other = name_of("信号"), name_of("信標")
        return one.shape != other.shape or bool((one != other).any())

    assert differ()
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # without it no font is found
    assert differ()
