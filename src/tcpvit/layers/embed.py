"""From images to tokens (paper, Sections 3.1, 4.2 and 4.3): patches, embeddings, class token, positions."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tcpvit.errors import did_you_mean
from tcpvit.layers.linear import TLinear, init_weight_
from tcpvit.layers.transform import HatTransform, attach_transform

PatchEmbedding = Literal["none", "shared", "t_linear", "linear", "sub_patch", "conv"]  # conv: `local.ConvEmbed`
PATCH_EMBEDS: tuple[str, ...] = tuple(kind for kind in get_args(PatchEmbedding) if kind != "conv")


def patch_grid(height: int, width: int, patch: int) -> tuple[int, int]:
    """How many patches an image of that size has, down and across.

    >>> patch_grid(32, 48, 4)
    (8, 12)
    """
    if height % patch or width % patch or not height or not width:
        raise ValueError(
            f"an image of {height}×{width} does not divide into patches of {patch}; "
            f"resize or pad it to a multiple of {patch}"
        )
    return height // patch, width // patch


def image_grid(images: Tensor, in_chans: int, patch: int) -> tuple[int, int]:
    """The grid of patches of images that should be (B, in_chans, H, W)."""
    if images.ndim != 4 or images.shape[1] != in_chans:
        raise ValueError(f"images should be (B, {in_chans}, H, W), got shape {tuple(images.shape)}")
    return patch_grid(images.shape[2], images.shape[3], patch)


def patchify(images: Tensor, patch: int) -> Tensor:
    """Patch tensorisation (Eq. patch): (B, C, H, W) -> (B, N, P², C), pixels of a patch row by row.

    >>> patchify(torch.zeros(2, 3, 32, 32), 4).shape
    torch.Size([2, 64, 16, 3])
    """
    B, C, H, W = images.shape
    grid = images.reshape(B, C, H // patch, patch, W // patch, patch)
    return grid.permute(0, 2, 4, 3, 5, 1).flatten(3, 4).flatten(1, 2)


def patchify_slices(images: Tensor, patch: int, tube: int | None = None) -> Tensor:
    """The same with channels as slices first: (B, C, H, W) -> (C, B, N, P²).

    A tube shorter than the channels leaves g = channels / C of them to each slice: channel j·C + k is feature j of
    slice k, (C, B, N, g·P²).

    >>> patchify_slices(torch.zeros(2, 3, 32, 32), 4).shape, patchify_slices(torch.zeros(2, 6, 32, 32), 4, tube=3).shape
    (torch.Size([3, 2, 64, 16]), torch.Size([3, 2, 64, 32]))
    """
    B, channels, H, W = images.shape
    tube = tube or channels
    grid = images.reshape(B, channels // tube, tube, H // patch, patch, W // patch, patch)
    return grid.permute(2, 0, 3, 5, 1, 4, 6).flatten(4).flatten(2, 3)


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

    def __init__(self, in_chans: int, patch: int, dim: int):
        super().__init__()
        self.patch = patch
        self.proj = nn.Linear(in_chans * patch * patch, dim)

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
    """

    transform: HatTransform

    def __init__(
        self, in_chans: int, patch: int, d: int, transform: HatTransform, kind: str = "none", *, share: bool = False
    ):
        super().__init__()
        _check_patch_embed(kind, in_chans, patch, d, transform.tube)
        self.patch, self.kind = patch, kind
        attach_transform(self, transform, transform.tube)
        pixels = patch * patch
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
        if self.kind == "linear":
            tokens = self.proj(patchify(images, self.patch).flatten(2))  # (B, N, d·C)
            return self.transform.to_hat_tokens(tokens.unflatten(-1, (-1, self.transform.tube)))
        if self.kind == "sub_patch":
            return self.proj(self.transform.to_hat(sub_patches(images, self.patch, self.transform.tube)))
        x_hat = self.transform.to_hat(patchify_slices(images, self.patch, self.transform.tube))  # (C, B, N, g·P²)
        if self.kind == "none":
            return x_hat
        return x_hat @ self.weight if self.kind == "shared" else self.proj(x_hat)

    def extra_repr(self) -> str:
        """What `repr` shows."""
        return f"patch={self.patch}, kind={self.kind}"


def _check_patch_embed(kind: str, in_chans: int, patch: int, d: int, tube: int) -> None:
    if kind not in PATCH_EMBEDS:
        raise ValueError(f"no patch embedding is called {kind!r}{did_you_mean(kind, PATCH_EMBEDS)}")
    if kind == "sub_patch":
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
    if kind == "none" and d != patch * patch:
        raise ValueError(
            f"patch_embed='none' makes slices of width P² = {patch * patch}, but the width asked for is {d}; "
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
        grid: tuple[int, int],
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
        places = (*own, self.num_prefix_tokens + grid[0] * grid[1], d)
        self.pos_embed = nn.Parameter(torch.empty(places)) if positions else None
        self.drop = nn.Dropout(drop)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the tokens and the positions anew."""
        for parameter in self.parameters():
            nn.init.trunc_normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor, grid: tuple[int, int]) -> Tensor:
        """(*lead, N, d) -> (*lead, 1 + N, d), for tokens that lie on `grid`."""
        own = [token for token in (self.cls_token, self.dist_token) if token is not None]
        prefix = [token.expand(*tokens.shape[:-2], 1, -1) for token in own]
        x = torch.cat([*prefix, tokens], dim=-2) if prefix else tokens
        return self.drop(x if self.pos_embed is None else x + self.positions(grid))

    def positions(self, grid: tuple[int, int]) -> Tensor:
        """The positions for `grid`, (*lead, 1 + N, d): the learned ones, resampled bicubically if it is another."""
        assert self.pos_embed is not None
        if grid == self.grid:
            return self.pos_embed
        prefix, positions = self.pos_embed.tensor_split([self.num_prefix_tokens], dim=-2)
        wide = positions.unflatten(-2, self.grid).to(torch.promote_types(positions.dtype, torch.float32))
        return torch.cat([prefix, resample(wide, grid).to(positions.dtype).flatten(-3, -2)], dim=-2)


def resample(planes: Tensor, grid: tuple[int, int]) -> Tensor:
    """Bicubically and antialiased: (..., h, w, d) -> (..., H, W, d).

    >>> resample(torch.ones(3, 8, 8, 4), (16, 5)).shape
    torch.Size([3, 16, 5, 4])
    """
    if torch.compiler.is_compiling():
        return _resample_by_products(planes, grid)
    moved = planes.movedim(-1, -3)  # (..., d, h, w)
    resampled = F.interpolate(moved.flatten(0, -4), grid, mode="bicubic", antialias=True)
    return resampled.unflatten(0, moved.shape[:-3]).movedim(-3, -1)


def _resample_by_products(planes: Tensor, grid: tuple[int, int]) -> Tensor:
    """The same as two products with small matrices: compiled, torch's own has no gradient for sizes that change."""
    down, across = (_resampling(*sides, like=planes) for sides in zip(planes.shape[-3:-1], grid, strict=True))
    with torch.autocast(planes.device.type, enabled=False):  # which would round them
        rows = torch.einsum("Ww,...hwd->...hWd", across, planes)
        return torch.einsum("Hh,...hWd->...HWd", down, rows)


def _resampling(old: int, new: int, like: Tensor) -> Tensor:
    """The matrix (new, old) that resamples `old` places to `new`, in the dtype and on the device of `like`."""
    places = torch.eye(old, dtype=like.dtype, device=like.device)
    return F.interpolate(places[None, None], (new, old), mode="bicubic", antialias=True)[0, 0]
