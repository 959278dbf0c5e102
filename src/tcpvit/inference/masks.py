"""Segmentation of files: a mask and an overlay for each, at its own size."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from tcpvit.data.decode import as_colour, read_pixels
from tcpvit.data.image_set import IGNORE
from tcpvit.data.images import Fit, OnBad, check_kind, list_bad, resize_pixels, why
from tcpvit.figures.masks import as_png, overlay, palette
from tcpvit.files import names_below_common, write_inside
from tcpvit.inference.loading import LoadedModel
from tcpvit.inference.volumes import Segmenter, volume_segmenter
from tcpvit.progress import Progress
from tcpvit.training.build import find_device
from tcpvit.training.recipe import Recipe

LONGEST = 8  # times the size of the training: the longer side of what the model sees
KINDS = ("masks", "overlays")  # the folders that are written


@dataclass(frozen=True)
class Segmented:
    """The files that were written for an image, and the share of its pixels that each class has."""

    file: str
    mask: str
    overlay: str
    shares: dict[str, float]

    def columns(self) -> dict[str, str]:
        """A line of the CSV."""
        shares = {f"share_{name}": f"{share:.6f}" for name, share in self.shares.items()}
        return {"file": self.file, "mask": self.mask, "overlay": self.overlay, **shares}

    @property
    def caption(self) -> str:
        """What a sheet says of it: the largest class but the first."""
        name, share = max(list(self.shares.items())[1:] or list(self.shares.items()), key=lambda item: item[1])
        return f"{name}  {100 * share:.0f} %"

    @property
    def shown(self) -> str:
        """The image that a sheet shows."""
        return self.overlay


@torch.inference_mode()
def segment_files(
    loaded: LoadedModel,
    files: Sequence[str | Path],
    folder: Path,
    *,
    fit: Fit | None = None,
    on_bad: OnBad = "skip",
    device: str = "auto",
    progress: Progress | None = None,
) -> tuple[list[Segmented], list[str]]:
    """Segment images or volumes into folder/masks and folder/overlays.

    Also gives a sentence for each file that could not be read.
    """
    at = find_device(Recipe(device=device))
    loaded.move_to(at)
    prepare = volume_segmenter if loaded.takes_volumes else image_segmenter
    read, segment, names = prepare(loaded, files, fit or loaded.fit, at)
    classes = loaded.classes
    if len(classes) > IGNORE:
        raise ValueError(f"{loaded.name} has {len(classes)} classes; a mask of bytes holds {IGNORE} at most")
    check_folder(folder, files)
    found: list[Segmented] = []
    bad: list[str] = []
    steps = (progress or Progress()).track(files, "segmenting", len(files))
    for file, own_names in zip(steps, names, strict=True):
        try:
            content = read(str(file))
        except (OSError, ValueError) as error:
            bad.append(str(error))
            if on_bad == "stop":
                raise ValueError(
                    f"{list_bad(bad, len(files))}; repair or remove it, or skip it with --on-bad skip"
                ) from None
            continue
        mask, *written = segment(content)
        places = [Path(kind, name) for kind, name in zip(KINDS, own_names, strict=True)]
        mask_file, overlay_file = map(partial(write_inside, folder), places, written)
        by_part = [np.bincount(part.ravel(), minlength=len(classes)) for part in mask]  # the whole as int64 is large
        counts = np.sum(by_part, axis=0)
        shares = (counts / mask.size).tolist()
        found.append(Segmented(str(file), str(mask_file), str(overlay_file), dict(zip(classes, shares, strict=True))))
    if not found:
        raise ValueError(f"{list_bad(bad, len(files))}; nothing is left to segment")
    return found, bad


def image_segmenter(loaded: LoadedModel, files: Sequence[str | Path], fit: Fit, device: torch.device) -> Segmenter:
    """Masks of bytes with a palette, and images with the mask on them."""

    def read(file: str) -> np.ndarray:
        try:
            pixels = read_pixels(file, loaded.preparation().get("bands", "all"))
            check_kind(pixels, loaded.image_shape[0], loaded.dtype)
        except Exception as error:
            raise ValueError(why(file, error)) from None
        return pixels

    def segment(pixels: np.ndarray) -> tuple[np.ndarray, bytes, bytes]:
        mask = segment_image(loaded, pixels, fit, device)
        return mask, as_png(as_palette(mask)), as_png(overlay(as_colour(pixels), mask, edges=True))

    return Segmenter(read, segment, [(name, name) for name in names_below_common(files, ".png")])


def check_folder(folder: Path, files: Sequence[str | Path]) -> None:
    """Earlier predictions are written over, the user's own images never: ours are masks/ and overlays/ alone."""
    there = [folder / kind for kind in KINDS if (folder / kind).exists()]
    if not there:
        return
    paths = [path for file in files for path in (Path(file).resolve(), Path(os.path.abspath(file)))]
    read = {parent for path in paths for parent in path.parents}
    places = [path for place in there for path in (place.resolve(), Path(os.path.abspath(place)))]
    if len(there) < len(KINDS) or (folder / "images").exists() or not read.isdisjoint(places):
        raise ValueError(
            f"{' and '.join(map(str, there))} {'is' if len(there) == 1 else 'are'} there already and may hold images "
            "or masks of your own; name another folder with --images"
        )


def segment_image(loaded: LoadedModel, pixels: np.ndarray, fit: Fit, device: torch.device) -> np.ndarray:
    """The class of each pixel, (H, W) uint8, of an image (H, W, C) of any size.

    The model sees it at the size of its training: squashed to it, or with `fit="crop"` in its own shape with the
    shorter side of that size, so that nothing is cut off.
    """
    height, width = pixels.shape[:2]
    size = model_size((width, height), loaded.image_shape[1:], fit)
    seen = torch.tensor(resize_pixels(pixels, size).transpose(2, 0, 1)[None])
    logits = loaded.model(loaded.normalise(seen.to(device)))[0]
    loaded.check_classes(len(logits))
    return likeliest(logits.float(), (height, width))


def model_size(image: tuple[int, int], trained: tuple[int, ...], fit: Fit) -> tuple[int, int]:
    """(width, height) that the model sees of an image (width, height), when trained on (height, width).

    An image that is a mere strip loses its shape: attention reads every pair of patches.

    >>> model_size((600, 400), (128, 128), "squash"), model_size((600, 400), (128, 128), "crop")
    ((128, 128), (192, 128))
    >>> model_size((1, 700), (128, 128), "crop")
    (128, 1024)
    """
    height, width = trained
    if fit == "squash":
        return width, height
    scale, longest = min(trained) / min(image), LONGEST * min(trained)
    return min(round(image[0] * scale), longest), min(round(image[1] * scale), longest)


def likeliest(logits: Tensor, size: tuple[int, int]) -> np.ndarray:
    """The class with the highest logit, (K, h, w) enlarged to (H, W); one class at a time, to spare memory."""
    best = torch.full(size, -torch.inf, device=logits.device)
    mask = torch.zeros(size, dtype=torch.uint8, device=logits.device)
    for k, plane in enumerate(logits):
        enlarged = F.interpolate(plane[None, None], size, mode="bilinear", align_corners=False)[0, 0]
        mask[enlarged > best] = k
        best = torch.maximum(best, enlarged)
    return mask.cpu().numpy()


def as_palette(mask: np.ndarray) -> Image.Image:
    """Class ids as an image with a palette: a program reads the ids, a person sees colours."""
    image = Image.fromarray(mask).convert("L")
    image.putpalette(palette().ravel().tolist())
    return image
