"""Convolutions by the c-product, and the decoder made of them, written out slowly, slice by slice; see `reference`."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tcpvit.layers.conv import CoupledTConv2d, TConv2d, convolve
from tcpvit.layers.coupling import Coupling
from tcpvit.layers.reference import Slices, from_hat, matrix_of, product, shuffle, to_hat


def t_conv(X: Tensor, W: Tensor, b: Tensor | None, M: Tensor, padding: int = 0) -> Tensor:
    """Convolution by the c-product, Σ_uv X[·+u, ·+v] ⋆ W[u, v] + b: maps (B, H, W, d, C), filters (k, k, d, d', C).

    Maps of volumes have one more axis, and so have their filters.
    """
    sides = W.shape[:-3]
    X = F.pad(X, (0, 0, 0, 0, *(padding for _ in sides for _ in range(2))))
    Y = torch.zeros((), dtype=X.dtype)
    for taps in itertools.product(*map(range, sides)):
        shifted = X
        for i, u in enumerate(taps):
            shifted = shifted.narrow(1 + i, u, X.shape[1 + i] - sides[i] + 1)
        Y = Y + product(shifted, W[taps], M)
    return Y if b is None else Y + b


def conv(layer: TConv2d, X: Tensor, M: Tensor) -> Tensor:
    """What `layer` computes, on spatial maps (B, H, W, d, C)."""
    C = layer.tube
    if isinstance(layer, CoupledTConv2d):
        return from_hat(_coupled_conv(layer, to_hat(X, M)), M)
    W = from_hat([W_k.movedim((1, 0), (-2, -1)) for W_k in layer.weight_hat.chunk(C)], M)  # (k, k, d, d', C)
    b = None if layer.bias_hat is None else from_hat(list(layer.bias_hat.chunk(C)), M)
    return t_conv(X, W, b, M, layer.padding)


def _coupled_conv(layer: CoupledTConv2d, X_hat: Slices) -> Slices:
    """Low_rank and partial, slice after slice: every slice (B, H, W, d)."""
    C, d = layer.tube, layer.d_in

    def convolved(X_k: Tensor, filters: Tensor) -> Tensor:
        return convolve(X_k.movedim(-1, 1), filters, padding=layer.padding).movedim(1, -1)

    def reading_all(filters: Tensor) -> Tensor:
        return torch.stack([convolved(X_j, filters[:, j * d : (j + 1) * d]) for j, X_j in enumerate(X_hat)]).sum(0)

    features: list[Slices] = [[] for _ in X_hat]  # of each slice: those that read all slices, then those that do not
    if layer.d_dense:
        features = [[reading_all(filters)] for filters in layer.dense_hat.chunk(C)]
    if layer.d_dense < layer.d_out:
        for k, W_k in enumerate(layer.weight_hat.chunk(C)):
            features[k].append(convolved(X_hat[k], W_k))
    Y_hat = [torch.cat(found, -1) for found in features]
    if layer.coupling.low_rank:
        shared = reading_all(layer.v_hat)  # (B, H, W, r)
        Y_hat = [Y_k + shared @ U_k.flatten(1).mT for Y_k, U_k in zip(Y_hat, layer.u_hat.chunk(C), strict=True)]
    assert layer.bias_hat is not None
    return [Y_k + b_k for Y_k, b_k in zip(Y_hat, layer.bias_hat.chunk(C), strict=True)]


def decode(decoder: Any, maps: Tensor, size: tuple[int, ...]) -> Tensor:
    """A TCP decoder in eval mode, transforming back after every step: (B, d·C, h, w) -> (B, classes, H, W)."""
    M, C = matrix_of(decoder), decoder.tube
    spatial = decoder.config.activation_domain == "spatial"
    X = maps.movedim(1, -1).unflatten(-1, (-1, C))  # (B, h, w, d, C)
    for i, stage in enumerate(decoder.stages):
        if getattr(stage.couple, "mix", None) is not None:
            X = from_hat(to_hat(torch.stack(to_hat(X, M), -1), stage.couple.mix), M)
        if getattr(stage.couple, "coupling", Coupling()).shuffle:
            X = shuffle(X, M)
        twice = tuple(min(2 * side, most) for side, most in zip(X.shape[1:-2], size, strict=True))
        X = conv(stage.conv, _enlarge(X, twice) if i else X, M)
        seen = list(X.unbind(-1)) if spatial else to_hat(X, M)  # what BatchNorm and ReLU act on
        seen = [F.relu(_batch_norm(stage.norm, X_k, k)) for k, X_k in enumerate(seen)]
        X = torch.stack(seen, -1) if spatial else from_hat(seen, M)
    logits = decoder.head.bias + torch.cat(seen, -1) @ decoder.head.weight.flatten(1).mT
    return _enlarge(logits[..., None], size)[..., 0].movedim(-1, 1)


def _batch_norm(norm: nn.BatchNorm2d, X_k: Tensor, k: int) -> Tensor:
    """The part of a BatchNorm that belongs to slice k, (B, H, W, d), by its running statistics."""
    own = slice(k * X_k.shape[-1], (k + 1) * X_k.shape[-1])
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scaled = (X_k - norm.running_mean[own]) / torch.sqrt(norm.running_var[own] + norm.eps)
    return norm.weight[own] * scaled + norm.bias[own]


def _enlarge(X: Tensor, size: tuple[int, ...]) -> Tensor:
    """Maps (B, h, w, d, C) at another size, bilinearly (of volumes trilinearly), feature after feature."""
    mode = "bilinear" if len(size) == 2 else "trilinear"
    planes = [
        F.interpolate(X[..., j, k][:, None], size, mode=mode, align_corners=False)[:, 0]
        for j in range(X.shape[-2])
        for k in range(X.shape[-1])
    ]
    return torch.stack(planes, -1).unflatten(-1, X.shape[-2:])
