"""The definitions of the paper written out slowly: loops over slices and heads, nothing clever.

This is the oracle of the fast layers. Tensors are spatial, tube last: tokens X are (B, N, d, C), weights W are
(d, d', C), M is the C×C matrix of the transform. Where the paper contradicts itself these functions follow our
decisions (docs, "Notes on the paper"); the `literal_*` functions follow its letter instead.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tcpvit.layers.attention import TAttention
from tcpvit.layers.block import Block, TBlock, TMlp
from tcpvit.layers.coupling import CoupledTLinear, TwoFactorTLinear
from tcpvit.layers.embed import TPatchEmbed, patch_grid, patchify
from tcpvit.layers.linear import TLinear
from tcpvit.layers.local import ConvEmbed, Grid
from tcpvit.layers.norm import TLayerNorm
from tcpvit.layers.reference_local import filtered, overlapping_patches, pooled, spread

Slices = list[Tensor]  # C tensors (..., d): one for each hat slice


def to_hat(X: Tensor, M: Tensor) -> Slices:
    """The hat slices of X: slice k is Σ_l M[k, l] X[..., l] (Eq. dct_tensor)."""
    C = X.shape[-1]
    return [sum((M[k, j] * X[..., j] for j in range(C)), torch.zeros_like(X[..., 0])) for k in range(C)]


def from_hat(X_hat: Slices, M: Tensor) -> Tensor:
    """The tensor with these hat slices (Eq. idct_tensor)."""
    return torch.stack(to_hat(torch.stack(X_hat, -1), torch.linalg.inv(M)), -1)


def product(A: Tensor, B: Tensor, M: Tensor) -> Tensor:
    """A ⋆ B (Eq. cprod), slice after slice."""
    return from_hat([a @ b for a, b in zip(to_hat(A, M), to_hat(B, M), strict=True)], M)


def t_linear(X: Tensor, W: Tensor, b: Tensor | None, M: Tensor) -> Tensor:
    """X ⋆ W + b (Def. tlinear); the bias b, (d', C), is one vector per slice."""
    Y = product(X, W, M)
    return Y if b is None else Y + b


def t_softmax(S: Tensor, M: Tensor) -> Slices:
    """Softmax of each hat slice of S, (N, N, C): the hat slices of the attention tensor (Def. tsoftmax)."""
    return [_softmax(S_k) for S_k in to_hat(S, M)]


def t_attention(Q: Tensor, K: Tensor, V: Tensor, M: Tensor) -> Tensor:
    """t-Softmax(Q ⋆ Kᵀ / √d_h) ⋆ V (Def. tattn) for one head: (B, N, d_h, C)."""
    S = product(Q, K.transpose(-3, -2), M) / math.sqrt(Q.shape[-2])
    return from_hat([A_k @ V_k for A_k, V_k in zip(t_softmax(S, M), to_hat(V, M), strict=True)], M)


def joint_attention(Q: Tensor, K: Tensor, V: Tensor, M: Tensor) -> Tensor:
    """One map for all slices: softmax(Σ_k q̂_k·k̂_k / √(C·d_h)) V̂_k for one head."""
    score = sum((q @ k.mT for q, k in zip(to_hat(Q, M), to_hat(K, M), strict=True)), torch.zeros(()).to(Q))
    A = _softmax(score / math.sqrt(Q.shape[-2] * Q.shape[-1]))
    return from_hat([A @ V_k for V_k in to_hat(V, M)], M)


def t_layer_norm(X: Tensor, gamma_hat: Tensor, beta_hat: Tensor, M: Tensor, eps: float) -> Tensor:
    """Each hat slice of each token is normalised over its d features (Def. tln, with PyTorch's √(σ² + ε)).

    gamma_hat and beta_hat are (d, C), given in the hat domain.
    """
    slices = []
    for k, X_k in enumerate(to_hat(X, M)):
        mu, var = _moments(X_k)
        slices.append(gamma_hat[:, k] * (X_k - mu) / torch.sqrt(var + eps) + beta_hat[:, k])
    return from_hat(slices, M)


def t_ffn(X: Tensor, W1: Tensor, b1: Tensor, W2: Tensor, b2: Tensor, M: Tensor, *, spatial: bool = False) -> Tensor:
    """GELU(X ⋆ W₁) ⋆ W₂ (Def. tffn); GELU on the hat slices, or on the spatial tensor if `spatial`."""
    H = t_linear(X, W1, b1, M)
    H = F.gelu(H) if spatial else from_hat([F.gelu(H_k) for H_k in to_hat(H, M)], M)
    return t_linear(H, W2, b2, M)


# --------------------------------------------------------------------------------------- the letter of the paper


def literal_identity(m: int, C: int) -> Tensor:
    """Def. 2.3 (i): first slice I, the others zero. An identity of ⋆ for `cosine_kka`, not for the DCT."""
    eye = torch.zeros(m, m, C)
    eye[..., 0] = torch.eye(m)
    return eye


def literal_t_softmax(S: Tensor, M: Tensor) -> Tensor:
    """Eq. tsoftmax to the letter: computed from the hat slices, but called a spatial tensor."""
    return torch.stack(t_softmax(S, M), -1)


def literal_t_attention(Q: Tensor, K: Tensor, V: Tensor, M: Tensor) -> Tensor:
    """Eq. tattn to the letter: ⋆ transforms the softmax a second time."""
    S = product(Q, K.transpose(-3, -2), M) / math.sqrt(Q.shape[-2])
    return product(literal_t_softmax(S, M), V, M)


def literal_t_layer_norm(X: Tensor, gamma_hat: Tensor, beta_hat: Tensor, M: Tensor, eps: float) -> Tensor:
    """Eq. tln to the letter: divides by σ + ε."""
    slices = []
    for k, X_k in enumerate(to_hat(X, M)):
        mu, var = _moments(X_k)
        slices.append(gamma_hat[:, k] * (X_k - mu) / (torch.sqrt(var) + eps) + beta_hat[:, k])
    return from_hat(slices, M)


def literal_t_ffn(X: Tensor, W1: Tensor, b1: Tensor, W2: Tensor, b2: Tensor, M: Tensor) -> Tensor:
    """Eq. tffn to the letter: GELU on the spatial tensor, which lets the slices meet."""
    return t_ffn(X, W1, b1, W2, b2, M, spatial=True)


# ------------------------------------------------------------------------------ the same for the layers we built


def linear(layer: TLinear, X: Tensor) -> Tensor:
    """What `layer` computes, on spatial tokens, with every coupling written out."""
    M = matrix_of(layer)
    X_hat = to_hat(X, M)
    if isinstance(layer, CoupledTLinear):
        Y_hat = _coupled(layer, X_hat)
    elif isinstance(layer, TwoFactorTLinear):
        Y_hat = _two_factors(layer, X_hat)
    else:
        Y_hat = [X_k @ W_k for X_k, W_k in zip(X_hat, _of_each_slice(layer, "weight_hat"), strict=True)]
    if layer.bias_hat is not None:
        Y_hat = [Y_k + b_k for Y_k, b_k in zip(Y_hat, _of_each_slice(layer, "bias_hat"), strict=True)]
    return from_hat(Y_hat, M)


def _of_each_slice(layer: TLinear | TLayerNorm, name: str) -> list[Tensor]:
    """The parameter slice by slice; one that the slices share comes C times."""
    slices = list(getattr(layer, name))
    return slices * layer.tube if len(slices) == 1 else slices


def _coupled(layer: CoupledTLinear, X_hat: Slices) -> Slices:
    """Mix, low_rank and partial, slice after slice."""
    if layer.coupling.mix:
        X_hat = to_hat(torch.stack(X_hat, -1), layer.mix)
    Y_hat = [X_k @ W_k for X_k, W_k in zip(X_hat, _of_each_slice(layer, "weight_hat"), strict=True)]
    if layer.coupling.partial:
        Y_hat = [torch.cat([_dense_features(layer, X_hat, k), Y_k], -1) for k, Y_k in enumerate(Y_hat)]
    if layer.coupling.low_rank:
        shared = torch.stack([X_j @ V_j for X_j, V_j in zip(X_hat, layer.v_hat, strict=True)]).sum(0)
        Y_hat = [Y_k + shared @ U_k for Y_k, U_k in zip(Y_hat, layer.u_hat, strict=True)]
    return Y_hat


def _two_factors(layer: TwoFactorTLinear, X_hat: Slices) -> Slices:
    """Half after half: A, then feature j of half k moves to place j·2C + k of the halves laid end to end, then B."""
    halves = [half for X_k in X_hat for half in X_k.chunk(2, dim=-1)]
    between = [half @ A for half, A in zip(halves, layer.weight_hat, strict=True)]
    width = between[0].shape[-1]
    shuffled = [half[..., j] for j in range(width) for half in between]
    moved = [torch.stack(shuffled[k * width : (k + 1) * width], -1) for k in range(len(between))]
    ends = [half @ B for half, B in zip(moved, layer.second_hat, strict=True)]
    return [torch.cat(ends[2 * k : 2 * k + 2], -1) for k in range(len(X_hat))]


def _dense_features(layer: CoupledTLinear, X_hat: Slices, k: int) -> Tensor:
    """The features of output slice k that read every input slice."""
    columns = slice(k * layer.d_dense, (k + 1) * layer.d_dense)
    return torch.stack([X_j @ layer.dense_hat[j][:, columns] for j, X_j in enumerate(X_hat)]).sum(0)


def attention(layer: TAttention, X: Tensor, grid: tuple[int, ...] | None = None) -> Tensor:
    """t-MHSA (Def. tmhsa), head after head: (B, N, d, C) -> (B, N, d, C)."""
    M, d, d_h = matrix_of(layer.qkv), X.shape[-2], layer.head_dim
    Q, K, V = linear(layer.qkv, X).split(d, dim=-2)
    attend = joint_attention if layer.joint else t_attention
    heads = [slice(h * d_h, (h + 1) * d_h) for h in range(layer.num_heads)]
    groups = _groups(layer, X.shape[1], grid)
    outputs, times = torch.zeros_like(V), torch.zeros(X.shape[1])
    for group in groups:
        parts = [attend(Q[:, group][..., h, :], K[:, group][..., h, :], V[:, group][..., h, :], M) for h in heads]
        outputs[:, group] += torch.cat(parts, dim=-2)
        times[group] += 1
    outputs = outputs / times.to(outputs)[:, None, None]  # a class token is in every group
    return linear(layer.proj, shuffle(outputs, M) if layer.shuffle else outputs)


def _groups(layer: TAttention, tokens: int, grid: tuple[int, ...] | None) -> list[list[int]]:
    """The tokens that attend to one another: all, those of each frame, or those of each place."""
    if layer.along is None:
        return [list(range(tokens))]
    assert grid is not None
    first = tokens - math.prod(grid)
    number = torch.arange(first, tokens).view(grid[0], -1)  # (T, H·W)
    lines = number if layer.along == "space" else number.mT
    return [[*range(first), *line.tolist()] for line in lines]


def mlp(layer: TMlp, X: Tensor, grid: Grid | None = None) -> Tensor:
    """t-FFN (Def. tffn): (B, N, d, C) -> (B, N, d, C)."""
    M = matrix_of(layer.fc1)
    H = linear(layer.fc1, X)
    factor = H[..., layer.hidden :, :] if layer.gated else None
    H = H[..., : layer.hidden, :]
    if layer.local is not None:
        assert grid is not None
        H = from_hat(filtered(layer.local, to_hat(H, M), grid), M)
    if layer.spatial:
        H = F.gelu(H) if factor is None else F.gelu(H) * factor
    else:
        H_hat = [F.gelu(H_k) for H_k in to_hat(H, M)]
        if factor is not None:
            H_hat = [H_k * f_k for H_k, f_k in zip(H_hat, to_hat(factor, M), strict=True)]
        H = from_hat(H_hat, M)
    return linear(layer.fc2, shuffle(H, M) if layer.shuffle else H)


def norm(layer: TLayerNorm, X: Tensor, M: Tensor) -> Tensor:
    """t-LayerNorm: (B, N, d, C) -> (B, N, d, C)."""
    gamma, beta = (torch.cat(_of_each_slice(layer, name)) for name in ("weight_hat", "bias_hat"))  # (C, d)
    if layer.joint:
        token = torch.cat(to_hat(X, M), -1)  # (B, N, C·d)
        token = F.layer_norm(token, token.shape[-1:], gamma.flatten(), beta.flatten(), layer.eps)
        return from_hat(list(token.chunk(layer.tube, -1)), M)
    return t_layer_norm(X, gamma.mT, beta.mT, M, layer.eps)


def block(layer: TBlock, X: Tensor, grid: tuple[int, ...] | None = None) -> Tensor:
    """One TCP-ViT block (Eqs. block_attn, block_ffn): (B, N, d, C) -> (B, N, d, C)."""
    M = matrix_of(layer)
    read = norm(layer.norm1, X, M)
    if layer.pool == 1:
        X = X + attention(layer.attn, read, grid)
    else:
        assert grid is not None
        X = X + spread(attention(layer.attn, pooled(read, grid, layer.pool)), grid, layer.pool)
    return X + mlp(layer.mlp, norm(layer.norm2, X, M), grid)


def patches(layer: TPatchEmbed, images: Tensor) -> Tensor:
    """Patch tokens (B, N, d, C) in the spatial domain."""
    if layer.kind == "sub_patch":
        assert isinstance(layer.proj, TLinear)
        return linear(layer.proj, _sub_patches(images, layer.patch[0], layer.transform.tube))
    X = _deep_patches(layer, images) if layer.depth else patchify(images, layer.patch)
    if layer.kind == "linear":
        return layer.proj(X.flatten(2)).unflatten(-1, (-1, layer.transform.tube))
    if layer.kind == "shared":
        return torch.stack([X[..., k] @ layer.weight for k in range(X.shape[-1])], -1)
    if layer.kind == "t_linear":
        assert isinstance(layer.proj, TLinear)
        C = layer.transform.tube
        groups = [
            X[..., first : first + C] for first in range(0, X.shape[-1], C)
        ]  # channel j·C + k: feature j, slice k
        return linear(layer.proj, torch.cat(groups, 2))
    return X


def _deep_patches(layer: TPatchEmbed, volumes: Tensor) -> Tensor:
    """Patches (B, N, pixels, channels), one after the other; what the tube runs along is a channel, tube fastest."""
    sides = (layer.depth, layer.height or layer.patch[1], layer.patch[2])
    tokens = []
    for t, y, x in itertools.product(*(range(0, n, p) for n, p in zip(volumes.shape[2:], sides, strict=True))):
        part = volumes[:, :, t : t + sides[0], y : y + sides[1], x : x + sides[2]]  # (B, c, P_t, P_h, P_w)
        if layer.axes == "depth+height":
            channels = [
                part[:, j, k, h] for j in range(part.shape[1]) for k in range(sides[0]) for h in range(sides[1])
            ]
        elif layer.axes == "depth":
            channels = [part[:, j, k].flatten(1) for j in range(part.shape[1]) for k in range(sides[0])]
        else:
            channels = [part[:, j, k].flatten(1) for k in range(sides[0]) for j in range(part.shape[1])]
        tokens.append(torch.stack(channels, -1))
    return torch.stack(tokens, 1)


def _sub_patches(images: Tensor, patch: int, tube: int) -> Tensor:
    """Pixels of each sub-patch of each patch, row by row, channels fastest: (B, N, P²·c/C, C)."""
    rows, columns = (range(0, images.shape[i], patch) for i in (2, 3))
    step = patch // round(tube**0.5)
    parts = [(u, v) for u in range(0, patch, step) for v in range(0, patch, step)]

    def pixels(down: int, across: int) -> Tensor:
        return images[:, :, down : down + step, across : across + step].permute(0, 2, 3, 1).flatten(1)

    tokens = [torch.stack([pixels(y + u, x + v) for u, v in parts], -1) for y in rows for x in columns]
    return torch.stack(tokens, 1)


def coefficients(model: Any, images: Tensor) -> Tensor:
    """What is cut into patches: of many bands the kept coefficients, pixel by pixel, through the stem; (B, K, H, W)."""
    maps = images
    if not isinstance(model.bands, nn.Identity):
        spectra = images.permute(0, 2, 3, 1).reshape(-1, images.shape[1])
        pixels = [model.bands.gain[:, 0] * (model.bands.matrix @ spectrum) for spectrum in spectra]
        maps = torch.stack(pixels).view(len(images), *images.shape[2:], -1).permute(0, 3, 1, 2)
    if not isinstance(model.stem, nn.Identity):
        filters, bias, mix = model.stem.conv.weight.squeeze(2), model.stem.conv.bias, model.stem.couple.mix
        mixed = [sum(m * maps[:, j : j + 1] for j, m in enumerate(row)) for row in mix]
        slices = torch.stack([F.gelu(F.conv2d(x, filters, bias, padding=1)) for x in mixed], 2)  # (B, m, C, H, W)
        maps = slices.flatten(1, 2)
    return maps


def features(model: Any, images: Tensor) -> Tensor:
    """`forward_features` of a TCP-ViT (Algorithm 1): tokens (B, 1+N, d·C)."""
    M, embed = matrix_of(model), model.patch_embed
    read = coefficients(model, images)
    X = from_hat(overlapping_patches(embed, read), M) if isinstance(embed, ConvEmbed) else patches(embed, read)
    own = [token for token in (model.embed.cls_token, model.embed.dist_token) if token is not None]
    prefix = [from_hat(list(token), M).expand(len(X), -1, -1, -1) for token in own]
    X = torch.cat([*prefix, X], 1)
    if model.embed.pos_embed is not None:
        positions = list(model.embed.pos_embed)
        X = X + from_hat(positions * len(M) if len(positions) == 1 else positions, M)
    grid = patch_grid(images.shape[2:], model.config.patch_shape)
    for layer in model.blocks:
        X = block(layer, X, grid)
    return norm(model.norm, X, M).flatten(-2)


def shuffle(X: Tensor, M: Tensor) -> Tensor:
    """Channel shuffle of the hat slices: feature j of slice k goes to place j·C + k of the slices end to end."""
    X_hat = to_hat(X, M)
    C, d = len(X_hat), X.shape[-2]
    moved = [torch.empty_like(X_k) for X_k in X_hat]
    for k in range(C):
        for j in range(d):
            place = j * C + k
            moved[place // d][..., place % d] = X_hat[k][..., j]
    return from_hat(moved, M)


class PaperEncoder(nn.Module):
    """The paper's way to run a TCP encoder: C standard encoders of width d, one after the other, with equal weights.

    For slice attention in the hat domain without coupling, where the slices do not meet between the two transforms.
    """

    def __init__(self, blocks: list[TBlock]):
        super().__init__()
        first = blocks[0]
        if first.attn.joint or first.mlp.spatial or isinstance(first.attn.qkv, CoupledTLinear) or first.attn.shuffle:
            raise ValueError("the paper's way needs slice attention, hat-domain GELU and no coupling")
        self.slices = nn.ModuleList(
            nn.ModuleList(_slice_block(layer, k) for layer in blocks) for k in range(first.attn.tube)
        )

    def forward(self, x_hat: Tensor, grid: object = None) -> Tensor:
        """(C, B, N, d) -> (C, B, N, d); where the tokens lie does not matter here."""
        outputs = []
        for x_k, encoder in zip(x_hat, self.slices, strict=True):
            for layer in encoder:  # type: ignore[attr-defined]
                x_k = layer(x_k)
            outputs.append(x_k)
        return torch.stack(outputs)


def _slice_block(layer: TBlock, k: int) -> Block:
    """Slice k of a TBlock as a standard block."""
    qkv, fc1 = layer.attn.qkv, layer.mlp.fc1
    std = Block(qkv.d_in, layer.attn.num_heads, mlp_ratio=fc1.d_out / fc1.d_in, qkv_bias=qkv.bias_hat is not None)
    std.to(qkv.weight_hat.device, qkv.weight_hat.dtype)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():  # norm1.weight_hat, attn.qkv.weight_hat, …
            target = std.get_parameter(name.replace("_hat", ""))
            target.copy_(parameter[k].mT if "norm" not in name and "weight" in name else parameter[k].squeeze(0))
    return std


def matrix_of(layer: Any) -> Tensor:
    """M of a layer or model."""
    matrix: Tensor = layer.transform.matrices()[0]
    return matrix


def _softmax(S: Tensor) -> Tensor:
    """Row by row, as written in Eq. tsoftmax, with the largest entry taken out against overflow."""
    weights = torch.exp(S - S.amax(-1, keepdim=True))
    return weights / weights.sum(-1, keepdim=True)


def _moments(X: Tensor) -> tuple[Tensor, Tensor]:
    mu = X.mean(-1, keepdim=True)
    return mu, ((X - mu) ** 2).mean(-1, keepdim=True)
