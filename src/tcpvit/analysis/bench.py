"""Time and memory of models: Std-ViT, TCP-ViT, and the same ViT from timm, vit-pytorch and Hugging Face."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tcpvit.analysis.flops import count_flops
from tcpvit.analysis.memory import count_memory
from tcpvit.compat import repair_torchvision
from tcpvit.layers import TBlock
from tcpvit.models import VisionTransformer, ViTConfig
from tcpvit.models.config import Kind
from tcpvit.timing import interleaved, using_threads

STD, SLICE, JOINT = "Std-ViT", "TCP-ViT, slice attention", "TCP-ViT, joint attention"
PRECISIONS = ("float32", "bfloat16")


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

    def config(self, kind: Kind, **options: Any) -> ViTConfig:
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


@dataclass(frozen=True)
class Speed:
    """One model of one shape: best milliseconds and FLOPs of an image.

    Speed-ups and `flops_ratio` are Std-ViT's time or FLOPs over this model's.
    """

    shape: str
    model: str
    threads: int
    precision: str
    parameters: int
    flops: int
    flops_ratio: float
    forward_ms: float
    training_ms: float
    forward_speedup: float
    training_speedup: float


@dataclass(frozen=True)
class Timed(Speed):
    """A speed, and the bytes that training holds with AdamW."""

    training_bytes: int


def count_costs(name: str, models: Mapping[str, nn.Module]) -> tuple[dict[str, int], dict[str, int]]:
    """FLOPs of an image and bytes of training a batch, of every model of a shape."""
    images = SHAPES[name].images()
    flops = {model: int(count_flops(net, images[:1])) for model, net in models.items()}
    return flops, {model: count_memory(net.train(), images).total for model, net in models.items()}


def time_models(
    name: str,
    models: Mapping[str, nn.Module],
    costs: tuple[Mapping[str, int], Mapping[str, int]],
    threads: int,
    precision: str,
    seconds: float,
) -> list[Timed]:
    """Every model of a shape, Std-ViT among them, forward and forward+backward in turns for about `seconds` each.

    `costs` is what `count_costs` gives: the same for all numbers of threads and all precisions.
    """
    flops, training_bytes = costs
    shape = SHAPES[name]
    images = shape.images()
    with using_threads(threads):
        predicting = {model: forward_step(for_inference(net), images, precision) for model, net in models.items()}
        forward = interleaved(predicting, seconds)
        learning = {model: training_step(net.train(), images, precision) for model, net in models.items()}
        training = interleaved(learning, seconds)
    return [
        Timed(
            **speed_of(model, net, flops, forward, training),
            shape=name,
            threads=threads,
            precision=precision,
            training_bytes=training_bytes[model],
        )
        for model, net in models.items()
    ]


def speed_of(
    model: str,
    net: nn.Module,
    flops: Mapping[str, int],
    forward: Mapping[str, float],
    training: Mapping[str, float],
) -> dict[str, Any]:
    """The fields of `Speed` that follow from the FLOPs and seconds of all models of a run."""
    return {
        "model": model,
        "parameters": sum(p.numel() for p in net.parameters()),
        "flops": flops[model],
        "flops_ratio": round(flops[STD] / flops[model], 4),
        "forward_ms": round(1e3 * forward[model], 4),
        "training_ms": round(1e3 * training[model], 4),
        "forward_speedup": round(forward[STD] / forward[model], 4),
        "training_speedup": round(training[STD] / training[model], 4),
    }


def for_inference(model: nn.Module) -> nn.Module:
    """In eval mode; of a TCP-ViT a copy whose norms are folded into what reads them."""
    if isinstance(model, VisionTransformer) and isinstance(model.blocks[0], TBlock):
        return copy.deepcopy(model).fuse_()
    return model.eval()


def forward_step(model: nn.Module, images: Tensor, precision: str = "float32") -> Callable[[], object]:
    """A call that runs the model on the images, as one does to predict."""

    def run() -> object:
        with torch.inference_mode(), autocast(precision):
            return model(images)

    return run


def training_step(model: nn.Module, images: Tensor, precision: str = "float32") -> Callable[[], object]:
    """A call that runs forward and backward; the gradients go at once, so that many models fit into memory."""

    def run() -> None:
        with autocast(precision):
            logits = model(images)
        logits.float().square().mean().backward()
        model.zero_grad(set_to_none=True)

    return run


def autocast(precision: str) -> torch.autocast:
    """Mixed precision, or nothing for float32."""
    return torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16")


def ours(kind: Kind, **options: Any) -> Builder:
    """A model of the library for any shape."""
    return lambda shape: VisionTransformer(shape.config(kind, **options))


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


OURS: dict[str, Builder] = {STD: ours("std"), SLICE: ours("tcp"), JOINT: ours("tcp", attention="joint")}
# name -> (package, as pip and Python call it, and how to build it)
PEERS: dict[str, tuple[str, str, Builder]] = {
    "timm": ("timm", "timm", _timm),
    "vit-pytorch": ("vit-pytorch", "vit_pytorch", _vit_pytorch),
    "Hugging Face": ("transformers", "transformers", _hugging_face),
}


def missing_peers() -> list[str]:
    """The peers whose package is not installed."""
    return [name for name, (_, module, _) in PEERS.items() if importlib.util.find_spec(module) is None]


def builders(peers: bool = True, own: Mapping[str, Builder] = OURS) -> dict[str, Builder]:
    """How to build each model that can be built here, by name; Std-ViT first."""
    missing = missing_peers()
    return {**own, **({name: build for name, (_, _, build) in PEERS.items() if name not in missing} if peers else {})}


def build(builder: Builder, shape: Shape) -> nn.Module:
    """A model, always from the same random numbers."""
    torch.manual_seed(0)
    return builder(shape)
