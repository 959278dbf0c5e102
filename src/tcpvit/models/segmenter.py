"""Segmenters (paper, Section 5.2): an encoder that gives feature maps, and a decoder that labels every pixel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from tcpvit.algebra.transforms import Transform
from tcpvit.layers.conv import init_conv_
from tcpvit.layers.embed import Patch, patch_shape
from tcpvit.models.config import ViTConfig
from tcpvit.models.decoder import DENSE_CONVS, Decoder, DecoderConfig
from tcpvit.models.pretrained import Pretrained
from tcpvit.models.vit import FUSED, VisionTransformer
from tcpvit.validation import Count, checked, dataclass

DENSE = DecoderConfig()  # the paper's


@dataclass(frozen=True)
class SegmenterConfig:
    """A ViT and a decoder.

    >>> backbone = ViTConfig(kind="tcp", img_size=128, patch_size=8, num_classes=0)
    >>> SegmenterConfig(backbone, DecoderConfig("tcp", channels=(96, 66))).tube_length
    3
    """

    backbone: ViTConfig
    decoder: DecoderConfig = DENSE
    num_classes: Count = 2

    def __post_init__(self) -> None:
        if self.backbone.num_classes:
            raise ValueError(f"the backbone of a segmenter has num_classes=0, got {self.backbone.num_classes}")
        self.decoder.check_tube(self.backbone.width, self.decoder_tube)

    @property
    def decoder_tube(self) -> int:
        """The tube of the decoder: its own, the backbone's, or else the image's channels."""
        return self.decoder.tube or (self.tube_length if self.kind == "tcp" else self.in_chans)

    @property
    def kind(self) -> str:
        """That of the backbone: std or tcp."""
        return self.backbone.kind

    @property
    def in_chans(self) -> int:
        """Channels of the images."""
        return self.backbone.in_chans

    @property
    def image_shape(self) -> tuple[int, ...]:
        """(height, width) of the images it is built for, (depth, height, width) of volumes; it takes any other."""
        return self.backbone.image_shape

    @property
    def ndim(self) -> int:
        """2 for images, 3 for volumes."""
        return self.backbone.ndim

    @property
    def tube_length(self) -> int:
        """The tube of the backbone."""
        return self.backbone.tube_length

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "backbone": self.backbone.to_dict(),
            "decoder": self.decoder.to_dict(),
            "num_classes": self.num_classes,
        }

    @classmethod
    def from_dict(cls, options: Mapping[str, Any]) -> SegmenterConfig:
        """From JSON; an unknown key is an error that names the nearest one."""
        return checked(dict(options), cls, "")


class EncoderDecoder(nn.Module):
    """Any encoder and a decoder: images (B, C, H, W) -> logits (B, classes, H, W); volumes likewise.

    The encoder gives feature maps (B, D, h, w), or a list of them of which the last is taken, as timm's `features_only`
    models do; a model with timm's `forward_intermediates`, as a VisionTransformer, is asked for its last maps. Images
    are padded to a multiple of `multiple` on the right and below, and the logits are cropped back.

    >>> import torch
    >>> encoder = nn.Conv2d(3, 8, 4, stride=4)
    >>> decoder = Decoder(DecoderConfig(channels=(6, 6)), in_channels=8, num_classes=5)
    >>> model = EncoderDecoder(encoder, decoder, multiple=4)
    >>> model(torch.randn(2, 3, 21, 30)).shape
    torch.Size([2, 5, 21, 30])
    """

    backbone: Any
    fused = False

    def __init__(self, backbone: nn.Module, decoder: Decoder, multiple: Patch = 1):
        super().__init__()
        self.backbone, self.decoder, self.multiple = backbone, decoder, multiple

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> logits (B, classes, H, W)."""
        padded = pad_to_multiple(images, self.multiple)
        logits = self.decoder(self.forward_features(padded), tuple(padded.shape[2:]))
        for axis, side in enumerate(images.shape[2:], start=2):
            logits = logits.narrow(axis, 0, side)
        return logits

    def forward_features(self, images: Tensor) -> Tensor:
        """Images whose size is a multiple of `multiple` -> the last feature maps (B, D, h, w)."""
        if hasattr(self.backbone, "forward_intermediates"):
            maps = self.backbone.forward_intermediates(images, 1, norm=True, intermediates_only=True)
        else:
            maps = self.backbone(images)
        last: Tensor = maps if isinstance(maps, Tensor) else maps[-1]
        if last.ndim != 2 + self.decoder.ndim or last.shape[1] != self.decoder.in_channels:
            raise ValueError(
                f"the encoder gives {tuple(last.shape)}, but the decoder takes maps (B, {self.decoder.in_channels}, "
                "h, w); give the decoder the encoder's in_channels, and take an encoder that gives channels first"
            )
        return last

    def fuse_(self) -> EncoderDecoder:
        """Fold the norms into what reads or feeds them, exactly; from then on it is for inference.

        A fused model may be saved: it comes back as an ordinary model that computes the same.
        """
        if isinstance(self.backbone, VisionTransformer):
            self.backbone.fuse_()
        self.eval().decoder.fuse_()
        self.fused = True
        return self

    def train(self, mode: bool = True) -> EncoderDecoder:
        """Set the mode; a fused model stays in eval mode."""
        if mode and self.fused:
            raise ValueError(FUSED)
        return super().train(mode)


class Segmenter(Pretrained, EncoderDecoder):
    """A ViT with a decoder, as its config says; `transform` gives the backbone one that no name determines.

    >>> from tcpvit.models import create_model
    >>> model = create_model("tcp_vit_pet")
    >>> sum(p.numel() for p in model.parameters())
    751586
    """

    config_class = SegmenterConfig

    def __init__(self, config: SegmenterConfig, transform: Transform | Tensor | None = None):
        backbone = VisionTransformer(config.backbone, transform)
        decoder = Decoder(config.decoder, config.backbone.width, config.num_classes, config.decoder_tube, config.ndim)
        # of patches, and where attention is between means of tokens, of what each of these covers
        multiple = tuple(side * config.backbone.attention_pool for side in config.backbone.patch_shape)
        super().__init__(backbone, decoder, multiple)
        self.config, self.num_classes = config, config.num_classes

    def reset_classifier(self, num_classes: int) -> None:
        """A new last layer for `num_classes`."""
        self.config, self.num_classes = replace(self.config, num_classes=num_classes), num_classes
        old = self.decoder.head
        new = DENSE_CONVS[self.decoder.ndim](
            old.in_channels, num_classes, 1, device=old.weight.device, dtype=old.weight.dtype
        )
        init_conv_(new.weight, new.bias)
        self.decoder.head = new


def pad_to_multiple(images: Tensor, multiple: Patch) -> Tensor:
    """Images (B, C, H, W) or volumes whose sides are multiples of `multiple`: the last row and column are repeated.

    >>> import torch
    >>> pad_to_multiple(torch.zeros(1, 3, 100, 128), 8).shape
    torch.Size([1, 3, 104, 128])
    """
    size = images.shape[2:]
    # Not -side % step, which torch.compile cannot follow for sizes that change.
    missing = [
        (side + step - 1) // step * step - side
        for side, step in zip(size, patch_shape(multiple, len(size)), strict=True)
    ]
    after = [n for side in reversed(missing) for n in (0, side)]
    return F.pad(images, after, mode="replicate") if any(missing) else images
