"""What the examples share: a photograph as a tensor, how close another one comes to it, and a figure of them."""

from __future__ import annotations

import argparse
import io
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from tcpvit.figures.style import matplotlib_figure

FIGURES = Path(__file__).parent.parent / "docs" / "figures"


def photograph(name: str, width: int = 240) -> Tensor:
    """One of scikit-learn's two photographs, (H, W, 3) in 0…1: the colours are the tube."""
    try:
        from sklearn.datasets import load_sample_image
    except ImportError:
        raise SystemExit(
            "the photographs come with scikit-learn, which is missing: pip install 'tcpvit[demo]'"
        ) from None
    image = torch.tensor(load_sample_image(name)).movedim(-1, 0)[None] / 255  # (1, 3, 427, 640)
    height = round(image.shape[2] * width / image.shape[3])
    return torch.nn.functional.interpolate(image, (height, width), mode="area")[0].movedim(0, -1).contiguous()


def psnr(image: Tensor, truth: Tensor) -> float:
    """Peak signal-to-noise ratio in decibels, of the image as it would be shown."""
    return float(-10 * torch.log10((image.clamp(0, 1) - truth).square().mean()))


def scores(results: dict[str, Tensor], truth: Tensor) -> dict[str, Tensor]:
    """Print how close each image comes to the true one, and write it into its title."""
    titled = {"photograph": truth}
    for name, image in results.items():
        print(f"{name:24}{psnr(image, truth):6.2f} dB")
        titled[f"{name}, {psnr(image, truth):.1f} dB"] = image
    return titled


def image_row(images: dict[str, Tensor], width: float = 3.0) -> Any:
    """One row of colour images, (H, W, 3) with values from 0 to 1 (others are clipped), `width` inches each."""
    tallest = max(image.shape[0] / image.shape[1] for image in images.values())
    lines = max(title.count("\n") + 1 for title in images)
    figure = matplotlib_figure()(
        figsize=(width * len(images), width * tallest + 0.15 + 0.17 * lines), layout="constrained"
    )
    for axes, (title, image) in zip(figure.subplots(1, len(images), squeeze=False)[0], images.items(), strict=True):
        axes.imshow(image.detach().cpu().float().clamp(0, 1).numpy())
        axes.set_title(title, fontsize=9)
        axes.set_axis_off()
    return figure


def save(images: dict[str, Tensor], name: str, folder: Path) -> None:
    """The images in a row, as a PNG of 256 colours: with all colours noise takes three times the bytes."""
    figure = image_row(images)
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=80)
    folder.mkdir(parents=True, exist_ok=True)
    Image.open(buffer).convert("RGB").quantize(256).save(folder / name, optimize=True)
    print(f"wrote {folder / name}")


def folder_of_figures(description: str | None) -> Path:
    """Where `--out` says the figure should go."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=FIGURES, help="folder for the figure (default: docs/figures)")
    out: Path = parser.parse_args().out
    return out
