"""Draw the built-in images of the explorer: simple scenes of our own and parts of scikit-learn's two photographs.

    python -m experiments.explorer_images [--out src/tcpvit/inference/page/images]

Each is drawn at 512 pixels with soft light and grain, and reduced to 32 as photographs are.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from tcpvit.inference.page import FILES

SIDE, SMALL = 512, 32
Colour = tuple[int, int, int]
Draw = ImageDraw.ImageDraw


def backdrop(*bands: tuple[float, Colour, Colour]) -> Image.Image:
    """Bands from top to bottom, each with the height where it ends and the colours it runs between."""
    rows, begin = np.zeros((SIDE, 3)), 0
    for end, top, bottom in bands:
        stop = round(end * SIDE)
        rows[begin:stop] = np.linspace(top, bottom, stop - begin)
        begin = stop
    return Image.fromarray(np.broadcast_to(rows[:, None], (SIDE, SIDE, 3)).astype(np.uint8))


def airplane(draw: Draw) -> None:
    """A white one from the side, with a red fin."""
    white, shade = (235, 238, 242), (150, 160, 175)
    draw.polygon([(40, 250), (150, 215), (420, 225), (480, 262), (420, 290), (150, 285)], fill=white)
    draw.polygon([(60, 250), (30, 130), (85, 130), (150, 225)], fill=(170, 40, 50))
    draw.polygon([(210, 270), (130, 420), (190, 425), (320, 275)], fill=shade)
    draw.polygon([(230, 228), (190, 130), (225, 128), (320, 226)], fill=shade)
    draw.line([(150, 285), (420, 290), (480, 262)], fill=shade, width=10)


def ship(draw: Draw) -> None:
    """A dark hull, white decks, a red funnel."""
    draw.polygon([(40, 300), (480, 290), (430, 375), (90, 375)], fill=(60, 45, 50))
    draw.line([(42, 302), (478, 292)], fill=(210, 210, 210), width=10)
    draw.rectangle([140, 225, 370, 298], fill=(232, 232, 228))
    draw.rectangle([190, 175, 320, 228], fill=(222, 222, 218))
    draw.rectangle([225, 95, 275, 176], fill=(190, 60, 50))
    for x in range(155, 360, 34):
        draw.rectangle([x, 245, x + 16, 262], fill=(60, 80, 110))


def automobile(draw: Draw) -> None:
    """A red one from the side."""
    red, dark = (190, 30, 35), (30, 30, 36)
    draw.polygon([(130, 250), (190, 165), (340, 165), (410, 250)], fill=red)
    draw.polygon([(155, 246), (200, 182), (255, 182), (255, 246)], fill=(150, 185, 205))
    draw.polygon([(272, 246), (272, 182), (330, 182), (382, 246)], fill=(150, 185, 205))
    draw.rounded_rectangle([40, 240, 475, 350], 40, fill=red)
    draw.rectangle([44, 318, 470, 340], fill=(120, 15, 20))
    for x in (135, 380):
        draw.ellipse([x - 52, 300, x + 52, 404], fill=dark)
        draw.ellipse([x - 24, 328, x + 24, 376], fill=(190, 190, 195))


def truck(draw: Draw) -> None:
    """A blue cabin and a white box on three axles."""
    draw.rectangle([170, 110, 490, 350], fill=(226, 226, 220))
    draw.rectangle([170, 320, 490, 350], fill=(150, 150, 150))
    draw.polygon([(30, 350), (30, 240), (75, 170), (165, 170), (165, 350)], fill=(40, 80, 160))
    draw.polygon([(45, 240), (84, 186), (140, 186), (140, 240)], fill=(165, 195, 215))
    for x in (95, 260, 420):
        draw.ellipse([x - 48, 310, x + 48, 406], fill=(28, 28, 32))
        draw.ellipse([x - 20, 338, x + 20, 378], fill=(170, 170, 175))


def frog(draw: Draw) -> None:
    """One that sits and looks at you."""
    green, dark = (92, 120, 48), (60, 84, 34)
    draw.ellipse([70, 330, 230, 430], fill=dark)
    draw.ellipse([300, 330, 460, 430], fill=dark)
    draw.ellipse([105, 180, 420, 420], fill=green)
    draw.ellipse([150, 290, 370, 425], fill=(170, 165, 105))
    for x in (165, 355):
        draw.ellipse([x - 48, 120, x + 48, 220], fill=green)
        draw.ellipse([x - 26, 138, x + 26, 190], fill=(215, 180, 60))
        draw.ellipse([x - 12, 150, x + 12, 180], fill=(20, 20, 15))
    draw.arc([165, 200, 360, 300], 20, 160, fill=(45, 60, 25), width=9)


def horse(draw: Draw) -> None:
    """A brown one that looks to the left."""
    brown, dark = (112, 66, 36), (58, 34, 22)
    draw.ellipse([130, 190, 400, 320], fill=brown)
    draw.polygon([(150, 260), (110, 120), (165, 90), (235, 210)], fill=brown)
    draw.polygon([(165, 88), (60, 150), (48, 185), (80, 195), (150, 160)], fill=brown)
    draw.polygon([(150, 95), (160, 60), (178, 95)], fill=dark)
    draw.polygon([(165, 92), (195, 105), (255, 215), (215, 200)], fill=dark)
    draw.polygon([(385, 215), (450, 250), (455, 370), (425, 350), (405, 265)], fill=dark)
    for x in (170, 215, 330, 372):
        draw.polygon([(x - 20, 285), (x + 20, 285), (x + 11, 450), (x - 11, 450)], fill=brown)
        draw.rectangle([x - 13, 428, x + 13, 452], fill=dark)


GROUND, SKY = ((112, 118, 66), (84, 92, 48)), ((120, 165, 215), (190, 212, 232))
SCENES: dict[str, tuple[Callable[[Draw], None], tuple[tuple[float, Colour, Colour], ...]]] = {
    "airplane": (airplane, ((1.0, (80, 135, 205), (175, 205, 235)),)),
    "automobile": (automobile, ((0.45, (150, 158, 150), (120, 128, 112)), (1.0, (118, 118, 120), (92, 92, 94)))),
    "frog": (frog, ((1.0, (128, 106, 74), (92, 74, 50)),)),
    "horse": (horse, ((0.4, *SKY), (1.0, *GROUND))),
    "ship": (ship, ((0.62, (150, 185, 220), (205, 222, 235)), (1.0, (58, 98, 138), (30, 62, 98)))),
    "truck": (truck, ((0.6, (165, 190, 215), (205, 212, 214)), (1.0, (120, 118, 112), (98, 96, 92)))),
}


def scene(name: str, seed: int) -> Image.Image:
    """One of the scenes at its small size."""
    draw_it, bands = SCENES[name]
    image = backdrop(*bands)
    draw_it(ImageDraw.Draw(image))
    image = image.filter(ImageFilter.GaussianBlur(5))
    pixels = np.asarray(image).astype(float)
    light = np.linspace(1.08, 0.86, SIDE)[:, None, None] * np.linspace(0.96, 1.04, SIDE)[None, :, None]
    small = Image.fromarray((pixels * light).clip(0, 255).astype(np.uint8)).resize(
        (SMALL, SMALL), Image.Resampling.BILINEAR
    )
    grain = np.random.default_rng(seed).normal(0, 5, (SMALL, SMALL, 1))
    return Image.fromarray((np.asarray(small) + grain).clip(0, 255).astype(np.uint8))


def photograph(name: str, box: tuple[int, int, int, int]) -> Image.Image:
    """A square part of one of scikit-learn's photographs."""
    from sklearn.datasets import load_sample_image

    return Image.fromarray(load_sample_image(name)).resize((SMALL, SMALL), Image.Resampling.BILINEAR, box=box)


def main() -> None:
    """Write them all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=FILES / "images")
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    images = {name: scene(name, seed) for seed, name in enumerate(SCENES)}
    images |= {
        "flower": photograph("flower.jpg", (100, 0, 527, 427)),
        "temple": photograph("china.jpg", (150, 0, 577, 427)),
    }
    for name, image in images.items():
        image.save(out / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main()
