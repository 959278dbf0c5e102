"""What `tcpvit predict` does with a segmenter: a mask and an overlay for each picture, at the picture's own size."""

from __future__ import annotations

import colorsys
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn
from torch.nn import functional as F

from tcpvit.data.augment import normalise
from tcpvit.data.image_set import IGNORE
from tcpvit.data.pictures import BILINEAR, Fit, OnBad, list_bad, read_picture
from tcpvit.training.build import find_device
from tcpvit.training.links import write_inside
from tcpvit.training.recipe import Recipe
from tcpvit.training.trained import Trained

# Okabe and Ito's colours for the first classes; class 0 is left as it is in overlays.
COLOURS = ((0, 0, 0), (0, 158, 115), (213, 94, 0), (0, 114, 178), (204, 121, 167), (230, 159, 0), (86, 180, 233))
TINT = 0.5  # of a class over its picture
LONGEST = 8  # times the size of the training: the longer side of what the model sees
LINE = (255, 255, 255)  # around it
KINDS = ("masks", "overlays")  # the folders that are written


@dataclass(frozen=True)
class Segmented:
    """The files that were written for a picture, and the share of its pixels that each class has."""

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
        """The picture that a sheet shows."""
        return self.overlay


@torch.inference_mode()
def segment_files(
    trained: Trained,
    files: Sequence[str | Path],
    folder: Path,
    *,
    fit: Fit | None = None,
    on_bad: OnBad = "skip",
    device: str = "auto",
) -> tuple[list[Segmented], list[str]]:
    """Write folder/masks and folder/overlays; also gives a sentence for each file that could not be read."""
    _check_folder(folder, files)
    at = find_device(Recipe(device=device))
    model = trained.model.to(at).eval()
    about = _preparation(trained)
    fit = fit or trained.fit
    found: list[Segmented] = []
    bad: list[str] = []
    console = Console(stderr=True)
    steps = track(files, "segmenting", console=console, transient=True, disable=not console.is_terminal)
    for file, name in zip(steps, _names(files), strict=True):
        try:
            picture = read_picture(str(file))
        except Exception as error:  # a damaged file can fail anywhere in Pillow
            bad.append(f"{file} ({error or type(error).__name__})")
            if on_bad == "stop":
                raise ValueError(
                    f"{list_bad(bad, len(files))}; mend or remove it, or go on with --on-bad skip"
                ) from None
            continue
        mask = segment_picture(model, picture, about, fit, at)
        for kind, drawn in zip(KINDS, (as_palette(mask), overlay(picture, mask)), strict=True):
            write_inside(folder, Path(kind, name), _as_png(drawn))
        counts = np.bincount(mask.ravel(), minlength=len(about["classes"])) / mask.size
        shares = dict(zip(about["classes"], counts.tolist(), strict=True))
        found.append(Segmented(str(file), str(folder / "masks" / name), str(folder / "overlays" / name), shares))
    if not found:
        raise ValueError(f"{list_bad(bad, len(files))}; no picture is left")
    return found, bad


def _as_png(picture: Image.Image) -> bytes:
    content = io.BytesIO()
    picture.save(content, format="PNG")
    return content.getvalue()


def _check_folder(folder: Path, files: Sequence[str | Path]) -> None:
    """Earlier predictions are written over, the user's own pictures never: ours are masks/ and overlays/ alone."""
    there = [folder / kind for kind in KINDS if (folder / kind).exists()]
    if not there:
        return
    paths = [path for file in files for path in (Path(file).resolve(), Path(os.path.abspath(file)))]
    read = {parent for path in paths for parent in path.parents}
    places = [path for place in there for path in (place.resolve(), Path(os.path.abspath(place)))]
    if len(there) < len(KINDS) or (folder / "images").exists() or not read.isdisjoint(places):
        raise ValueError(
            f"{' and '.join(map(str, there))} {'is' if len(there) == 1 else 'are'} there already and may hold pictures "
            "or masks of your own; name another folder with --pictures"
        )


def segment_picture(
    model: nn.Module, picture: Image.Image, about: dict[str, Any], fit: Fit, device: torch.device
) -> np.ndarray:
    """The class of each pixel, (H, W) uint8, of a picture of any size.

    The model sees it at the size of its training: squashed to it, or with `fit="crop"` in its own shape with the
    shorter side of that size, so that nothing is cut off.
    """
    size = model_size(picture.size, tuple(about["image_shape"][1:]), fit)
    pixels = np.asarray(picture.resize(size, BILINEAR)).transpose(2, 0, 1)
    images = normalise(torch.tensor(pixels[None]).to(device).float(), tuple(about["mean"]), tuple(about["std"]))
    return likeliest(model(images)[0].float(), (picture.height, picture.width))


def model_size(picture: tuple[int, int], trained: tuple[int, ...], fit: Fit) -> tuple[int, int]:
    """(width, height) that the model sees of a picture (width, height), when trained on (height, width).

    A picture that is a mere strip loses its shape: attention reads every pair of patches.

    >>> model_size((600, 400), (128, 128), "squash"), model_size((600, 400), (128, 128), "crop")
    ((128, 128), (192, 128))
    >>> model_size((1, 700), (128, 128), "crop")
    (128, 1024)
    """
    height, width = trained
    if fit == "squash":
        return width, height
    scale, longest = min(trained) / min(picture), LONGEST * min(trained)
    return min(round(picture[0] * scale), longest), min(round(picture[1] * scale), longest)


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
    """Class ids as a picture with a palette: a program reads the ids, a person sees colours."""
    picture = Image.fromarray(mask).convert("L")
    picture.putpalette(palette().ravel().tolist())
    return picture


def palette() -> np.ndarray:
    """(256, 3) uint8: a colour for each class; 255, which is ignored, is grey."""
    hues = [colorsys.hsv_to_rgb(0.618 * k % 1, 0.65, 0.9) for k in range(256 - len(COLOURS))]
    colours = np.concatenate([np.array(COLOURS), 255 * np.array(hues)]).astype(np.uint8)
    colours[255] = 154
    return colours


def overlay(picture: Image.Image, mask: np.ndarray) -> Image.Image:
    """The picture with every class but the first tinted, and a line where classes meet."""
    pixels = np.asarray(picture).copy()
    tinted = mask > 0
    pixels[tinted] = (1 - TINT) * pixels[tinted] + TINT * palette()[mask[tinted]]
    edges = np.zeros_like(tinted)
    edges[:, 1:] |= mask[:, 1:] != mask[:, :-1]
    edges[1:] |= mask[1:] != mask[:-1]
    pixels[edges] = LINE
    return Image.fromarray(pixels)


def _preparation(trained: Trained) -> dict[str, Any]:
    """How the model's pictures are prepared, if masks of bytes and colour pictures will do."""
    about = trained.preparation()
    if len(about["classes"]) > IGNORE:
        raise ValueError(f"{trained.name} has {len(about['classes'])} classes; a mask of bytes holds {IGNORE} at most")
    if about["image_shape"][0] != 3:
        raise ValueError(
            f"{trained.name} takes pictures of {about['image_shape'][0]} channels; `tcpvit predict` reads colour ones"
        )
    return about


def _names(files: Sequence[str | Path]) -> list[Path]:
    """A .png for each file, in the folders that the files lie in below their common one; no two are the same."""
    paths = [Path(os.path.abspath(file)) for file in files]  # as they are named, also where they are links
    common = os.path.commonpath([path.parent for path in paths])
    names: list[Path] = []
    taken: set[str] = set()
    for path in paths:
        place = path.relative_to(common)
        name, longer = place.with_suffix(".png"), f"{path.name}.png"
        while str(name).lower() in taken:  # cat.jpg and cat.png, or Cat.jpg where upper case does not count
            name, longer = place.with_name(longer), f"{longer}.png"
        taken.add(str(name).lower())
        names.append(name)
    return names
