"""`tcpvit export`: a trained model as a file for other runtimes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from tcpvit.cli.show import show
from tcpvit.inference.export import TOLERANCE, Exported
from tcpvit.inference.export import export_model as library
from tcpvit.inference.loading import Weights
from tcpvit.inference.quantise import Int8
from tcpvit.models.deploy import Form


def export(
    model: str,
    *,
    format: Literal["onnx", "openvino", "torch-export"] = "onnx",
    out: Path | None = None,
    preprocess: bool = False,
    int8: Int8 | None = None,
    data: Annotated[str | None, typer.Option("--data", "--calibrate")] = None,
    data_root: Path | None = None,
    form: Form = "auto",
    tolerance: float = TOLERANCE,
    weights: Weights = "best",
    json: bool = False,
) -> Exported:
    """Write a trained model as an ONNX, OpenVINO or torch.export file, and compare the two.

    The file takes batches of any size. It is run beside the model at once, and is kept only if it gives the same
    numbers. Class names, metric and preprocessing stand in its metadata; `tcpvit eval` and `tcpvit predict` take it as
    they take a run. An OpenVINO file is a pair, NAME.xml and NAME.bin.

    Args:
        model: a run folder, a folder written by save_pretrained, or a preset.
        format: onnx, openvino or torch-export.
        out: the file to write, by default NAME.onnx, NAME.xml or NAME.pt2 in this folder.
        preprocess: with the preprocessing inside: pixels of any size in, probabilities out.
        int8: round weights and activations to int8, with ranges found while it runs (dynamic) or beforehand (static,
            which needs --calibrate), for ONNX; or weights alone (weights, by torchao), for torch-export.
        data: a set whose images are used for the comparison and for --int8, as for training; by default that of the
            model's own training, where it is on this machine.
        data_root: the folder that holds the sets.
        form: how linear maps of slices are written: one batched product (slices), one product for each (split), one
            with a block-diagonal matrix (dense), dense around the attention and split elsewhere (mixed), or what is
            fastest for the width of the slices (auto).
        tolerance: the largest difference that is allowed, as a fraction of the model's largest number.
        weights: which weights of a run, those of the best or of the last epoch.
        json: print JSON.

    Examples:
        tcpvit export runs/short
        tcpvit export tcp_vit_cifar_plus --out plus.onnx --preprocess
        tcpvit export runs/short --format torch-export --out short.pt2 --json
        tcpvit export tcp_vit_cifar_plus --int8 static --calibrate cifar10 --out plus-int8.onnx
    """
    found = library(
        model,
        out,
        format=format,
        preprocess=preprocess,
        int8=int8,
        data=data,
        data_root=data_root,
        form=form,
        tolerance=tolerance,
        weights=weights,
    )
    show(found.tables(), json=json, content=found.to_dict())
    return found
