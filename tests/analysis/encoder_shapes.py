"""Shapes of encoders: the paper's two, one with a long tube, one with a single slice."""

from __future__ import annotations

import pytest

from tcpvit.analysis import EncoderShape

SHAPES = [
    EncoderShape(d=16, tube=3, heads=4, mlp_ratio=4, depth=4, tokens=64),  # the paper, classification
    EncoderShape(d=64, tube=3, heads=4, mlp_ratio=2, depth=4, tokens=256),  # the paper, Pet
    EncoderShape(d=25, tube=200, heads=5, mlp_ratio=4, depth=2, tokens=9),  # hyperspectral
    EncoderShape(d=256, tube=1, heads=8, mlp_ratio=3.5, depth=12, tokens=196),
]
on_shapes = pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"d{s.d}C{s.tube}")
