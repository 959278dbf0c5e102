"""From images to tokens (paper, Sections 3.1, 4.2 and 4.3): patches, embeddings, class token, positions.

Images (B, C, H, W) and volumes or clips (B, C, T, H, W) go the same way: what stands behind the channels is cut into
patches, P pixels along every axis or as many as a tuple says.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tcpvit.errors import did_you_mean
from tcpvit.layers.linear import TLinear, init_weight_
from tcpvit.layers.transform import HatTransform, attach_transform

PatchEmbedding = Literal["none", "shared", "t_linear", "linear", "sub_patch", "conv"]  # conv: `local.ConvEmbed`
PATCH_EMBEDS: tuple[str, ...] = tuple(kind for kind in get_args(PatchEmbedding) if kind != "conv")
# What the tube runs along: the channels, the depth (or time) of a patch of a volume, or two axes, the second fastest.
TubeAxes = Literal["channels", "depth", "depth+channels", "depth+height"]
AXES = ("depth", "height", "width")  # of a volume; an image has the last two, a clip has frames for a depth
Patch = int | tuple[int, ...]


def patch_shape(patch: Patch, ndim: int) -> tuple[int, ...]:
    """The sides of a patch in `ndim` dimensions.

    >>> patch_shape(4, 2), patch_shape((2, 8, 8), 3)
    ((4, 4), (2, 8, 8))
    """
    sides = (patch,) * ndim if isinstance(patch, int) else tuple(patch)
    if len(sides) != ndim:
        raise ValueError(f"a patch has as many sides as the image, {ndim}, got {by(sides)}")
    return sides


def patch_grid(size: Sequence[int], patch: Patch) -> tuple[int, ...]:
    """How many patches an image or a volume of that size has along each axis.

    >>> patch_grid((32, 48), 4), patch_grid((8, 32, 32), (2, 8, 8))
    ((8, 12), (4, 4, 4))
    """
    sides = patch_shape(patch, len(size))
    for axis, length, side in zip(AXES[-len(size) :], size, sides, strict=True):
        if length % side or not length:
            less = length - length % side
            shown = str(side) if len(set(sides)) == 1 else by(sides)
            raise ValueError(
                f"{'an image' if len(size) == 2 else 'a volume'} of {by(size)} does not divide into patches of {shown}"
                f": its {axis} {length} is no multiple of {side}; resize or pad it to "
                f"{f'{less} or ' if less else ''}{less + side}, or change patch_size"
            )
    return tuple(length // side for length, side in zip(size, sides, strict=True))


def image_grid(images: Tensor, in_chans: int, patch: Patch, ndim: int = 2) -> tuple[int, ...]:
    """The grid of patches of images that should be (B, in_chans, H, W), or volumes (B, in_chans, T, H, W)."""
    if images.ndim != 2 + ndim or images.shape[1] != in_chans:
        what, axes = ("images", "H, W") if ndim == 2 else ("volumes", "T, H, W")
        raise ValueError(f"{what} should be (B, {in_chans}, {axes}), got shape {tuple(images.shape)}")
    return patch_grid(images.shape[2:], patch)


def by(size: Sequence[int]) -> str:
    """A size in words.

    >>> by((8, 32, 32))
    '8×32×32'
    """
    return "×".join(map(str, size))


def cut(images: Tensor, patch: Patch) -> tuple[Tensor, list[int], list[int]]:
    """(B, C, H, W) -> (B, C, H/P, P, W/P, P), a view, and which of its axes are those of the grid and of a patch."""
    size = images.shape[2:]
    sides = patch_shape(patch, len(size))
    parts = [n for length, side in zip(size, sides, strict=True) for n in (length // side, side)]
    places = range(2, 2 + 2 * len(size))
    return images.reshape(*images.shape[:2], *parts), list(places[::2]), list(places[1::2])


def patchify(images: Tensor, patch: Patch) -> Tensor:
    """Patch tensorisation (Eq. patch): (B, C, H, W) -> (B, N, P², C), pixels of a patch row by row.

    >>> patchify(torch.zeros(2, 3, 32, 32), 4).shape, patchify(torch.zeros(2, 1, 8, 32, 32), (2, 8, 8)).shape
    (torch.Size([2, 64, 16, 3]), torch.Size([2, 64, 128, 1]))
    """
    parts, grid, within = cut(images, patch)
    ordered = parts.permute(0, *grid, *within, 1)
    return ordered.flatten(1 + len(grid), -2).flatten(1, len(grid))


def depth_as_channels(volumes: Tensor, depth: int, axes: str) -> Tensor:
    """The slices of each patch's depth as channels, the tube fastest: (B, c, T, H, W) -> (B, c·P_t, T/P_t, H, W).

    Along "depth" channel j·P_t + k is slice k of channel j, along "depth+channels" k·c + j.

    >>> depth_as_channels(torch.zeros(2, 3, 8, 32, 32), 4, "depth").shape
    torch.Size([2, 12, 2, 32, 32])
    """
    parts = volumes.unflatten(2, (-1, depth))  # (B, c, T/P_t, P_t, H, W)
    return (parts.movedim(3, 1) if axes == "depth+channels" else parts.movedim(3, 2)).flatten(1, 2)


def height_as_channels(volumes: Tensor, height: int) -> Tensor:
    """The rows of each patch as channels, fastest: (B, c, T, H, W) -> (B, c·P_h, T, H/P_h, W).

    >>> height_as_channels(torch.zeros(2, 3, 8, 32, 32), 4).shape
    torch.Size([2, 12, 8, 8, 32])
    """
    return volumes.unflatten(3, (-1, height)).movedim(4, 2).flatten(1, 2)


def patchify_slices(images: Tensor, patch: Patch, tube: int | None = None) -> Tensor:
    """The same with channels as slices first: (B, C, H, W) -> (C, B, N, P²).

    A tube shorter than the channels leaves g = channels / C of them to each slice: channel j·C + k is feature j of
    slice k, (C, B, N, g·P²).

    >>> patchify_slices(torch.zeros(2, 3, 32, 32), 4).shape, patchify_slices(torch.zeros(2, 6, 32, 32), 4, tube=3).shape
    (torch.Size([3, 2, 64, 16]), torch.Size([3, 2, 64, 32]))
    """
    parts, grid, within = cut(images, patch)
    tube = tube or images.shape[1]
    parts = parts.reshape(parts.shape[0], parts.shape[1] // tube, tube, *parts.shape[2:])  # (B, g, C, ...)
    ordered = parts.permute(2, 0, *(i + 1 for i in grid), 1, *(i + 1 for i in within))
    return ordered.flatten(2 + len(grid)).flatten(2, -2)


def sub_patches(images: Tensor, patch: int, tube: int) -> Tensor:
    """Each patch as √C × √C sub-patches, which are its slices: (B, c, H, W) -> (C, B, N, P²·c/C), channels fastest.

    >>> sub_patches(torch.zeros(2, 3, 32, 32), 4, tube=4).shape
    torch.Size([4, 2, 64, 12])
    """
    B, c, H, W = images.shape
    side = math.isqrt(tube)
    within = patch // side  # pixels along a sub-patch
    grid = images.reshape(B, c, H // patch, side, within, W // patch, side, within)
    slices = grid.permute(3, 6, 0, 2, 5, 4, 7, 1)  # (√C, √C, B, down, across, within, within, c)
    return slices.flatten(5).flatten(3, 4).flatten(0, 1)


class PatchEmbed(nn.Module):
    """Patch embedding of the standard ViT (Eq. std_embed): (B, C, H, W) -> (B, N, D)."""

    def __init__(self, in_chans: int, patch: Patch, dim: int):
        super().__init__()
        self.patch = patch_shape(patch, 2) if isinstance(patch, int) else patch
        self.proj = nn.Linear(in_chans * math.prod(self.patch), dim)

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, N, D)."""
        return self.proj(patchify(images, self.patch).flatten(2))


class TPatchEmbed(nn.Module):
    """Patches as hat-domain tensor tokens, (B, C, H, W) -> (C, B, N, d).

    `kind` is one of none (the patch is the token, the paper's classifier), shared (one P²×d matrix for all slices,
    the paper's Pet backbone), t_linear (one matrix and bias per slice; the channels may be several times the tube),
    linear (a dense map to d·C features),
    sub_patch (as t_linear, but the tube runs through √C × √C sub-patches of a patch instead of the channels). If
    `share`, t_linear and sub_patch have one matrix and bias for all slices.

    The patch of a volume is (P_t, P_h, P_w); its tube may run along its depth (`axes="depth"`), or along depth and
    channels ("depth+channels"), or depth and height ("depth+height"). What the tube runs along become channels, and the
    patch that is left is P_h×P_w, or a line of P_w.
    """

    transform: HatTransform

    def __init__(
        self,
        in_chans: int,
        patch: Patch,
        d: int,
        transform: HatTransform,
        kind: str = "none",
        *,
        share: bool = False,
        axes: TubeAxes = "channels",
    ):
        super().__init__()
        self.depth, self.height, self.axes = 0, 0, axes  # of the slices and rows that become channels
        sides = patch_shape(patch, 2) if isinstance(patch, int) else patch
        if axes != "channels" and kind != "linear":
            self.depth, sides = sides[0], (1, *sides[1:])
            in_chans *= self.depth
        if axes == "depth+height" and kind != "linear":
            self.height, sides = sides[1], (1, 1, sides[2])
            in_chans *= self.height
        _check_patch_embed(kind, in_chans, sides, d, transform.tube)
        self.patch, self.kind = sides, kind
        attach_transform(self, transform, transform.tube)
        pixels = math.prod(sides)
        if kind == "shared":
            self.weight = nn.Parameter(torch.empty(pixels, d))
            init_weight_(self.weight, fan_in=pixels)
        elif kind == "t_linear":
            features = in_chans * pixels // transform.tube
            self.proj: TLinear | nn.Linear = TLinear(features, d, transform.tube, transform, shared=share)
        elif kind == "linear":
            self.proj = nn.Linear(in_chans * pixels, d * transform.tube)
        elif kind == "sub_patch":
            features = in_chans * pixels // transform.tube
            self.proj = TLinear(features, d, transform.tube, transform, shared=share)

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (C, B, N, d)."""
        if self.depth:
            images = depth_as_channels(images, self.depth, self.axes)
        if self.height:
            images = height_as_channels(images, self.height)
        if self.kind == "linear":
            tokens = self.proj(patchify(images, self.patch).flatten(2))  # (B, N, d·C)
            return self.transform.to_hat_tokens(tokens.unflatten(-1, (-1, self.transform.tube)))
        if self.kind == "sub_patch":
            return self.proj(self.transform.to_hat(sub_patches(images, self.patch[0], self.transform.tube)))
        x_hat = self.transform.to_hat(patchify_slices(images, self.patch, self.transform.tube))  # (C, B, N, g·P²)
        if self.kind == "none":
            return x_hat
        return x_hat @ self.weight if self.kind == "shared" else self.proj(x_hat)

    def extra_repr(self) -> str:
        """What `repr` shows."""
        return f"patch={self.patch}, kind={self.kind}"


def _check_patch_embed(kind: str, in_chans: int, sides: tuple[int, ...], d: int, tube: int) -> None:
    if kind not in PATCH_EMBEDS:
        raise ValueError(f"no patch embedding is called {kind!r}{did_you_mean(kind, PATCH_EMBEDS)}")
    pixels, patch = math.prod(sides), sides[0]
    if kind == "sub_patch":
        if len(sides) != 2 or len(set(sides)) != 1:
            raise ValueError(f"patch_embed='sub_patch' cuts the square patches of images, got {by(sides)}")
        side = math.isqrt(tube)
        if side * side != tube or patch % side:
            fitting = [side * side for side in range(1, patch + 1) if patch % side == 0]
            raise ValueError(
                f"patch_embed='sub_patch' cuts a patch of {patch} pixels into √C × √C parts, but the tube is {tube}; "
                f"take one of {fitting}"
            )
    elif kind != "linear" and tube != in_chans and (kind != "t_linear" or in_chans % tube):
        raise ValueError(
            f"patch_embed={kind!r} keeps the image's {in_chans} channels as the tube, but the tube is {tube}; "
            "take patch_embed='linear'"
        )
    if kind == "none" and d != pixels:
        raise ValueError(
            f"patch_embed='none' makes slices of width P² = {pixels}, but the width asked for is {d}; "
            "take patch_embed='t_linear', 'shared' or 'linear'"
        )


class TokenEmbedding(nn.Module):
    """Class token and positions (Eqs. std_embed, embed): (*lead, N, d) -> (*lead, 1 + N, d), 2 + N if `distilled`.

    `lead` is (1,) for the standard ViT and (C, 1) for tensor tokens, which are embedded in the hat domain.
    A distilled model (DeiT) has a second token; without `class_token` there is none, without `positions` no position.
    Positions of another grid are resampled from the learned one; if `shared`, they are the same in all slices.

    >>> embed = TokenEmbedding((3, 1), grid=(8, 8), d=16)
    >>> embed(torch.zeros(3, 2, 64, 16), (8, 8)).shape, embed(torch.zeros(3, 2, 24, 16), (4, 6)).shape
    (torch.Size([3, 2, 65, 16]), torch.Size([3, 2, 25, 16]))
    """

    def __init__(
        self,
        lead: tuple[int, ...],
        grid: tuple[int, ...],
        d: int,
        drop: float = 0.0,
        distilled: bool = False,
        *,
        shared: bool = False,
        class_token: bool = True,
        positions: bool = True,
    ):
        super().__init__()
        self.grid, self.num_prefix_tokens = grid, class_token + distilled
        self.cls_token = nn.Parameter(torch.empty(*lead, 1, d)) if class_token else None
        self.dist_token = nn.Parameter(torch.empty(*lead, 1, d)) if distilled else None
        own = (1,) * len(lead) if shared else lead
        places = (*own, self.num_prefix_tokens + math.prod(grid), d)
        self.pos_embed = nn.Parameter(torch.empty(places)) if positions else None
        self.drop = nn.Dropout(drop)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the tokens and the positions anew."""
        for parameter in self.parameters():
            nn.init.trunc_normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor, grid: tuple[int, ...]) -> Tensor:
        """(*lead, N, d) -> (*lead, 1 + N, d), for tokens that lie on `grid`."""
        own = [token for token in (self.cls_token, self.dist_token) if token is not None]
        prefix = [token.expand(*tokens.shape[:-2], 1, -1) for token in own]
        x = torch.cat([*prefix, tokens], dim=-2) if prefix else tokens
        return self.drop(x if self.pos_embed is None else x + self.positions(grid))

    def positions(self, grid: tuple[int, ...]) -> Tensor:
        """The positions for `grid`, (*lead, 1 + N, d): the learned ones, resampled bicubically if it is another."""
        assert self.pos_embed is not None
        if grid == self.grid:
            return self.pos_embed
        prefix, positions = self.pos_embed.tensor_split([self.num_prefix_tokens], dim=-2)
        wide = positions.unflatten(-2, self.grid).to(torch.promote_types(positions.dtype, torch.float32))
        return torch.cat([prefix, resample(wide, grid).to(positions.dtype).flatten(-1 - len(grid), -2)], dim=-2)


def resample(planes: Tensor, grid: tuple[int, ...]) -> Tensor:
    """Bicubically and antialiased, along each axis: (..., h, w, d) -> (..., H, W, d).

    >>> resample(torch.ones(3, 8, 8, 4), (16, 5)).shape
    torch.Size([3, 16, 5, 4])
    """
    if torch.compiler.is_compiling() or len(grid) != 2:
        return _resample_by_products(planes, grid)
    moved = planes.movedim(-1, -3)  # (..., d, h, w)
    resampled = F.interpolate(moved.flatten(0, -4), grid, mode="bicubic", antialias=True)
    return resampled.unflatten(0, moved.shape[:-3]).movedim(-3, -1)


def _resample_by_products(planes: Tensor, grid: tuple[int, ...]) -> Tensor:
    """The same as products with small matrices: torch's own knows planes alone, and compiled has no gradient for
    sizes that change."""
    with torch.autocast(planes.device.type, enabled=False):  # which would round them
        for axis, new in enumerate(grid, start=-1 - len(grid)):
            matrix = _resampling(planes.shape[axis], new, like=planes)
            planes = torch.einsum("Hh,h...->H...", matrix, planes.movedim(axis, 0)).movedim(0, axis)
    return planes


def _resampling(old: int, new: int, like: Tensor) -> Tensor:
    """The matrix (new, old) that resamples `old` places to `new`, in the dtype and on the device of `like`."""
    places = torch.eye(old, dtype=like.dtype, device=like.device)
    return F.interpolate(places[None, None], (new, old), mode="bicubic", antialias=True)[0, 0]
