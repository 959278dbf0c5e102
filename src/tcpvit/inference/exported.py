"""Exported files as models: an ONNX, OpenVINO or torch.export file is loaded with its metadata and runs as a run does.

Nothing that a file says leads to another file, and no pickle is read: such files are refused.
"""

from __future__ import annotations

import importlib
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import NotRequired, TypedDict

from tcpvit.files import check_depth
from tcpvit.inference.loading import LoadedModel
from tcpvit.inference.program_file import refuse_code
from tcpvit.memory import check_memory
from tcpvit.training.preprocessing import Preprocessing
from tcpvit.validation import Count, Text, checked

Format = Literal["onnx", "openvino", "torch-export"]
FORMATS: tuple[str, ...] = get_args(Format)
SUFFIXES: dict[str, Format] = {".onnx": "onnx", ".xml": "openvino", ".pt2": "torch-export"}
PACKAGES = {"onnx": ("onnx", "onnxscript", "onnxruntime"), "openvino": ("openvino",), "torch-export": ()}
EXTRAS = {"onnx": "export", "openvino": "openvino"}
KEY = "tcpvit"  # under which a file's metadata has ours, as JSON
AT_ONCE = 32  # images: larger batches are no faster in these runtimes and take gigabytes
Run = Callable[[np.ndarray], np.ndarray]


class About(TypedDict):
    """What an exported file says about itself."""

    version: Text
    name: Text
    input: Literal["normalised", "pixels"]
    output: Literal["logits", "probabilities"]
    task: Literal["classification", "segmentation"]
    metric: Text
    image_shape: list[Count]
    classes: list[Text]
    preprocessing: Preprocessing | None
    int8: NotRequired[Text]


class ExportedModel(nn.Module):
    """A file as a module: normalised images (B, C, H, W) -> logits, whatever the file itself takes and gives."""

    def __init__(self, path: Path, run: Run, about: About):
        super().__init__()
        self.path, self.run, self.about = path, run, about
        self.place = nn.Parameter(torch.empty(0), requires_grad=False)  # says where the images are

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, classes), or (B, classes, H, W) of a segmenter."""
        wanted = tuple(self.about["image_shape"])
        if tuple(images.shape[1:]) != wanted:
            found = "×".join(map(str, images.shape[1:]))
            raise ValueError(f"{self.path} takes images of {'×'.join(map(str, wanted))}, got {found}; resize them")
        if not len(images):
            return images.new_zeros(0, len(self.about["classes"]), *self._map_shape())
        inputs = images.float().cpu()
        inputs = self._as_pixels(inputs) if self.about["input"] == "pixels" else inputs
        parts = [torch.from_numpy(self.run(some.numpy())) for some in inputs.split(AT_ONCE)]
        given = torch.cat(parts).to(images.device)
        return given.clamp_min(1e-30).log() if self.about["output"] == "probabilities" else given

    def _map_shape(self) -> tuple[int, ...]:
        return tuple(self.about["image_shape"][1:]) if self.about["task"] == "segmentation" else ()

    def _as_pixels(self, images: Tensor) -> Tensor:
        """Back from normalised images to the pixels that they were."""
        about = self.about["preprocessing"]
        assert about is not None
        mean, std = (torch.tensor(about[name]).view(-1, *[1] * (images.ndim - 2)) for name in ("mean", "std"))
        kind = about.get("dtype", "uint8")
        pixels = images * std + mean
        if kind == "float32":
            return pixels
        top = {"uint8": 255, "uint16": 65535}[kind]
        return (pixels * top).round().clamp(0, top).to(getattr(torch, kind))


def is_exported(path: Path) -> bool:
    """Whether the name is that of an exported file."""
    return path.suffix.lower() in SUFFIXES and not path.is_dir()


def load_exported(path: Path, threads: int | None = None) -> LoadedModel:
    """The model of an exported file, with what its metadata says."""
    if not path.is_file():
        raise ValueError(f"{path} is no file; `tcpvit export MODEL --out {path}` makes one")
    check_memory(4 * path.stat().st_size, str(path), "take a machine with more memory")
    kind = SUFFIXES[path.suffix.lower()]
    require(kind)
    load = {"onnx": load_onnx, "openvino": load_openvino, "torch-export": load_program}[kind]
    try:
        run, text = load(path, threads)
    except (ValueError, ImportError):
        raise
    except Exception as error:  # each runtime has its own
        said = next((line for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)[:200]
        raise ValueError(f"{path} is no whole {kind} file ({said}); export the model again") from error
    about = read_about(path, text)
    preprocessing: Any = about["preprocessing"]
    loaded = LoadedModel(about["name"], ExportedModel(path, run, about).eval(), None, preprocessing)
    if preprocessing is not None:
        loaded.check_classes(len(about["classes"]))
    return loaded


@contextmanager
def quiet() -> Iterator[None]:
    """Without the exporters' remarks, which are for those who write them."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def require(kind: str) -> None:
    """Raise unless the packages of a format are installed."""
    for package in PACKAGES[kind]:
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise ImportError(f"{kind} files need {package}: pip install 'tcpvit[{EXTRAS[kind]}]' ({error})") from error


def read_about(path: Path, text: str | None) -> About:
    """Our part of a file's metadata."""
    if text is None:
        raise ValueError(f"{path} does not say how its images are prepared: it was not made by `tcpvit export`")
    try:
        content = json.loads(text)
        check_depth(content)
        checked(content, About, "")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} has damaged metadata ({error}); export the model again") from None
    return content


def load_onnx(path: Path, threads: int | None = None) -> tuple[Run, str | None]:
    """An ONNX file through onnxruntime."""
    import onnx
    import onnxruntime

    content = path.read_bytes()
    proto = onnx.load_model_from_string(content)
    if any(onnx.external_data_helper.uses_external_data(tensor) for tensor in tensors_of(proto)):
        raise ValueError(f"{path} keeps its weights in other files, which are not read; export the model again")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads or torch.get_num_threads(), 3
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda images: session.run(None, {name: images})[0], session.get_modelmeta().custom_metadata_map.get(KEY)


def tensors_of(message: Any) -> Iterator[Any]:
    """Every tensor of an ONNX message: initial values, attributes of nodes, those of inner graphs and functions."""
    import onnx

    waiting = [message]
    while waiting:
        each = waiting.pop()
        if isinstance(each, onnx.TensorProto):
            yield each
            continue
        for field, value in each.ListFields():
            if field.message_type is not None:
                waiting += [value] if hasattr(value, "ListFields") else list(value)


def load_openvino(path: Path, threads: int | None = None) -> tuple[Run, str | None]:
    """An OpenVINO pair, .xml and .bin; computed in float32, also where the processor would round to bfloat16."""
    import openvino

    weights = path.with_suffix(".bin")
    if not weights.is_file():
        raise ValueError(f"{path} needs its weights beside it, {weights.name}; copy both files")
    core = openvino.Core()
    model = core.read_model(path.read_bytes(), weights.read_bytes())
    text = model.get_rt_info([KEY]).astype(str) if model.has_rt_info([KEY]) else None
    options = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    threads = threads or torch.get_num_threads()
    compiled = core.compile_model(model, "CPU", {**options, "INFERENCE_NUM_THREADS": threads})
    request = compiled.create_infer_request()
    return lambda images: np.array(request.infer([images])[0]), text


def load_program(path: Path, threads: int | None = None) -> tuple[Run, str | None]:
    """A file of torch.export; one that holds pickles or compiled code is refused."""
    refuse_code(path)
    extra = {f"{KEY}.json": ""}
    program = torch.export.load(str(path), extra_files=extra).module()

    @torch.inference_mode()
    def run(images: np.ndarray) -> np.ndarray:
        return program(torch.from_numpy(images)).numpy()

    return run, extra[f"{KEY}.json"] or None
