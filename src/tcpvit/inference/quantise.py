"""int8: the weights of a file as bytes, with onnxruntime activations too; torchao rounds those of torch.export."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args

from torch import Tensor, nn

from tcpvit.errors import did_you_mean, import_extra
from tcpvit.inference.exported import quiet

Int8 = Literal["dynamic", "static", "weights"]
KINDS: tuple[str, ...] = get_args(Int8)
BATCH = 16  # images at a time in calibration


def check_int8(int8: str | None, format: str, preprocess: bool) -> None:
    """Raise unless the combination can be made."""
    if int8 is None:
        return
    if int8 not in KINDS:
        raise ValueError(f"no int8 is called {int8!r}{did_you_mean(int8, KINDS)}")
    wanted = "torch-export" if int8 == "weights" else "onnx"
    if format != wanted:
        raise ValueError(f"int8 {int8} is made for --format {wanted}, got {format}")
    if int8 == "weights":
        torchao()
    if preprocess:
        raise ValueError("int8 files take normalised images; leave --preprocess out")


def torchao() -> Any:
    """The package torchao, or an error that says how to install it."""
    with quiet():  # it remarks on kernels for GPUs
        return import_extra("torchao.quantization", "int8 weights for PyTorch are made with torchao", "int8")


def round_weights_(model: nn.Module) -> None:
    """Round the weights of all linear layers to int8, with a scale for each row; activations stay float32.

    `deployed` makes linear layers of the maps of slices.
    """
    package = torchao()
    package.quantize_(model, package.Int8WeightOnlyConfig())


def quantise(path: Path, int8: Int8, images: Tensor) -> dict[str, int]:
    """Replace an ONNX file by one whose products are of int8; `images` calibrate the ranges of a static one.

    Gives the operations of the new file by name.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic, quantize_static

    made = path.with_name("int8.onnx")
    with quiet():
        if int8 == "dynamic":
            quantize_dynamic(path, made, weight_type=QuantType.QInt8, per_channel=True)
        else:
            quantize_static(path, made, _Reader(images), per_channel=True, weight_type=QuantType.QInt8)
    os.replace(made, path)
    return dict(Counter(node.op_type for node in onnx.load(path).graph.node))


class _Reader:
    """The calibration images, batch by batch, as onnxruntime asks for them."""

    def __init__(self, images: Tensor):
        self.batches: Iterator[Tensor] = iter(images.split(BATCH))

    def get_next(self) -> dict[str, Any] | None:
        """One batch, or None at the end."""
        batch = next(self.batches, None)
        return None if batch is None else {"images": batch.numpy()}
