"""Volumes and clips of any size through a trained model: labels, masks as NIfTI files, labelled clips.

A volume larger than what the model was trained on is segmented by windows that overlap, one slab of it at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tcpvit.data.augment import normalise
from tcpvit.data.image_set import PIXEL_SCALE
from tcpvit.data.images import Fit, OnBad
from tcpvit.data.volumes.files import VolumeFiles, as_trained
from tcpvit.data.volumes.folder import cut_out, fitted, fitted_mask, padded, read_pair, window_corners
from tcpvit.data.volumes.nifti import nifti_bytes
from tcpvit.data.volumes.read import SUFFIXES as VOLUMES
from tcpvit.data.volumes.read import find_volumes, read_volume, stem_of
from tcpvit.data.volumes.video import SUFFIXES as CLIPS
from tcpvit.data.volumes.video import count_frames, find_clips, read_clip
from tcpvit.data.volumes.volume import Volume
from tcpvit.figures.montage import caption_bar, montage
from tcpvit.inference.loading import LoadedModel
from tcpvit.inference.masks import Segmented, as_png, write_masks
from tcpvit.progress import Progress
from tcpvit.training.build import find_device
from tcpvit.training.recipe import Recipe

OVERLAP = 0.5  # of neighbouring windows
SHOWN = 16  # frames or slices of a montage


def takes_volumes(loaded: LoadedModel) -> bool:
    """Whether the images of a model have three axes."""
    config = loaded.config
    return len(loaded.preprocessing["image_shape"]) == 4 if loaded.preprocessing else getattr(config, "ndim", 2) == 3


def takes_clips(loaded: LoadedModel) -> bool:
    """Whether they are clips."""
    return takes_volumes(loaded) and (loaded.preprocessing or {}).get("unit") == "clips"


def find_files(loaded: LoadedModel, paths: Sequence[Path], leave_out: Sequence[Path] = ()) -> list[Path]:
    """The volumes or clips among the paths and below them, without those in folders that we write into."""
    found = find_clips(paths) if takes_clips(loaded) else find_volumes(paths)
    ours = [folder.resolve() for folder in leave_out if not any(_is_or_below(path, folder) for path in paths)]
    kept = [file for file in found if not any(_is_or_below(file, folder) for folder in ours)]
    if not kept:
        raise ValueError(f"{', '.join(map(str, paths))} holds nothing but what was written here before")
    return kept


def _is_or_below(path: Path, folder: Path) -> bool:
    return path.resolve().is_relative_to(folder.resolve())


def as_volume_files(loaded: LoadedModel, files: Sequence[str | Path], fit: Fit | None = None) -> VolumeFiles:
    """The files as a set of the kind that the model was trained on."""
    about = loaded.preparation()
    channels, frames, *size = about["image_shape"]
    options = loaded.recipe.data.options if loaded.recipe else {}

    def read(file: str) -> NDArray[Any]:
        if takes_clips(loaded):
            return read_clip(file, frames, size[0], stride=options.get("stride"), colour=channels == 3)
        return fitted(read_volume(file).voxels, (frames, *size), fit or loaded.fit)

    def read_mask(mask: str, file: str) -> NDArray[Any]:
        return fitted_mask(read_pair(Path(file), Path(mask))[1], (frames, *size), fit or loaded.fit)

    return VolumeFiles(
        files=tuple(map(str, files)),
        read=read,
        read_mask=read_mask,
        shape=tuple(about["image_shape"]),
        classes=tuple(about["classes"]),
        source="the volumes",
        mean=tuple(about["mean"]),
        std=tuple(about["std"]),
        dtype=loaded.dtype,
    )


@torch.inference_mode()
def segment_volumes(
    loaded: LoadedModel,
    files: Sequence[str | Path],
    folder: Path,
    *,
    fit: Fit | None = None,
    on_bad: OnBad = "skip",
    device: str = "auto",
    progress: Progress | None = None,
) -> tuple[list[Segmented], list[str]]:
    """Write folder/masks/NAME.nii.gz, in the orientation of each file, and folder/overlays/NAME.png, a montage."""
    at = find_device(Recipe(device=device))
    model, about, fit = loaded.model.to(at).eval(), loaded.preparation(), fit or loaded.fit

    def read(file: str) -> tuple[Volume, NDArray[Any]]:
        volume = read_volume(file)
        return volume, as_trained(volume.voxels, file, about["image_shape"][0], loaded.dtype)

    def segment(found: tuple[Volume, NDArray[Any]]) -> tuple[NDArray[np.uint8], bytes, bytes]:
        volume, voxels = found
        mask = segment_volume(model, voxels, about, at, fit)
        return mask, nifti_bytes(mask, volume.affine), as_png(montage(volume.voxels, mask, SHOWN))

    names = [(Path(f"{name}.nii.gz"), Path(f"{name}.png")) for name in _names(files)]
    return write_masks(loaded, files, names, folder, read, segment, on_bad=on_bad, progress=progress)


def _names(files: Sequence[str | Path]) -> list[str]:
    """A name for each file, that of the file with a number where it is taken."""
    names: list[str] = []
    for file in files:
        name, number = stem_of(Path(file)), 1
        free = name
        while free.lower() in map(str.lower, names):
            number, free = number + 1, f"{name}-{number + 1}"
        names.append(free)
    return names


def segment_volume(
    model: nn.Module, voxels: NDArray[Any], about: dict[str, Any], device: torch.device, fit: Fit = "crop"
) -> NDArray[np.uint8]:
    """The class of each voxel, (T, H, W) uint8, of a volume (C, T, H, W) of any size.

    By windows of the size of the training ("crop"), or resized to it and back ("squash").
    """
    channels, *window = about["image_shape"]
    if voxels.shape[0] != channels:
        raise ValueError(f"the volume has {voxels.shape[0]} channels, where {channels} are expected")
    scale = PIXEL_SCALE[torch.from_numpy(voxels[:1, :1, :1, :1]).dtype]

    def logits_of(part: NDArray[Any]) -> Tensor:
        images = torch.from_numpy(np.ascontiguousarray(part))[None].to(device)
        return model(normalise(images, tuple(about["mean"]), tuple(about["std"]), scale))[0].float().cpu()

    if fit == "squash":
        logits = logits_of(fitted(voxels, tuple(window), "squash"))
        enlarged = nn.functional.interpolate(logits[None], voxels.shape[1:], mode="trilinear", align_corners=False)
        return enlarged[0].argmax(0).to(torch.uint8).numpy()
    return slide(logits_of, voxels, tuple(window), len(about["classes"]))


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
