"""Augmentation of whole batches of pixels: at random for each image, images and masks together.

Every random number is drawn beforehand, for the batch of all ranks, so an image is treated the same way wherever it
is processed. Every slice of a volume and every frame of a clip is moved alike, by `shift_depth` and `flip_depth` along
the third axis too. The order is zoom, shift, flip, symmetry, RandAugment, colour, normalisation, noise, erasing, then
mixup or cutmix, in which neighbours in the batch (2j, 2j+1) exchange part of themselves: the order is random already,
and a pair is never split between ranks, so any number of processes sees the same mixtures.
"""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
from annotated_types import Gt, Le
from torch import Tensor
from typing_extensions import Doc

from tcpvit.data.image_set import IGNORE
from tcpvit.data.randaugment import randaugment
from tcpvit.validation import Flag, Fraction, Natural, NonNegative, dataclass

Draws = dict[str, Tensor]  # uniform numbers in [0, 1), one row for each image

# How many numbers each step may use; always all drawn, so that one option does not change what another one does.
_NUMBERS = {"zoom": 4, "shift": 2, "flip": 1, "colour": 3, "erase": 5, "mix": 3}
_RATIO = math.log(4 / 3)  # zoomed boxes have aspect ratios between 3/4 and 4/3


@dataclass(frozen=True)
class Augment:
    """What happens to a training image, drawn anew each time it is seen. The defaults change nothing.

    The paper's classification recipe is `Augment(shift=4, flip=0.5)`.
    """

    shift: Annotated[
        Natural,
        Le(1024),
        Doc(
            'move by up to this many pixels, "random crop with padding"; black (float images: their least value; '
            "masks: ignored) comes in"
        ),
    ] = 0
    flip: Annotated[Fraction, Doc("probability of mirroring left and right")] = 0.0
    shift_depth: Annotated[
        Natural,
        Le(1024),
        Doc("volumes and clips: move by up to this many slices or frames; black ones come in, as with shift"),
    ] = 0
    flip_depth: Annotated[
        Fraction, Doc("volumes and clips: probability of mirroring front and back, or playing it backwards")
    ] = 0.0
    symmetry: Annotated[
        Flag, Doc("turn and mirror by one of the eight symmetries of the square, as suits what is seen from above")
    ] = False
    zoom: Annotated[
        Fraction, Gt(0), Doc('"random resized crop": the smallest share of the area that is kept; 1 keeps it all')
    ] = 1.0
    colour: Annotated[
        Fraction, Doc("brightness, contrast and saturation change by factors in [1 - colour, 1 + colour]")
    ] = 0.0
    randaugment: Annotated[Natural, Le(100), Doc("how many operations of RandAugment; needs torchvision")] = 0
    magnitude: Annotated[Natural, Le(30), Doc("strength of RandAugment, 0 to 30")] = 9
    noise: Annotated[NonNegative, Doc("standard deviation of noise, where that of each channel is 1")] = 0.0
    flatten: Annotated[
        Fraction,
        Doc("the most that is taken away of an image's differences from its centre pixel: for windows of scenes"),
    ] = 0.0
    erase: Annotated[Fraction, Doc("probability of blanking a rectangle of 2 % to 33 % of the image")] = 0.0
    mixup: Annotated[NonNegative, Le(1000), Doc("α of the Beta distribution of mixup; 0: off")] = 0.0
    cutmix: Annotated[
        NonNegative,
        Le(1000),
        Doc("α of the Beta distribution of cutmix; 0: off. With both on, each pair of images takes one"),
    ] = 0.0

    def check_task(self, task: str, size: tuple[int, ...]) -> None:
        """Masks go along with what moves or recolours the image only; images that are turned are square."""
        deep = [name for name in ("shift_depth", "flip_depth") if getattr(self, name)]
        if deep and len(size) == 2:
            raise ValueError(f"augment.{deep[0]} is for volumes and clips, and these are images; leave it out")
        flat = [name for name in ("randaugment", "flatten") if getattr(self, name)]
        if flat and len(size) == 3:
            raise ValueError(f"augment.{flat[0]} is for images; volumes and clips take shift, flip, zoom and colour")
        unusable = [name for name in (*flat, "erase", "mixup", "cutmix") if getattr(self, name)]
        if task == "segmentation" and unusable:
            raise ValueError(
                f"{unusable[0]} is for classification; segmentation takes shift, flip, symmetry, zoom, colour and noise"
            )
        if self.symmetry and size[-2] != size[-1]:
            raise ValueError(f"augment.symmetry turns square images, got {size[-2]}×{size[-1]}; take augment.flip=0.5")

    @property
    def group(self) -> int:
        """How many neighbours in a batch depend on each other, so that one process must have them all."""
        return 2 if self.mixup or self.cutmix else 1

    @property
    def cutmix_share(self) -> float:
        """How many of the mixtures are cuts."""
        if self.mixup and self.cutmix:
            return 0.5
        return 1.0 if self.cutmix else 0.0

    def draw(self, random: np.random.Generator, number: int) -> Draws:
        """Random numbers for `number` images."""
        draws = {
            name: torch.from_numpy(random.random((number, width), dtype=np.float32)) for name, width in _NUMBERS.items()
        }
        for name in ("mixup", "cutmix"):
            alpha = getattr(self, name) or 1.0
            draws[name] = torch.from_numpy(random.beta(alpha, alpha, number).astype(np.float32))
        if self.randaugment:  # last, so that nothing above depends on it
            draws["randaugment"] = torch.from_numpy(random.random((number, self.randaugment, 2), dtype=np.float32))
        draws["symmetry"] = torch.from_numpy(random.integers(8, size=number))
        draws["noise"] = torch.from_numpy(random.integers(2**63, size=number))  # a seed for each image
        draws["depth"] = torch.from_numpy(random.random((number, 2), dtype=np.float32))
        draws["flatten"] = torch.from_numpy(random.random(number, dtype=np.float32))
        return draws

    def crops(self, draws: Draws) -> Tensor | None:
        """(B, 4) share of the area, aspect ratio, and place of the part of each image that is kept."""
        if self.zoom == 1:
            return None
        area, ratio, x, y = draws["zoom"].unbind(1)
        return torch.stack([self.zoom + (1 - self.zoom) * area, ((2 * ratio - 1) * _RATIO).exp(), x, y], 1)

    def move(self, images: Tensor, targets: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
        """Shift, flip and turn images (B, C, H, W) and masks (B, H, W); volumes have one axis more.

        Images of uint16 become float32. What comes in is 0, or of float images, whose 0 may be anything (water, in
        Hounsfield units), their least value, as around volumes that are too small.
        """
        black: Tensor | int = 0
        if images.is_floating_point() and (self.shift or self.shift_depth):
            black = images.amin(tuple(range(1, images.ndim)), keepdim=True)  # (B, 1, 1, 1)
        images = images if images.dtype == torch.uint8 else images.float()  # few operations know uint16

        def moved(maps: Tensor, fill: Tensor | int) -> Tensor:
            if self.shift or self.flip:
                flip = draws["flip"][:, 0] < self.flip
                offsets = (draws["shift"] * (2 * self.shift + 1)).long()  # 0 .. 2·shift
                maps = shift_and_flip(maps, self.shift, offsets, flip, fill=fill)
            if self.shift_depth or self.flip_depth:
                place, coin = draws["depth"].unbind(1)
                offsets = (place * (2 * self.shift_depth + 1)).long() - self.shift_depth
                maps = shift_and_flip_depth(maps, offsets, coin < self.flip_depth, fill=fill)
            return turn(maps, draws["symmetry"]) if self.symmetry else maps

        return moved(images, black), moved(targets[:, None], IGNORE)[:, 0] if targets.ndim > 1 else targets

    def recolour(self, images: Tensor, draws: Draws, scale: float = 255.0) -> Tensor:
        """Images as float32 up to `scale`, after RandAugment and colour changes."""
        if self.randaugment:
            images = randaugment(images, draws["randaugment"], self.magnitude)
        pixels = images.float()
        return jitter_colour(pixels, 1 + self.colour * (2 * draws["colour"] - 1), scale) if self.colour else pixels

    def mix_and_erase(self, images: Tensor, targets: Tensor, draws: Draws, classes: int) -> tuple[Tensor, Tensor]:
        """Flatten, add noise, erase, mix normalised images; mixed labels are (B, classes) probabilities."""
        if self.flatten:
            images = flatten(images, self.flatten * draws["flatten"])
        if self.noise:
            images = add_noise(images, draws["noise"], self.noise)
        if self.erase:
            images = erase(images, draws["erase"], self.erase)
        if self.mixup or self.cutmix:
            return mix(images, F.one_hot(targets, classes).to(images.dtype), draws, self.cutmix_share)
        return images, targets


def shift_and_flip(images: Tensor, padding: int, offsets: Tensor, flip: Tensor, *, fill: Tensor | int) -> Tensor:
    """Cut each image (B, C, H, W) at its own offset (y, x) out of a frame of `padding` pixels; mirror some.

    The frame is `fill`, a number or one for each image (B, 1, 1, 1). One gather for the batch: several times as fast as
    a loop over images, and the same on every device.
    """
    if images.ndim == 5:
        fill = fill[:, 0] if isinstance(fill, Tensor) else fill
        return shift_and_flip(images.flatten(1, 2), padding, offsets, flip, fill=fill).view_as(images)
    number, channels, height, width = images.shape
    device = images.device
    framed = _framed(images, padding, fill)
    across = torch.arange(width, device=device)
    columns = torch.where(flip.to(device)[:, None], width - 1 - across, across) + offsets[:, 1:].to(device)  # (B, W)
    rows = torch.arange(height, device=device) + offsets[:, :1].to(device)  # (B, H)
    places = rows[:, :, None] * (width + 2 * padding) + columns[:, None, :]  # (B, H, W)
    places = places.view(number, 1, -1).expand(-1, channels, -1)
    return framed.flatten(2).gather(2, places).view_as(images)


def _framed(images: Tensor, padding: int, fill: Tensor | int) -> Tensor:
    """Images (B, C, H, W) with `padding` pixels of `fill` on every side."""
    if not isinstance(fill, Tensor):
        return F.pad(images, (padding,) * 4, value=fill)
    height, width = images.shape[2:]
    framed = fill.repeat(1, images.shape[1], height + 2 * padding, width + 2 * padding)
    framed[:, :, padding : padding + height, padding : padding + width] = images
    return framed


def shift_and_flip_depth(volumes: Tensor, offsets: Tensor, flip: Tensor, *, fill: Tensor | int) -> Tensor:
    """Each volume (B, C, T, H, W) moved by its offset along the depth, some mirrored; slices that come in are `fill`.

    >>> volumes = torch.arange(1, 5).view(1, 1, 4, 1, 1).expand(2, -1, -1, -1, -1)
    >>> shift_and_flip_depth(volumes, torch.tensor([1, 0]), torch.tensor([False, True]), fill=0).flatten(1)
    tensor([[2, 3, 4, 0],
            [4, 3, 2, 1]])
    """
    depth, device = volumes.shape[2], volumes.device
    here = torch.arange(depth, device=device)
    places = torch.where(flip.to(device)[:, None], depth - 1 - here, here) + offsets.to(device)[:, None]  # (B, T)
    outside = (places < 0) | (places >= depth)
    shape = (len(volumes), 1, depth, 1, 1)
    moved = volumes.gather(2, places.clamp(0, depth - 1).view(shape).expand_as(volumes))
    return torch.where(outside.view(shape), fill, moved)


def turn(images: Tensor, symmetries: Tensor) -> Tensor:
    """Each square image (B, C, H, H) by one of the eight symmetries: mirrored across, then down, then transposed.

    >>> turn(torch.arange(4).view(1, 1, 2, 2).expand(2, -1, -1, -1), torch.tensor([0, 5])).flatten(1)
    tensor([[0, 1, 2, 3],
            [1, 3, 0, 2]])
    """
    turned = torch.empty_like(images, memory_format=torch.contiguous_format)
    for symmetry in symmetries.unique().tolist():
        chosen = (symmetries == symmetry).nonzero()[:, 0].to(images.device)
        some = images[chosen].flip([dim for bit, dim in ((1, -1), (2, -2)) if symmetry & bit])
        turned[chosen] = some.mT if symmetry & 4 else some
    return turned


def flatten(images: Tensor, shares: Tensor) -> Tensor:
    """Take away a share (B,) of each image's differences from its centre pixel, so that less hangs on what is around.

    >>> flatten(torch.tensor([[[[0.0, 2.0, 4.0]]]]), torch.tensor([0.5]))
    tensor([[[[1., 2., 3.]]]])
    """
    row, column = images.shape[2] // 2, images.shape[3] // 2
    centre = images[:, :, row : row + 1, column : column + 1]
    return images.lerp(centre, shares.to(images.device, images.dtype)[:, None, None, None])


def add_noise(images: Tensor, seeds: Tensor, deviation: float) -> Tensor:
    """Gaussian noise on normalised images, drawn for each image by its own seed."""
    noise = torch.empty(images.shape)
    for one, seed in zip(noise, seeds.tolist(), strict=True):
        one.normal_(generator=torch.Generator().manual_seed(seed))
    return images.add_(noise.to(images.device), alpha=deviation)


def jitter_colour(images: Tensor, factors: Tensor, scale: float = 255.0) -> Tensor:
    """Scale brightness, contrast and saturation of images in [0, scale] by `factors` (B, 3); float ones have no top."""
    each = factors.to(images.device).view(*factors.shape, *[1] * (images.ndim - 1))
    brightness, contrast, saturation = each.unbind(1)  # (B, 1, 1, 1)
    images = images * brightness
    images = torch.lerp(images.mean(tuple(range(1, images.ndim)), keepdim=True), images, contrast)
    images = torch.lerp(images.mean(1, keepdim=True), images, saturation)
    return images if scale == 1 else images.clamp_(0, scale)


def erase(images: Tensor, numbers: Tensor, probability: float) -> Tensor:
    """Set a rectangle of some normalised images to 0, the mean colour; `numbers` is (B, 5)."""
    height, width = images.shape[-2:]
    happens, area, ratio, x, y = numbers.to(images.device).unbind(1)
    side = (0.02 + 0.31 * area).sqrt()
    stretch = ((2 * ratio - 1) * math.log(3.3) / 2).exp()
    inside = (
        box_mask(x, y, side * stretch, side / stretch, height, width) & (happens < probability)[:, None, None, None]
    )
    return images.masked_fill_(inside if images.ndim == 4 else inside[:, None], 0.0)


def normalise(pixels: Tensor, mean: tuple[float, ...], std: tuple[float, ...], scale: float = 255.0) -> Tensor:
    """Pixels of any type to mean 0 and deviation 1 by channel, as float32; those that are given stay as they are.

    `scale` is what counts as 1 in `mean` and `std`.
    """
    axes = [1] * (pixels.ndim - 2)
    centre = torch.tensor(mean, device=pixels.device).view(-1, *axes) * scale
    spread = torch.tensor(std, device=pixels.device).view(-1, *axes) * scale
    return pixels.to(torch.float32, copy=True).sub_(centre).div_(spread)


def mix(images: Tensor, targets: Tensor, draws: dict[str, Tensor], cutmix_share: float) -> tuple[Tensor, Tensor]:
    """Mixed images (B, C, H, W) and soft labels (B, K); a last image without a partner stays as it is.

    Boxes go through all slices of a volume and all frames of a clip.
    """
    number, (height, width) = len(images), images.shape[-2:]
    device = images.device
    here = torch.arange(number, device=device)
    partner = (here ^ 1).clamp(max=number - 1)
    first = here - here % 2  # both of a pair use the numbers of its first

    x, y, coin = draws["mix"].to(device)[first].unbind(1)
    cut = coin < cutmix_share
    side = (1 - draws["cutmix"].to(device)[first]).sqrt()  # of a box that covers this share of the image
    box = box_mask(x, y, side, side, height, width)  # (B, 1, H, W)
    keep = torch.where(cut, 1 - box.float().mean((1, 2, 3)), draws["mixup"].to(device)[first])  # (B,) share of its own
    weight = torch.where(cut[:, None, None, None], (~box).float(), keep[:, None, None, None])
    weight = weight if images.ndim == 4 else weight[:, None]
    return torch.lerp(images[partner], images, weight), torch.lerp(targets[partner], targets, keep[:, None])


def box_mask(x: Tensor, y: Tensor, wide: Tensor, high: Tensor, height: int, width: int) -> Tensor:
    """(B, 1, H, W): True in a box of relative size wide×high, placed at x, y in [0, 1] of the room it has."""
    columns, rows = (wide.clamp(max=1) * width).round(), (high.clamp(max=1) * height).round()
    left, top = (x * (width - columns)).round(), (y * (height - rows)).round()
    across, down = torch.arange(width, device=x.device), torch.arange(height, device=x.device)
    in_columns = (across >= left[:, None]) & (across < (left + columns)[:, None])  # (B, W)
    in_rows = (down >= top[:, None]) & (down < (top + rows)[:, None])  # (B, H)
    return (in_rows[:, :, None] & in_columns[:, None, :])[:, None]
