"""Volumes and clips of any size through a trained model: labels, masks as NIfTI files, labelled clips.

A volume larger than what the model was trained on is segmented by windows that overlap, one slab of it at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tcpvit.data.images import Fit
from tcpvit.data.volumes.files import as_trained
from tcpvit.data.volumes.folder import cut_out, fitted, padded, window_corners
from tcpvit.data.volumes.nifti import nifti_bytes
from tcpvit.data.volumes.read import SUFFIXES as VOLUMES
from tcpvit.data.volumes.read import read_volume, stem_of
from tcpvit.data.volumes.video import SUFFIXES as CLIPS
from tcpvit.data.volumes.video import count_frames, read_clip
from tcpvit.data.volumes.volume import Volume
from tcpvit.figures.masks import as_png
from tcpvit.figures.montage import caption_bar, montage
from tcpvit.files import free_names
from tcpvit.inference.loading import LoadedModel

OVERLAP = 0.5  # of neighbouring windows
SHOWN = 16  # frames or slices of a montage


class Segmenter(NamedTuple):
    """How the files of one kind are segmented."""

    read: Callable[[str], Any]  # raises a ValueError that names a bad file
    segment: Callable[[Any], tuple[NDArray[np.uint8], bytes, bytes]]  # the class of each pixel or voxel, and both files
    names: list[tuple[Path, Path]]  # of the mask and of the overlay of each file


def volume_segmenter(loaded: LoadedModel, files: Sequence[str | Path], fit: Fit, device: torch.device) -> Segmenter:
    """Masks as NIfTI files in the orientation of each volume, and montages."""

    def read(file: str) -> tuple[Volume, NDArray[Any]]:
        volume = read_volume(file)
        return volume, as_trained(volume.voxels, file, loaded.image_shape[0], loaded.dtype)

    def segment(found: tuple[Volume, NDArray[Any]]) -> tuple[NDArray[np.uint8], bytes, bytes]:
        volume, voxels = found
        mask = segment_volume(loaded, voxels, device, fit)
        return mask, nifti_bytes(mask, volume.affine), as_png(montage(volume.voxels, mask, SHOWN))

    names = free_names(map(Path, files), lambda file, n: f"{stem_of(file)}-{n}" if n > 1 else stem_of(file))
    return Segmenter(read, segment, [(Path(f"{name}.nii.gz"), Path(f"{name}.png")) for name in names])


def segment_volume(
    loaded: LoadedModel, voxels: NDArray[Any], device: torch.device, fit: Fit = "crop"
) -> NDArray[np.uint8]:
    """The class of each voxel, (T, H, W) uint8, of a volume (C, T, H, W) of any size.

    By windows of the size of the training ("crop"), or resized to it and back ("squash").
    """
    channels, *window = loaded.image_shape
    if voxels.shape[0] != channels:
        raise ValueError(f"the volume has {voxels.shape[0]} channels, where {channels} are expected")

    def logits_of(part: NDArray[Any]) -> Tensor:
        images = torch.from_numpy(np.ascontiguousarray(part))[None].to(device)
        logits: Tensor = loaded.model(loaded.normalise(images))[0]
        loaded.check_classes(len(logits))
        return logits.float().cpu()

    if fit == "squash":
        logits = logits_of(fitted(voxels, tuple(window), "squash"))
        enlarged = nn.functional.interpolate(logits[None], voxels.shape[1:], mode="trilinear", align_corners=False)
        return enlarged[0].argmax(0).to(torch.uint8).numpy()
    return slide(logits_of, voxels, tuple(window), len(loaded.classes))


def slide(logits_of: Any, voxels: NDArray[Any], window: tuple[int, ...], classes: int) -> NDArray[np.uint8]:
    """The likeliest class of each voxel by overlapping windows, those near the middle of a window counting most.

    Logits are kept for one slab, as deep as a window, at a time: what lies behind it is decided and forgotten. All
    classes are weighted alike, so that the largest weighted sum is the largest mean.
    """
    shape = voxels.shape[1:]
    wide = padded(voxels, window, voxels.min())
    whole = wide.shape[1:]
    mask = np.empty(whole, dtype=np.uint8)
    weight = _weights(window)
    slab = torch.zeros(classes, window[0], *whole[1:])
    corners = window_corners(whole, window, OVERLAP)
    starts = sorted({corner[0] for corner in corners})
    for top, following in zip(starts, [*starts[1:], whole[0]], strict=True):
        for _, y, x in (corner for corner in corners if corner[0] == top):
            part = cut_out(wide, (top, y, x), window)
            slab[:, :, y : y + window[1], x : x + window[2]] += weight * logits_of(part)
        done = min(following - top, window[0])
        mask[top : top + done] = slab[:, :done].argmax(0).to(torch.uint8).numpy()
        slab = torch.cat([slab[:, done:], torch.zeros(classes, done, *whole[1:])], 1)
    around = [(large - small) // 2 for large, small in zip(whole, shape, strict=True)]
    return mask[tuple(slice(start, start + side) for start, side in zip(around, shape, strict=True))]


def _weights(window: tuple[int, ...]) -> Tensor:
    """(T, H, W): highest in the middle, falling to the sides of the window, nowhere zero."""
    weight = torch.ones(())
    for side in window:
        ramp = 1 - (torch.arange(side) - (side - 1) / 2).abs() / (side / 2 + 0.5)
        weight = weight[..., None] * ramp
    return weight


def is_volume_or_clip(path: Path) -> bool:
    """By its name, or as a folder."""
    name = path.name.lower()
    return path.is_dir() or (name.endswith((*VOLUMES, *CLIPS)) and not name.endswith((".tif", ".tiff", ".gif")))


def montage_of(file: str, frames: int = SHOWN) -> NDArray[np.uint8]:
    """A volume or clip as one image, (H, W, 3): slices or frames in rows."""
    try:
        voxels = read_volume(file).voxels
    except ValueError:
        voxels = read_clip(file, min(frames, 8), 128)
    return montage(voxels, None, frames)


def labelled_frames(file: str, label: str, *, frames: int = 64, size: int = 256) -> list[NDArray[np.uint8]]:
    """Frames (H, W, 3) of a clip with its label written into a bar below."""
    number = min(frames, count_frames(Path(file)))
    clip = read_clip(file, number, size)
    bar = caption_bar(label, size)
    return [np.concatenate([frame, bar]) for frame in clip.transpose(1, 2, 3, 0)]
