"""The models that are compared: Std-ViT, the paper's way, ours, and the same ViT from the libraries people use."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tcpvit.compat import repair_torchvision
from tcpvit.layers.reference import PaperEncoder
from tcpvit.models import VisionTransformer, ViTConfig


@dataclass(frozen=True)
class Shape:
    """Models of the same width on the same images; `heads` is per slice, `std_heads` of Std-ViT and the peers."""

    img_size: int
    patch: int
    tube: int
    d: int
    heads: int
    std_heads: int
    depth: int
    batch: int
    mlp_ratio: float = 4.0

    @property
    def width(self) -> int:
        """D = d·C."""
        return self.tube * self.d

    @property
    def hidden(self) -> int:
        """The width inside the FFN of a Std-ViT."""
        return int(self.mlp_ratio * self.width)

    def config(self, kind: str, **options: Any) -> ViTConfig:
        """The model of that kind."""
        return ViTConfig(
            kind,
            img_size=self.img_size,
            patch_size=self.patch,
            in_chans=self.tube,
            embed_dim=self.width,
            depth=self.depth,
            num_heads=self.std_heads if kind == "std" else self.heads,
            mlp_ratio=self.mlp_ratio,
            **options,
        )

    def images(self, batch: int | None = None) -> Tensor:
        """A batch of noise."""
        return torch.randn(batch or self.batch, self.tube, self.img_size, self.img_size)

    def __str__(self) -> str:
        return (
            f"{self.img_size}×{self.img_size}×{self.tube}, P={self.patch}, d={self.d}, C={self.tube}, L={self.depth}, "
            f"batch {self.batch}"
        )


SHAPES = {
    "cifar": Shape(32, 4, tube=3, d=16, heads=4, std_heads=4, depth=4, batch=64),
    "pet": Shape(128, 8, tube=3, d=64, heads=4, std_heads=4, depth=4, batch=8, mlp_ratio=2.0),
    "base224": Shape(224, 16, tube=3, d=256, heads=4, std_heads=12, depth=2, batch=2),
    "multispectral": Shape(64, 8, tube=16, d=64, heads=1, std_heads=16, depth=2, batch=4),
    "hyperspectral": Shape(15, 5, tube=200, d=25, heads=5, std_heads=5, depth=1, batch=8),
}

Builder = Callable[[Shape], nn.Module]
STD, PAPER = "Std-ViT", "TCP-ViT, the paper's way"
SLICE, JOINT = "TCP-ViT, slice attention", "TCP-ViT, joint attention"
SLICE_SPATIAL, JOINT_SPATIAL = "TCP-ViT, slice, spatial GELU", "TCP-ViT, joint, spatial GELU"
# These run eagerly in float32 and nowhere else: the paper's way is a loop that a compiler would unroll C times, and
# what compilation and bfloat16 bring shows in the others.
PLAIN = (PAPER, SLICE_SPATIAL, JOINT_SPATIAL)


def _ours(kind: str, **options: Any) -> Builder:
    return lambda shape: VisionTransformer(shape.config(kind, **options))


def _papers_way(shape: Shape) -> nn.Module:
    """Its slices are C encoders that run one after the other."""
    model = VisionTransformer(shape.config("tcp"))
    model.blocks = nn.ModuleList([PaperEncoder(list(model.blocks))])  # type: ignore[arg-type]
    return model


def _timm(shape: Shape) -> nn.Module:
    repair_torchvision()
    from timm.models.vision_transformer import VisionTransformer as TimmViT

    return TimmViT(
        img_size=shape.img_size,
        patch_size=shape.patch,
        in_chans=shape.tube,
        num_classes=10,
        embed_dim=shape.width,
        depth=shape.depth,
        num_heads=shape.std_heads,
        mlp_ratio=shape.mlp_ratio,
    )


def _vit_pytorch(shape: Shape) -> nn.Module:
    repair_torchvision()  # some of its modules import it
    from vit_pytorch import ViT

    return ViT(
        image_size=shape.img_size,
        patch_size=shape.patch,
        channels=shape.tube,
        num_classes=10,
        dim=shape.width,
        depth=shape.depth,
        heads=shape.std_heads,
        dim_head=shape.width // shape.std_heads,
        mlp_dim=shape.hidden,
    )


def _hugging_face(shape: Shape) -> nn.Module:
    repair_torchvision()
    import transformers

    options: dict[str, Any] = {
        "image_size": shape.img_size,
        "patch_size": shape.patch,
        "num_channels": shape.tube,
        "num_labels": 10,
        "hidden_size": shape.width,
        "num_hidden_layers": shape.depth,
        "num_attention_heads": shape.std_heads,
        "intermediate_size": shape.hidden,
    }
    return _Logits(transformers.ViTForImageClassification(transformers.ViTConfig(**options)))


class _Logits(nn.Module):
    """Images to logits, without what Hugging Face wraps around them."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return self.model(images).logits


OURS: dict[str, Builder] = {
    STD: _ours("std"),
    PAPER: _papers_way,
    SLICE: _ours("tcp"),
    JOINT: _ours("tcp", attention="joint"),
    SLICE_SPATIAL: _ours("tcp", activation_domain="spatial"),
    JOINT_SPATIAL: _ours("tcp", attention="joint", activation_domain="spatial"),
}
# name -> (package, as pip and Python call it, and how to build it)
PEERS: dict[str, tuple[str, str, Builder]] = {
    "timm": ("timm", "timm", _timm),
    "vit-pytorch": ("vit-pytorch", "vit_pytorch", _vit_pytorch),
    "Hugging Face": ("transformers", "transformers", _hugging_face),
}


def builders(peers: bool = True) -> dict[str, Builder]:
    """How to build each contender that can be built here, by name; Std-ViT first."""
    missing = missing_peers()
    found = {name: build for name, (_, _, build) in PEERS.items() if name not in missing} if peers else {}
    return OURS | found


def missing_peers() -> list[str]:
    """The peers whose package is not installed."""
    return [name for name, (_, module, _) in PEERS.items() if importlib.util.find_spec(module) is None]


def build(name: str, shape: Shape) -> nn.Module:
    """One contender, always from the same random numbers."""
    torch.manual_seed(0)
    return builders()[name](shape)
