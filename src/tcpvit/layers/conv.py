"""Convolution by the c-product, which the paper leaves as future work (its limitation 2: a tensorised decoder).

A filter bank is a tensor whose tube runs along the channels: each hat slice is convolved with its own filters, so the
weights are 1/C of a dense convolution's. Flat channels have the tube fastest, index j·C + k, as flat tokens do. Inside
a decoder feature maps are hat slices end to end, (B, C·d, H, W) with index k·d + j: one grouped convolution for all
slices. In memory the channels of a pixel lie together (torch's channels_last), which is convolved fastest.

Maps of volumes, (B, C·d, T, H, W), go the same way with filters of three axes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tcpvit.layers.coupling import Coupling, init_mix_
from tcpvit.layers.linear import TransformOf, init_weight_
from tcpvit.layers.transform import HatTransform, attach_transform, cast_like

CONVOLUTIONS = {2: F.conv2d, 3: F.conv3d}  # by the number of axes behind the channels


def convolve(x: Tensor, filters: Tensor, *rest: Any, **options: Any) -> Tensor:
    """Maps (B, in, ...) by filters (out, in, ...) of as many axes: of images or of volumes.

    >>> convolve(torch.zeros(1, 2, 4, 4, 4), torch.zeros(3, 2, 1, 1, 1)).shape
    torch.Size([1, 3, 4, 4, 4])
    """
    return CONVOLUTIONS[x.ndim - 2](x, filters, *rest, **options)


def mix_maps(matrix: Tensor, x: Tensor) -> Tensor:
    """Σ_l M[k, l]·x_l for slices end to end: (C', C) and (B, C·d, H, W) -> (B, C'·d, H, W).

    >>> mix_maps(torch.ones(1, 3), torch.ones(2, 12, 5, 5)).shape
    torch.Size([2, 4, 5, 5])
    """
    d = x.shape[1] // matrix.shape[1]
    # M ⊗ I as a 1×1 convolution: d times the products of a C×C matrix, but the channels of a pixel stay together.
    filters = torch.kron(cast_like(matrix, x).contiguous(), torch.eye(d, device=x.device, dtype=x.dtype))
    return convolve(x, filters.view(*filters.shape, *[1] * (x.ndim - 2)))


def shuffle_maps(x_hat: Tensor, tube: int) -> Tensor:
    """Channel shuffle across the slices: channel k·d + j moves to place j·C + k.

    >>> shuffle_maps(torch.arange(6.0).view(1, 6, 1, 1), tube=2).flatten().tolist()
    [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]
    """
    pixels = x_hat.movedim(1, -1)  # (B, H, W, C·d), as it lies in memory
    return pixels.unflatten(-1, (tube, -1)).transpose(-1, -2).flatten(-2).movedim(-1, 1)


def to_hat_maps(transform: HatTransform, x: Tensor) -> Tensor:
    """Flat channels with the tube fastest, spatial domain -> hat slices end to end; (B, d·C, H, W) both.

    >>> to_hat_maps(HatTransform("dct", 3), torch.randn(2, 12, 5, 5)).shape
    torch.Size([2, 12, 5, 5])
    """
    ends = shuffle_maps(x, x.shape[1] // transform.tube)  # from j·C + k to k·d + j
    return mix_maps(transform.matrices()[0], ends)


def from_hat_maps(transform: HatTransform, x_hat: Tensor) -> Tensor:
    """The inverse of `to_hat_maps`."""
    return shuffle_maps(mix_maps(transform.matrices()[1], x_hat), transform.tube)


class TConv2d(nn.Module):
    """Convolution between tensor feature maps; 1/C of the weights of nn.Conv2d(C·d_in, C·d_out).

    Lives inside a decoder, in the hat domain: hat slices end to end, (B, C·d_in, H, W) -> (B, C·d_out, H', W').

    >>> layer = TConv2d(64, 32, 3, tube=3, padding=1)
    >>> layer(torch.randn(2, 192, 16, 16)).shape, sum(p.numel() for p in layer.parameters())
    (torch.Size([2, 96, 16, 16]), 55392)
    """

    ndim = 2  # axes of a filter

    def __init__(
        self,
        d_in: int,
        d_out: int,
        kernel_size: int,
        tube: int,
        *,
        stride: int = 1,
        padding: int = 0,
        bias: bool = True,
    ):
        super().__init__()
        self.d_in, self.d_out, self.tube = d_in, d_out, tube
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding
        self.weight_hat = nn.Parameter(torch.empty(tube * d_out, d_in, *self.taps))  # slices end to end
        self.bias_hat = nn.Parameter(torch.empty(tube * d_out)) if bias else None
        self.reset_parameters()

    @property
    def taps(self) -> tuple[int, ...]:
        """The sides of a filter."""
        return (self.kernel_size,) * self.ndim

    def reset_parameters(self) -> None:
        """Draw the weights anew."""
        init_conv_(self.weight_hat, self.bias_hat)

    def forward(self, x_hat: Tensor) -> Tensor:
        """(B, C·d_in, H, W) -> (B, C·d_out, H', W')."""
        return convolve(x_hat, self.weight_hat, self.bias_hat, self.stride, self.padding, groups=self.tube)

    def extra_repr(self) -> str:
        """What `repr` shows."""
        sizes = f"d_in={self.d_in}, d_out={self.d_out}, kernel_size={self.kernel_size}, tube={self.tube}"
        return f"{sizes}, stride={self.stride}, padding={self.padding}, bias={self.bias_hat is not None}"


class TConv3d(TConv2d):
    """The same for volumes: (B, C·d_in, T, H, W) -> (B, C·d_out, T', H', W').

    >>> TConv3d(4, 2, 3, tube=3, padding=1)(torch.randn(2, 12, 4, 8, 8)).shape
    torch.Size([2, 6, 4, 8, 8])
    """

    ndim = 3


class CoupledTConv2d(TConv2d):
    """A TConv2d whose slices meet by low_rank or partial, as those of `CoupledTLinear` do.

    >>> layer = CoupledTConv2d(4, 6, 3, tube=3, padding=1, coupling=Coupling(low_rank=2, partial=0.5))
    >>> layer(torch.randn(2, 12, 5, 5)).shape
    torch.Size([2, 18, 5, 5])
    """

    def __init__(self, d_in: int, d_out: int, kernel_size: int, tube: int, *, coupling: Coupling, **options: Any):
        super().__init__(d_in, d_out, kernel_size, tube, **options)
        self.coupling = coupling
        self.d_dense = coupling.dense_features(d_out)
        taps = self.taps
        if self.d_dense:
            own = d_out - self.d_dense  # where there are none, no gradient is to be waited for
            self.weight_hat = nn.Parameter(torch.empty(tube * own, d_in, *taps), requires_grad=own > 0)
            self.dense_hat = nn.Parameter(torch.empty(tube * self.d_dense, tube * d_in, *taps))
        if coupling.low_rank:
            self.v_hat = nn.Parameter(torch.empty(coupling.low_rank, tube * d_in, *taps))
            self.u_hat = nn.Parameter(torch.empty(tube * d_out, coupling.low_rank, *[1] * self.ndim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights anew; the low-rank part starts at zero, as in LoRA."""
        for name in ("weight_hat", "dense_hat", "v_hat"):
            if hasattr(self, name) and len(getattr(self, name)):
                init_conv_(getattr(self, name), self.bias_hat)
        if hasattr(self, "u_hat"):
            nn.init.zeros_(self.u_hat)

    def forward(self, x_hat: Tensor) -> Tensor:
        """(B, C·d_in, H, W) -> (B, C·d_out, H', W')."""
        if not self.d_dense:
            y_hat = super().forward(x_hat)
        else:
            parts = [convolve(x_hat, self.dense_hat, None, self.stride, self.padding)]
            if self.weight_hat.numel():
                parts.append(convolve(x_hat, self.weight_hat, None, self.stride, self.padding, groups=self.tube))
            pixels = [part.movedim(1, -1).unflatten(-1, (self.tube, -1)) for part in parts]  # as they lie in memory
            y_hat = torch.cat(pixels, -1).flatten(-2).movedim(-1, 1)
            if self.bias_hat is not None:
                y_hat = y_hat + self.bias_hat.to(y_hat.dtype).view(-1, *[1] * self.ndim)
        if self.coupling.low_rank:
            shared = convolve(x_hat, self.v_hat, None, self.stride, self.padding)  # (B, r, H', W')
            y_hat = y_hat + convolve(shared, self.u_hat)
        return y_hat


class CoupledTConv3d(CoupledTConv2d):
    """The same for volumes."""

    ndim = 3


def t_conv(
    d_in: int,
    d_out: int,
    kernel_size: int,
    tube: int,
    *,
    padding: int = 0,
    coupling: Coupling | None = None,
    ndim: int = 2,
) -> TConv2d:
    """A TConv2d or TConv3d, or what the coupling makes of it; mix and shuffle are those of `MapCoupling`.

    >>> type(t_conv(4, 6, 3, tube=3, coupling=Coupling(low_rank=2))).__name__
    'CoupledTConv2d'
    """
    if coupling is not None and (coupling.low_rank or coupling.partial):
        coupled = CoupledTConv2d if ndim == 2 else CoupledTConv3d
        return coupled(d_in, d_out, kernel_size, tube, padding=padding, coupling=coupling)
    return (TConv2d if ndim == 2 else TConv3d)(d_in, d_out, kernel_size, tube, padding=padding)


class TubalConv2d(nn.Module):
    """The drop-in for nn.Conv2d: flat channels with the tube fastest, spatial domain.

    `weight` is the differentiable dense (out, in, k, k) filter bank.

    >>> layer = TubalConv2d(12, 6, 3, tube=3, padding=1)
    >>> x = torch.randn(2, 12, 8, 8)
    >>> layer(x).shape, layer.weight.shape, torch.allclose(layer(x), layer.to_dense()(x), atol=1e-5)
    (torch.Size([2, 6, 8, 8]), torch.Size([6, 12, 3, 3]), True)
    """

    transform: HatTransform

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        tube: int,
        transform: TransformOf = "dct",
        *,
        stride: int = 1,
        padding: int = 0,
        bias: bool = True,
    ):
        super().__init__()
        for name, channels in (("in_channels", in_channels), ("out_channels", out_channels)):
            if tube < 1 or channels % tube:
                raise ValueError(f"{name}={channels} is no multiple of the tube {tube}; choose a divisor of {channels}")
        self.in_channels, self.out_channels, self.tube = in_channels, out_channels, tube
        attach_transform(self, transform, tube)
        self.conv = TConv2d(
            in_channels // tube, out_channels // tube, kernel_size, tube, stride=stride, padding=padding, bias=False
        )
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None  # flat and spatial, as nn.Conv2d's

    @property
    def weight(self) -> Tensor:
        """The dense (out, in, k, k) filter bank of this layer, differentiable."""
        w_hat = self.conv.weight_hat
        matrix, inverse = (m.to(w_hat) for m in self.transform.matrices())
        slices = w_hat.unflatten(0, (self.tube, -1))  # (C, d_out, d_in, k, k)
        # dense[(o, p), (i, q)] = Σ_k M⁻¹[p, k] Ŵ[k, o, i] M[k, q]
        dense = torch.einsum("pk,koiyx,kq->opiqyx", inverse, slices, matrix)
        return dense.reshape(self.out_channels, self.in_channels, *w_hat.shape[2:])

    def forward(self, x: Tensor) -> Tensor:
        """(B, in, H, W) -> (B, out, H', W')."""
        y = from_hat_maps(self.transform, self.conv(to_hat_maps(self.transform, x)))
        return y if self.bias is None else y + self.bias.view(-1, 1, 1)

    def to_dense(self) -> nn.Conv2d:
        """The nn.Conv2d that computes the same."""
        conv = self.conv
        dense = nn.Conv2d(
            self.in_channels,
            self.out_channels,
            conv.kernel_size,
            stride=conv.stride,
            padding=conv.padding,
            bias=self.bias is not None,
            device=conv.weight_hat.device,
            dtype=conv.weight_hat.dtype,
        )
        with torch.no_grad():
            dense.weight.copy_(self.weight)
            if dense.bias is not None and self.bias is not None:
                dense.bias.copy_(self.bias)
        return dense

    @classmethod
    def from_dense(cls, conv: nn.Conv2d, tube: int, transform: TransformOf = "dct") -> tuple[TubalConv2d, float]:
        """The c-product layer nearest to `conv` in the Frobenius norm, and its relative error ‖W − W'‖ / ‖W‖.

        It keeps the diagonal blocks of the filter bank in the hat basis; they are nearest if the transform is
        orthogonal.
        """
        _check_dense(conv)
        layer = cls(
            conv.in_channels,
            conv.out_channels,
            conv.kernel_size[0],
            tube,
            transform,
            stride=conv.stride[0],
            padding=int(conv.padding[0]),
            bias=conv.bias is not None,
        )
        layer.to(conv.weight.device, conv.weight.dtype)
        if not layer.transform.is_orthogonal:
            raise ValueError(
                f"the nearest layer is known for orthogonal transforms only, {layer.transform.name} is not one"
            )
        dense = conv.weight.detach()
        matrix, inverse = (m.to(dense) for m in layer.transform.matrices())
        blocks = dense.unflatten(1, (-1, tube)).unflatten(0, (-1, tube))  # (o, p, i, q, k, k)
        with torch.no_grad():
            layer.conv.weight_hat.copy_(torch.einsum("kp,opiqyx,qk->koiyx", matrix, blocks, inverse).flatten(0, 1))
            if layer.bias is not None and conv.bias is not None:
                layer.bias.copy_(conv.bias)
            error = torch.linalg.norm(dense - layer.weight) / torch.linalg.norm(dense).clamp_min(1e-38)
        return layer, error.item()


class MapCoupling(nn.Module):
    """Lets the hat slices of feature maps meet: `mix` by a learnable C×C matrix, `shuffle` by a channel shuffle.

    >>> couple = MapCoupling(3, Coupling.parse("mix+shuffle"))
    >>> couple(torch.randn(2, 12, 5, 5)).shape, sum(p.numel() for p in couple.parameters())
    (torch.Size([2, 12, 5, 5]), 9)
    """

    def __init__(self, tube: int, coupling: Coupling):
        super().__init__()
        check_map_coupling(coupling)
        if not coupling.mix and not coupling.shuffle:
            raise ValueError(f"feature maps are coupled by mix and shuffle, got {coupling}")
        self.tube, self.coupling = tube, coupling
        if coupling.mix:
            self.mix = nn.Parameter(torch.empty(tube, tube))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The mixing matrix starts at the identity or at a random rotation."""
        if self.coupling.mix:
            init_mix_(self.mix, self.coupling.mix)

    def forward(self, x_hat: Tensor) -> Tensor:
        """(B, C·d, H, W) -> (B, C·d, H, W)."""
        if self.coupling.mix:
            x_hat = mix_maps(self.mix, x_hat)
        return shuffle_maps(x_hat, self.tube) if self.coupling.shuffle else x_hat

    def extra_repr(self) -> str:
        """What `repr` shows."""
        return f"tube={self.tube}, mix={self.coupling.mix}, shuffle={self.coupling.shuffle}"


def check_map_coupling(coupling: Coupling) -> None:
    """Feature maps are coupled by mix and shuffle, convolutions by low_rank and partial too."""
    others = [name for name in ("two_factor", "norm", "shared") if getattr(coupling, name)]
    if others:
        raise ValueError(
            f"convolutions are coupled by mix, shuffle, low_rank and partial, not by {' and '.join(others)}, which "
            "linear maps know"
        )


def init_conv_(weight: Tensor, bias: Tensor | None) -> None:
    """The library's one scheme, with the fan-in of a filter: (out, in, k, k) of one slice or of a dense layer."""
    init_weight_(weight, fan_in=weight[0].numel())
    if bias is not None:
        nn.init.zeros_(bias)


def _check_dense(conv: nn.Conv2d) -> None:
    same = {len(set(pair)) == 1 for pair in (conv.kernel_size, conv.stride, conv.padding)}
    plain = conv.groups == 1 and set(conv.dilation) == {1} and conv.padding_mode == "zeros"
    if same != {True} or isinstance(conv.padding, str) or not plain:
        raise ValueError(f"a c-product takes square convolutions without groups and dilation, got {conv}")
