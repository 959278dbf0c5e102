"""What the examples on video share: a clip as a tensor, from a file or made here, and its frames as pictures."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from photographs import FIGURES, photograph
from torch import Tensor

PATCH = 4  # pixels along the side of what becomes a tube


def arguments(description: str | None) -> tuple[Tensor, Path]:
    """The clip that `--video` names, or the one made here, and the folder that `--out` names."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--video", type=Path, help="an .npz file with grey 'frames', (T, H, W); else a clip is made")
    parser.add_argument("--out", type=Path, default=FIGURES, help="folder for the figure (default: docs/figures)")
    options = parser.parse_args()
    frames = made_clip() if options.video is None else read_clip(options.video)
    return frames, options.out


def read_clip(path: Path) -> Tensor:
    """Frames (T, H, W) in 0…1, at half of their size."""
    try:
        with np.load(path, allow_pickle=False) as file:
            frames = torch.from_numpy(file["frames"])
    except (OSError, KeyError, ValueError) as error:
        raise SystemExit(f"{path} should be an .npz file with an array 'frames', (T, H, W): {error}") from None
    if frames.ndim != 3:
        raise SystemExit(f"'frames' in {path} should be grey, (T, H, W), got shape {tuple(frames.shape)}")
    frames = frames.float() / (255 if frames.dtype == torch.uint8 else 1)
    frames = torch.nn.functional.avg_pool2d(frames[:, None], 2)[:, 0]
    height, width = (size // PATCH * PATCH for size in frames.shape[1:])
    return frames[:, :height, :width].contiguous()


def made_clip(frames: int = 60) -> Tensor:
    """A photograph with a bright ball that rolls by and a dark box that falls, (T, H, W), and a little noise."""
    background = photograph("china.jpg", width=96).mean(-1)  # (64, 96)
    height, width = background.shape
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    clip = background.repeat(frames, 1, 1)
    for t in range(frames):
        share = t / (frames - 1)
        clip[t][(x - (6 + share * (width - 12))) ** 2 + (y - 46) ** 2 < 49] = 1.0
        clip[t][((x - 22).abs() < 5) & ((y - (share * (height + 20) - 10)).abs() < 5)] = 0.0
    return clip + 0.005 * torch.randn(clip.shape, generator=torch.Generator().manual_seed(0))


def to_tubes(frames: Tensor) -> Tensor:
    """(T, H, W) -> (places, T, PATCH²): a frame is a column, and the pixels of a patch are a tube."""
    T, H, W = frames.shape
    patches = frames.view(T, H // PATCH, PATCH, W // PATCH, PATCH).permute(1, 3, 0, 2, 4)
    return patches.reshape(-1, T, PATCH * PATCH)


def from_tubes(tensor: Tensor, like: Tensor) -> Tensor:
    """The inverse of `to_tubes`, for a clip of the shape of `like`."""
    T, H, W = like.shape
    patches = tensor.view(H // PATCH, W // PATCH, T, PATCH, PATCH)
    return patches.permute(2, 0, 3, 1, 4).reshape(T, H, W)


def picture(frame: Tensor) -> Tensor:
    """A grey frame, (H, W), as a picture, (H, W, 3)."""
    return frame[..., None].expand(-1, -1, 3)
