"""The figure of the sign argument: a clip, the same played backwards, and the hat slices of both."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tcpvit.algebra import get_transform
from tcpvit.data import load_dataset
from tcpvit.figures.style import house_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_signs() -> Figure:
    """Rows: frames, their hat slices, the frames backwards, their hat slices."""
    part = load_dataset("moving-digits", sizes=(8, 4, 4), seed=1).train
    clip = (part.images[0, 0].float() - 128) / 127  # (T, H, W)
    dct = get_transform("dct", len(clip))
    forward, backward = (dct.to_hat(frames, dim=0) for frames in (clip, clip.flip(0)))
    signs = torch.tensor([(-1.0) ** k for k in range(len(clip))])[:, None, None]
    assert torch.allclose(backward, signs * forward, atol=1e-5)
    rows = {"frames": clip, "hat slices": forward, "backwards": clip.flip(0), "hat slices of it": backward}
    with house_style() as Figure:
        figure = Figure(figsize=(7.2, 3.75))
        axes = figure.subplots(4, len(clip))
        for (name, images), row in zip(rows.items(), axes, strict=True):
            for k, (panel, image) in enumerate(zip(row, images, strict=True)):
                most = 1.0 if "slices" not in name else float(forward[k].abs().max())
                panel.imshow(image, cmap="RdBu_r" if "slices" in name else "gray", vmin=-most, vmax=most)
                panel.set_xticks([])
                panel.set_yticks([])
                if name == "frames":
                    panel.set_title(f"frame {k}", fontsize=6)
                elif name == "hat slices":
                    panel.set_title(f"slice {k}", fontsize=6, pad=2)
                elif "of it" in name:
                    panel.set_title("same" if k % 2 == 0 else "sign changed", fontsize=6, pad=2)
            row[0].set_ylabel(name, fontsize=6)
        figure.subplots_adjust(0.045, 0.01, 0.995, 0.95, 0.06, 0.16)
        return figure
