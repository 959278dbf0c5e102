"""The decoder of a segmenter (paper, Section 5.2): feature maps to one logit for each class and pixel.

Four stages of [3×3 convolution, BatchNorm, ReLU], each at twice the size of the one before until the image's own is
reached, then a 1×1 convolution to the classes. The paper gives the decoder's size alone, 295,906 parameters; that the
convolutions come before the enlargements (16, 32, 64, 128 pixels) is our inference, and halves the work.

The decoder is dense (`kind="std"`) or made of c-products (`kind="tcp"`): it enters the hat domain once, and its last
1×1 convolution, which reads all slices, holds the way back. The decoder of volumes is the same with 3×3×3 filters and
trilinear enlargement.
"""

from __future__ import annotations

from dataclasses import fields
from itertools import pairwise
from typing import Annotated, Any

import torch
from annotated_types import MinLen
from torch import Tensor, nn
from torch.nn import functional as F

from tcpvit.layers.block import ActivationDomain
from tcpvit.layers.conv import (
    CoupledTConv2d,
    MapCoupling,
    check_map_coupling,
    init_conv_,
    mix_maps,
    t_conv,
    to_hat_maps,
)
from tcpvit.layers.transform import STORED, HatTransform, attach_transform
from tcpvit.models.config import TCP_OPTIONS, Kind, SavedConfig
from tcpvit.validation import Count, Listed, Maybe, Text, Words, dataclass

# Of feature maps: the faster one on a CPU (benchmarks/segmentation.py), of images and of volumes.
LAYOUTS = {2: torch.channels_last, 3: torch.channels_last_3d}
DENSE_CONVS: dict[int, Any] = {2: nn.Conv2d, 3: nn.Conv3d}


@dataclass(frozen=True)
class DecoderConfig(SavedConfig):
    """A dense decoder (`kind="std"`) or one of c-products (`kind="tcp"`), by the channels of its stages."""

    kind: Kind = "std"
    channels: Annotated[Listed[tuple[Count, ...]], MinLen(1)] = (96, 64, 64, 64)
    # From here on TCP only.
    tube: Maybe[Count] = None  # C, which divides all channels; None: the backbone's
    transform: Text = "dct"
    # BatchNorm and ReLU act on the hat slices, which costs no transforms, or between Φ⁻¹ and Φ, where the slices meet.
    activation_domain: ActivationDomain = "transform"
    # mix, mix:rotation and shuffle are of what enters each convolution, low_rank and partial of the convolution itself.
    coupling: Words = ()

    def __post_init__(self) -> None:
        check_map_coupling(self.slice_coupling)
        if self.transform in STORED:
            raise ValueError(f"decoder.transform is one that its name determines, as 'dct', got {self.transform!r}")
        if self.kind == "std":
            self._check_std()

    def _check_std(self) -> None:
        defaults = {f.name: f.default for f in fields(self)}
        for name in TCP_OPTIONS:
            if name in defaults and getattr(self, name) != defaults[name]:
                raise ValueError(f"decoder.{name} is an option of TCP decoders; add decoder.kind=tcp, or leave it out")

    def check_tube(self, in_channels: int, tube: int) -> None:
        """The tube divides every number of channels."""
        for channels in (in_channels, *self.channels):
            if self.kind == "tcp" and channels % tube:
                raise ValueError(
                    f"the decoder's tube {tube} does not divide its {channels} channels; take multiples of {tube}"
                )


class Decoder(nn.Module):
    """Feature maps (B, D, h, w) -> logits (B, classes, H, W), of any larger size; of volumes with `ndim=3`.

    >>> import torch
    >>> decoder = Decoder(DecoderConfig(), in_channels=192, num_classes=2)
    >>> decoder(torch.randn(1, 192, 16, 16), (128, 128)).shape, sum(p.numel() for p in decoder.parameters())
    (torch.Size([1, 2, 128, 128]), 295906)
    """

    def __init__(self, config: DecoderConfig, in_channels: int, num_classes: int, tube: int = 1, ndim: int = 2):
        super().__init__()
        self.config, self.in_channels, self.tube, self.ndim = config, in_channels, tube, ndim
        config.check_tube(in_channels, tube)
        widths = (in_channels, *config.channels)
        pairs = list(pairwise(widths))
        if config.kind == "std":
            self.transform: HatTransform | None = None
            self.stages = nn.ModuleList(Stage(a, b, ndim) for a, b in pairs)
        else:
            self.transform = HatTransform(config.transform, tube)
            self.stages = nn.ModuleList(TStage(a, b, self.transform, config, ndim) for a, b in pairs)
        self.head = DENSE_CONVS[ndim](widths[-1], num_classes, 1)
        init_conv_(self.head.weight, self.head.bias)

    def forward(self, maps: Tensor, size: tuple[int, ...]) -> Tensor:
        """(B, D, h, w) -> (B, classes, *size)."""
        layout = LAYOUTS[self.ndim]
        x = maps.contiguous(memory_format=layout)  # all stages keep it
        if self.transform is not None:
            x = to_hat_maps(self.transform, x).contiguous(memory_format=layout)
        for i, stage in enumerate(self.stages):
            x = stage(x, doubled(x, size) if i else None)
        # A 1×1 convolution and bilinear enlargement commute, so what is left to enlarge is done with the few logits.
        return resize(self.head(x), size)

    def fuse_(self) -> None:
        """Fold every BatchNorm into its convolution, for inference: the same function in fewer passes."""
        for stage in self.stages:
            stage.fuse_()  # type: ignore[operator]


class FoldingNorm(nn.BatchNorm2d):
    """BatchNorm that can be folded into the convolution before it, and is the identity from then on.

    It keeps its parameters, so that a fused decoder is saved and loaded as any other and computes the same.
    """

    fused = False

    def _check_input_dim(self, x: Tensor) -> None:
        """Maps of images and of volumes."""

    def forward(self, x: Tensor) -> Tensor:
        """Maps (B, D, h, w) -> the same shape."""
        return x if self.fused else super().forward(x)

    @torch.no_grad()
    def fold_into_(self, weight: Tensor, bias: Tensor | None) -> None:
        """For inference: the convolution's weight (D, ...) and bias (D,) take scale and shift."""
        mean, variance = self.running_mean, self.running_var
        assert bias is not None
        assert mean is not None
        assert variance is not None
        scale = self.weight / torch.sqrt(variance + self.eps)
        weight *= scale.view(-1, *[1] * (weight.ndim - 1))
        bias.copy_((bias - mean) * scale + self.bias)
        self.reset_parameters()  # γ = 1, β = 0, mean 0
        variance.fill_(1 - self.eps)
        self.fused = True

    def _load_from_state_dict(self, *args: Any) -> None:
        """What is loaded is folded into nothing."""
        super()._load_from_state_dict(*args)
        self.fused = False


class Stage(nn.Module):
    """Enlarge, 3×3 convolution, BatchNorm, ReLU: (B, in, h, w) -> (B, out, H, W)."""

    def __init__(self, in_channels: int, out_channels: int, ndim: int = 2):
        super().__init__()
        self.conv = DENSE_CONVS[ndim](in_channels, out_channels, 3, padding=1)
        init_conv_(self.conv.weight, self.conv.bias)
        self.norm = FoldingNorm(out_channels)

    def forward(self, x: Tensor, size: tuple[int, ...] | None = None) -> Tensor:
        """(B, in, h, w) -> (B, out, *size)."""
        return F.relu(self.norm(self.conv(resize(x, size))), inplace=True)

    def fuse_(self) -> None:
        """Fold the BatchNorm into the convolution."""
        self.norm.fold_into_(self.conv.weight, self.conv.bias)


class TStage(nn.Module):
    """The same by c-products, hat slices end to end: (B, C·d_in, h, w) -> (B, C·d_out, H, W).

    With `activation_domain="spatial"` it gives spatial slices to the head, and takes those of the stage before.
    """

    transform: HatTransform

    def __init__(
        self, in_channels: int, out_channels: int, transform: HatTransform, config: DecoderConfig, ndim: int = 2
    ):
        super().__init__()
        tube, coupling = transform.tube, config.slice_coupling
        attach_transform(self, transform, tube)
        self.spatial = config.activation_domain == "spatial"
        self.couple = MapCoupling(tube, coupling) if coupling.mix or coupling.shuffle else nn.Identity()
        d_in, d_out = in_channels // tube, out_channels // tube
        self.conv = t_conv(d_in, d_out, 3, tube, padding=1, coupling=coupling, ndim=ndim)
        self.norm = FoldingNorm(out_channels)

    def forward(self, x: Tensor, size: tuple[int, ...] | None = None) -> Tensor:
        """(B, C·d_in, h, w) -> (B, C·d_out, *size)."""
        if self.spatial and size is not None:  # the first stage is given hat slices
            x = mix_maps(self.transform.matrices()[0], x)
        y = self.conv(resize(self.couple(x), size))  # slices are coupled before they are enlarged: it is less to couple
        y = mix_maps(self.transform.matrices()[1], y) if self.spatial else y
        return F.relu(self.norm(y), inplace=True)

    def fuse_(self) -> None:
        """Fold the BatchNorm into the convolution, unless a transform stands between them or other filters beside."""
        if not self.spatial and not isinstance(self.conv, CoupledTConv2d):
            self.norm.fold_into_(self.conv.weight_hat, self.conv.bias_hat)


def doubled(x: Tensor, full: tuple[int, ...]) -> tuple[int, ...]:
    """Twice the size of maps (B, D, h, w), at most `full`.

    >>> import torch
    >>> doubled(torch.zeros(1, 4, 5, 9), (40, 16))
    (10, 16)
    """
    return tuple(min(2 * side, most) for side, most in zip(x.shape[2:], full, strict=True))


def resize(x: Tensor, size: tuple[int, ...] | None) -> Tensor:
    """Maps (B, D, h, w) at `size`, bilinearly (of volumes trilinearly); as they are if that is their size."""
    if size is None or x.shape[2:] == size:
        return x
    return F.interpolate(x, size, mode="bilinear" if x.ndim == 4 else "trilinear", align_corners=False)
