"""A contact sheet: some images of a set in rows by class, masks as a tint, to look at data before training on it."""

from __future__ import annotations

from typing import cast

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from tcpvit.data.decode import as_colour
from tcpvit.data.image_set import IGNORE, Images, resize_images
from tcpvit.data.subsets import draw
from tcpvit.errors import printable
from tcpvit.fonts import letters_for, shorten

CELL, GAP, MARGIN, SIZE = 96, 4, 14, 14  # pixels; the last is that of letters
LONGEST = 28  # letters of a name
INK, PAPER = (45, 45, 45), (255, 255, 255)
TINTS = torch.tensor([(230, 60, 50), (40, 120, 220), (60, 170, 75), (240, 170, 30), (150, 80, 190)])
WHITE = torch.tensor((255, 255, 255))  # ignored pixels


def contact_sheet(data: Images, *, columns: int = 10, rows: int = 10, seed: int = 0) -> Image.Image:
    """Random images, a row for each class; for segmentation, rows of images above their masks as tints."""
    if data.labels is not None:
        lines = []
        for label, name in enumerate(data.classes[:rows]):
            of_class = (data.labels == label).nonzero()[:, 0]
            lines.append((shorten(printable(name), LONGEST), _images(data, _some(of_class, columns, seed))))
    else:
        chosen = _some(torch.arange(len(data)), columns * max(1, rows // 2), seed).split(columns)
        lines = [(name, make(data, part)) for part in chosen for name, make in (("", _images), ("mask", _tinted))]
    return _arrange(lines, columns)


def _some(rows: Tensor, number: int, seed: int) -> Tensor:
    return rows[draw(len(rows), [min(number, len(rows))], seed=seed)[0]]


def _images(data: Images, rows: Tensor) -> Tensor:
    """(n, 3, H, W) uint8, whatever the channels and their type."""
    images = _planes(data.fetch(rows).images.cpu()).movedim(1, -1).numpy()
    return torch.from_numpy(as_colour(images)).movedim(-1, 1)


def _tinted(data: Images, rows: Tensor) -> Tensor:
    """Pale grey images with class k > 0 in the colour of k and ignored pixels in white."""
    batch = data.fetch(rows)
    masks = _planes(batch.targets.cpu().long()[:, None])  # (n, 1, H, W)
    tint = TINTS[(masks[:, 0] - 1).clamp(min=0) % len(TINTS)].permute(0, 3, 1, 2)  # (n, 3, H, W)
    tint = torch.where(masks == IGNORE, WHITE.view(1, 3, 1, 1), tint)
    grey = 100 + 0.4 * _images(data, rows).float().mean(1, keepdim=True).expand_as(tint)
    return torch.where(masks > 0, torch.lerp(grey, tint.float(), 0.8), grey).to(torch.uint8)


def _planes(images: Tensor) -> Tensor:
    """The middle slice of volumes (n, C, T, H, W), or frame of clips; images as they are."""
    return images if images.ndim == 4 else images[:, :, images.shape[2] // 2]


def _arrange(lines: list[tuple[str, Tensor]], columns: int) -> Image.Image:
    names = _lettered([name for name, _ in lines])
    widths = [sum(font.getlength(part) for font, part in name) for name in names]
    left = MARGIN + (int(max(widths)) + MARGIN if any(widths) else 0)
    step = CELL + GAP
    sheet = Image.new("RGB", (left + columns * step + MARGIN - GAP, 2 * MARGIN + len(lines) * step - GAP), PAPER)
    write = ImageDraw.Draw(sheet)
    for row, (name, width, (_, images)) in enumerate(zip(names, widths, lines, strict=True)):
        top, x = MARGIN + row * step, left - MARGIN - width
        for font, part in name:
            write.text((x, top + (CELL + SIZE) // 2 - 2), part, INK, font, anchor="ls")
            x += font.getlength(part)
        for column, cell in enumerate(_to_cells(images)):
            sheet.paste(Image.fromarray(cell.permute(1, 2, 0).numpy()), (left + column * step, top))
    return sheet


def _lettered(names: list[str]) -> list[list[tuple[ImageFont.FreeTypeFont, str]]]:
    """Each name in parts, with a font for each; without matplotlib, which knows the fonts, other letters are codes."""
    try:
        letters = letters_for(names)
    except ImportError:
        font = cast(ImageFont.FreeTypeFont, ImageFont.load_default(SIZE))
        plain = [name.replace("…", "...").encode("latin-1", "backslashreplace").decode("latin-1") for name in names]
        return [[(font, name)] for name in plain]
    return [[(ImageFont.truetype(file, SIZE), part) for file, part in letters.runs(name)] for name in names]


def _to_cells(images: Tensor) -> Tensor:
    """Small images enlarged without blur, large ones reduced."""
    times = CELL // images.shape[-1]
    if times >= 2:
        images = images.repeat_interleave(times, 2).repeat_interleave(times, 3)
    return resize_images(images, CELL)
