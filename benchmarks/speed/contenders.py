"""The models that are compared: those of `tcpvit bench`, the paper's way, and GELU in the spatial domain."""

from __future__ import annotations

from torch import nn

from tcpvit.analysis import bench
from tcpvit.analysis.bench import JOINT, OURS, SLICE, STD, Shape, ours
from tcpvit.layers.reference import PaperEncoder
from tcpvit.models import VisionTransformer

PAPER = "TCP-ViT, the paper's way"
SLICE_SPATIAL, JOINT_SPATIAL = "TCP-ViT, slice, spatial GELU", "TCP-ViT, joint, spatial GELU"
# These run eagerly in float32 and nowhere else: the paper's way is a loop that a compiler would unroll C times, and
# what compilation and bfloat16 bring shows in the others.
PLAIN = (PAPER, SLICE_SPATIAL, JOINT_SPATIAL)


def _papers_way(shape: Shape) -> nn.Module:
    """Its slices are C encoders that run one after the other."""
    model = VisionTransformer(shape.config("tcp"))
    model.blocks = nn.ModuleList([PaperEncoder(list(model.blocks))])  # type: ignore[arg-type]
    return model


ALL_OURS: dict[str, bench.Builder] = {
    STD: OURS[STD],
    PAPER: _papers_way,
    SLICE: OURS[SLICE],
    JOINT: OURS[JOINT],
    SLICE_SPATIAL: ours("tcp", activation_domain="spatial"),
    JOINT_SPATIAL: ours("tcp", attention="joint", activation_domain="spatial"),
}


def builders(peers: bool = True) -> dict[str, bench.Builder]:
    """How to build each contender that can be built here, by name; Std-ViT first."""
    return bench.builders(peers, ALL_OURS)


def build(name: str, shape: Shape) -> nn.Module:
    """One contender, always from the same random numbers."""
    return bench.build(builders()[name], shape)
