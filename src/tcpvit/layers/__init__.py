"""Layers of tensor tokens: hat domain, slices first, (C, B, N, d), with no loop over slices or heads."""

from tcpvit.layers.attention import Attention, TAttention
from tcpvit.layers.bands import BandDCT, BandStem
from tcpvit.layers.block import Block, DropPath, Mlp, TBlock, TMlp
from tcpvit.layers.conv import CoupledTConv2d, CoupledTConv3d, MapCoupling, TConv2d, TConv3d, TubalConv2d
from tcpvit.layers.coupling import CoupledTLinear, Coupling, shuffle_slices, t_linear
from tcpvit.layers.embed import PatchEmbed, TokenEmbedding, TPatchEmbed, patchify, patchify_slices
from tcpvit.layers.linear import TLinear, TubalLinear, slice_linear
from tcpvit.layers.local import ConvEmbed, TokenConv
from tcpvit.layers.norm import TLayerNorm
from tcpvit.layers.transform import HatTransform, mix_slices

__all__ = [
    "Attention",
    "BandDCT",
    "BandStem",
    "Block",
    "ConvEmbed",
    "CoupledTConv2d",
    "CoupledTConv3d",
    "CoupledTLinear",
    "Coupling",
    "DropPath",
    "HatTransform",
    "MapCoupling",
    "Mlp",
    "PatchEmbed",
    "TAttention",
    "TBlock",
    "TConv2d",
    "TConv3d",
    "TLayerNorm",
    "TLinear",
    "TMlp",
    "TPatchEmbed",
    "TokenConv",
    "TokenEmbedding",
    "TubalConv2d",
    "TubalLinear",
    "mix_slices",
    "patchify",
    "patchify_slices",
    "shuffle_slices",
    "slice_linear",
    "t_linear",
]
