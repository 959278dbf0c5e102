"""int8: the weights of an ONNX file as bytes, activations too, by onnxruntime's own quantisation."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args

from torch import Tensor

from tcpvit.errors import did_you_mean

Int8 = Literal["dynamic", "static"]
KINDS: tuple[str, ...] = get_args(Int8)
BATCH = 16  # images at a time in calibration


def check_int8(int8: str | None, format: str, preprocess: bool) -> None:
    """Raise unless the combination can be made."""
    if int8 is None:
        return
    if int8 not in KINDS:
        raise ValueError(f"no int8 is called {int8!r}{did_you_mean(int8, KINDS)}")
    if format != "onnx":
        raise ValueError(f"int8 is made for --format onnx, got {format}")
    if preprocess:
        raise ValueError("int8 files take normalised images; leave --preprocess out")


def quantise(path: Path, int8: Int8, images: Tensor) -> None:
    """Replace an ONNX file by one whose products are of int8; `images` calibrate the ranges of a static one."""
    from onnxruntime.quantization import QuantType, quantize_dynamic, quantize_static

    made = path.with_name("int8.onnx")
    if int8 == "dynamic":
        quantize_dynamic(path, made, weight_type=QuantType.QInt8, per_channel=True)
    else:
        quantize_static(path, made, _Reader(images), per_channel=True, weight_type=QuantType.QInt8)
    os.replace(made, path)


class _Reader:
    """The calibration images, batch by batch, as onnxruntime asks for them."""

    def __init__(self, images: Tensor):
        self.batches: Iterator[Tensor] = iter(images.split(BATCH))

    def get_next(self) -> dict[str, Any] | None:
        """One batch, or None at the end."""
        batch = next(self.batches, None)
        return None if batch is None else {"images": batch.numpy()}
