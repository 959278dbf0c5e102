"""Any Transformer to its c-product counterpart and back: timm, transformers, torchvision, your own (paper, Section 3).

>>> import torch
>>> from tcpvit.tensorize import tensorize_
>>> layer = torch.nn.TransformerEncoderLayer(48, nhead=4, dim_feedforward=96, batch_first=True)
>>> report = tensorize_(layer, tube=3)
>>> round(report.ratio, 3)
0.352
"""

import tcpvit.tensorize.saving  # noqa: F401  # registers how converted models are saved and loaded
from tcpvit.tensorize.config import EncoderConfig, TensorizeConfig
from tcpvit.tensorize.convert import materialize_, tensorize_, to_dense_
from tcpvit.tensorize.drop_ins import TubalConv1D, TubalMultiheadAttention, TubalPatchConv2d
from tcpvit.tensorize.flops import faster_dense
from tcpvit.tensorize.origin import build
from tcpvit.tensorize.quality import Comparison, compare
from tcpvit.tensorize.refine import refine
from tcpvit.tensorize.report import LayerRow, Report
from tcpvit.training.distill import distill

__all__ = [
    "Comparison",
    "EncoderConfig",
    "LayerRow",
    "Report",
    "TensorizeConfig",
    "TubalConv1D",
    "TubalMultiheadAttention",
    "TubalPatchConv2d",
    "build",
    "compare",
    "distill",
    "faster_dense",
    "materialize_",
    "refine",
    "tensorize_",
    "to_dense_",
]
