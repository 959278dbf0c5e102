"""What a trained model can look at: the files among paths, and files as a set of the kind that it was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from tcpvit.data import ImageFiles
from tcpvit.data.images import Fit
from tcpvit.data.volumes.files import VolumeFiles
from tcpvit.data.volumes.folder import fitted, fitted_mask, read_pair
from tcpvit.data.volumes.read import find_volumes, read_volume
from tcpvit.data.volumes.video import find_clips, read_clip
from tcpvit.data.walk import find_images
from tcpvit.inference.loading import LoadedModel


def find_inputs(loaded: LoadedModel, paths: Sequence[Path], leave_out: Sequence[Path] = ()) -> list[Path]:
    """The images, volumes or clips among the paths and below them, without those in folders that we write into."""
    find = find_clips if loaded.takes_clips else find_volumes if loaded.takes_volumes else find_images
    return find(paths, leave_out)


def as_set(loaded: LoadedModel, files: Sequence[str | Path], fit: Fit | None = None) -> ImageFiles | VolumeFiles:
    """The files as a set of the kind that the model was trained on; without a record of that, as ImageNet's are."""
    return (as_volume_files if loaded.takes_volumes else as_image_files)(loaded, files, fit)


def as_image_files(loaded: LoadedModel, files: Sequence[str | Path], fit: Fit | None = None) -> ImageFiles:
    """Images, which are made square."""
    about = loaded.preparation()
    channels, height, width = loaded.image_shape
    if height != width:
        raise ValueError(f"{loaded.name} takes images of {width}×{height} pixels; files are made square")
    return ImageFiles(
        files=tuple(map(str, files)),
        targets=torch.zeros(len(files), dtype=torch.int64),  # not known
        classes=loaded.classes,
        source="the images",
        image_size=height,
        fit=fit or loaded.fit,
        mean=tuple(about["mean"]),
        std=tuple(about["std"]),
        bands=about.get("bands", "all"),
        channels=channels,
        dtype=loaded.dtype,
    )


def as_volume_files(loaded: LoadedModel, files: Sequence[str | Path], fit: Fit | None = None) -> VolumeFiles:
    """Volumes or clips."""
    about = loaded.preparation()
    channels, frames, *size = loaded.image_shape

    def read(file: str) -> NDArray[Any]:
        if loaded.takes_clips:
            return read_clip(file, frames, size[0], stride=loaded.stride, colour=channels == 3)
        return fitted(read_volume(file).voxels, (frames, *size), fit or loaded.fit)

    def read_mask(mask: str, file: str) -> NDArray[Any]:
        return fitted_mask(read_pair(Path(file), Path(mask))[1], (frames, *size), fit or loaded.fit)

    return VolumeFiles(
        files=tuple(map(str, files)),
        read=read,
        read_mask=read_mask,
        shape=loaded.image_shape,
        classes=loaded.classes,
        source="the volumes",
        mean=tuple(about["mean"]),
        std=tuple(about["std"]),
        dtype=loaded.dtype,
    )
