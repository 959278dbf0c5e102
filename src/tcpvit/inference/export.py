"""Export: a trained model as one ONNX, OpenVINO or torch.export file, run at once beside the model it was made of.

A file stands in its place only after it has given the model's own numbers at batches of 1, 3 and 7.
"""

from __future__ import annotations

import copy
import json
import os
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import tcpvit
from tcpvit.analysis.dry_run import find_example
from tcpvit.data import Batches, Images, Splits
from tcpvit.data.augment import normalise
from tcpvit.data.image_set import PIXEL_SCALE
from tcpvit.errors import did_you_mean
from tcpvit.files import check_writable, temporary_folder
from tcpvit.inference.evaluate import recipe_for
from tcpvit.inference.exported import (
    FORMATS,
    KEY,
    SUFFIXES,
    About,
    ExportedModel,
    Format,
    load_exported,
    quiet,
    require,
)
from tcpvit.inference.loading import LoadedModel, Weights, load_model
from tcpvit.inference.pixels import FromPixels
from tcpvit.inference.quantise import Int8, check_int8, quantise, round_weights_
from tcpvit.models.deploy import Form, deployed
from tcpvit.models.segmenter import EncoderDecoder
from tcpvit.tables import Bytes, Table, percent
from tcpvit.tensorize import materialize_
from tcpvit.training.build import load_splits
from tcpvit.training.evaluation import evaluate, unwrapped
from tcpvit.training.metrics import LABELS
from tcpvit.training.tasks import Classification, Segmentation, task_for

BATCHES = (1, 3, 7)  # at which a file is compared with its model
TOLERANCE = 1e-4  # of the largest number that the model gives
OPSET = 20  # the first with GELU
MOST = 2**16  # images in a batch
SHOWN = 6  # kinds of operations in the table; to_dict has all
CALIBRATED, SCORED = 256, 1000  # images for the ranges of static int8, and for accuracy before and after


@dataclass(frozen=True)
class Exported:
    """A file that was written: its size, its operations, and the largest difference from the model's own numbers."""

    file: str
    format: str
    form: str
    bytes: int
    operations: dict[str, int]
    difference: float
    largest: float  # of the model's own numbers
    checked_on: str
    int8: str | None = None
    int8_difference: float | None = None
    metric: str | None = None  # of these, on `scored` images: the model's and the int8 file's
    scored: int = 0
    before: float | None = None
    after: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)

    def tables(self) -> list[Table]:
        """What was written, and how it compares."""
        table = Table("export", self.file, ["", "value"])
        table.notes.append(f"compared with the model at batches of {', '.join(map(str, BATCHES))}: {self.checked_on}")
        table.add("size", Bytes(self.bytes))
        table.add("largest difference", f"{self.difference:.2g} (of numbers up to {self.largest:.2g})")
        if self.int8_difference is not None:
            table.add(f"largest difference, int8 {self.int8}", f"{self.int8_difference:.2g}")
        if self.metric is not None and self.before is not None and self.after is not None:
            row = f"{LABELS[self.metric]} before and after, {self.scored:,} images"
            table.add(row, f"{percent(self.before)} and {percent(self.after)}")
        if self.operations:
            common = sorted(self.operations.items(), key=lambda item: (-item[1], item[0]))
            rest = sum(count for _, count in common[SHOWN:])
            named = [f"{count} {name}" for name, count in common[:SHOWN]] + [f"{rest} others"] * (rest > 0)
            table.add("operations", ", ".join(named))
        return [table]


@dataclass(frozen=True)
class Sample:
    """Images to compare a file and its model on: pixels, where they are from, and the set that has more of them."""

    pixels: Tensor  # (n, C, *size)
    source: str
    splits: Splits | None = None


def export_model(
    target: str | Path | LoadedModel,
    out: str | Path | None = None,
    *,
    format: Format = "onnx",
    preprocess: bool = False,
    int8: Int8 | None = None,
    data: str | None = None,
    data_root: str | Path | None = None,
    form: Form = "auto",
    tolerance: float = TOLERANCE,
    weights: Weights = "best",
) -> Exported:
    """Write what `load_model` finds for `target` as a file, by default NAME.onnx (NAME.xml, NAME.pt2) here.

    With `preprocess` the file takes pixels of any size and gives probabilities. `data` is a set whose images are used
    for the comparison, and by static `int8` for calibration; by default the set of the model's own training.
    """
    if format not in FORMATS:
        raise ValueError(f"no format is called {format!r}{did_you_mean(format, FORMATS)}")
    if not tolerance >= 0:
        raise ValueError(f"a tolerance is a number from 0, got {tolerance:g}")
    require(format)
    check_int8(int8, format, preprocess)
    loaded = target if isinstance(target, LoadedModel) else load_model(target, weights)
    if isinstance(loaded.model, ExportedModel):
        raise ValueError(f"{target} is an exported file already; export the run or model that it was made of")
    loaded = _on_cpu(loaded)
    suffix = {kind: suffix for suffix, kind in SUFFIXES.items()}[format]
    path = Path(out or f"{loaded.name}{suffix}")
    if path.suffix.lower() != suffix:
        other = SUFFIXES.get(path.suffix.lower())
        hint = f"; --format {other} writes such a file" if other else ""
        raise ValueError(f"a file of the format {format} is called NAME{suffix}, got {path}{hint}")
    check_writable(path)
    about = describe(loaded, preprocess, int8)
    sample = sample_images(loaded, about, data, data_root)
    if int8 == "static" and sample.splits is None:
        raise ValueError("static int8 needs images for its ranges; name a set with --calibrate")
    graph = graph_of(loaded, about, form)
    path.parent.mkdir(parents=True, exist_ok=True)
    with temporary_folder(path.parent, ".exporting") as folder:
        made = folder / path.name
        operations = write_graph(graph, made, format, about, example_for(about, sample))
        difference, largest = compare(made, loaded, about, sample, tolerance)
        found = Exported(str(path), format, form, 0, operations, difference, largest, sample.source)
        if int8 is not None:
            found = replace(found, **make_int8(made, int8, graph, loaded, about, sample))
        parts = sorted(folder.iterdir(), key=lambda part: part.name == path.name)  # the file that is asked for last
        found = replace(found, bytes=sum(part.stat().st_size for part in parts))
        for part in parts:
            os.replace(part, path.parent / part.name)
    return found


def _on_cpu(loaded: LoadedModel) -> LoadedModel:
    """The model where the file will be compared with it; a copy, so that the caller's stays where it is."""
    return loaded if loaded.device.type == "cpu" else replace(loaded, model=copy.deepcopy(loaded.model).cpu())


def describe(loaded: LoadedModel, preprocess: bool, int8: str | None) -> About:
    """What the file will say about itself."""
    recorded = loaded.full_record()
    if preprocess and recorded is None:
        raise ValueError(f"how the images of {loaded.name} are prepared is not known; export it without --preprocess")
    segments = isinstance(loaded.model, EncoderDecoder)
    if preprocess and recorded is not None and len(recorded["image_shape"]) > 3:
        raise ValueError(f"{loaded.name} takes volumes or clips, which a file does not prepare; leave --preprocess out")
    if recorded is not None and segments and len(recorded["image_shape"]) == 3:
        recorded = {**recorded, "fit": "squash"}  # a graph has one size, and sees the whole image
    shape, classes = _shape_and_classes(loaded)
    task = (Segmentation if segments else Classification)(len(classes))
    about: About = {
        "version": tcpvit.__version__,
        "name": loaded.name,
        "input": "pixels" if preprocess else "normalised",
        "output": "probabilities" if preprocess else "logits",
        "task": "segmentation" if segments else "classification",
        "metric": task.metric,
        "image_shape": shape,
        "classes": classes,
        "preprocessing": recorded,  # type: ignore[typeddict-item]
    }
    return {**about, "int8": int8} if int8 else about


def _shape_and_classes(loaded: LoadedModel) -> tuple[list[int], list[str]]:
    if loaded.preprocessing is not None:
        return list(loaded.preprocessing["image_shape"]), list(loaded.preprocessing["classes"])
    config: Any = loaded.config
    if config is not None:
        shape = [config.in_chans, *config.image_shape]
    else:
        example = find_example(loaded.model)
        images = next(iter(example.values())) if isinstance(example, dict) else example
        if not isinstance(images, Tensor) or images.ndim < 4 or not images.is_floating_point():
            raise ValueError(f"{loaded.name} takes no images; models of images are exported")
        shape = list(images.shape[1:])
    with torch.inference_mode():
        logits = unwrapped(loaded.model(torch.zeros(1, *shape)))
    return shape, [str(k) for k in range(logits.shape[1])]


def sample_images(loaded: LoadedModel, about: About, data: str | None, root: str | Path | None) -> Sample:
    """Real images: of the set that is named, else of the model's own; made ones where there are none."""
    wanted = sum(BATCHES)
    if data is not None or loaded.recipe is not None:
        try:
            recipe = recipe_for(loaded, data).data
            splits = load_splits(replace(recipe, root=str(root)) if root is not None else recipe)
            pixels = _take(splits.test, about, wanted)
            return Sample(pixels, f"{len(pixels)} images of {splits.test.source}", splits)
        except (ValueError, OSError, ImportError):
            if data is not None:
                raise
    kind = (loaded.preprocessing or {}).get("dtype", "uint8")
    waves = torch.nn.functional.interpolate(
        torch.rand(wanted, about["image_shape"][0], *[5] * (len(about["image_shape"]) - 1)),
        about["image_shape"][1:],
        mode="trilinear" if len(about["image_shape"]) == 4 else "bilinear",
    )
    dtype = getattr(torch, kind)
    return Sample((waves * PIXEL_SCALE[dtype]).to(dtype), "made images; name real ones with --data")


def _take(images: Images, about: About, most: int) -> Tensor:
    """The pixels of the first images of a set, which should have the model's shape."""
    if list(images.image_shape) != about["image_shape"]:
        found, wanted = ("×".join(map(str, shape)) for shape in (images.image_shape, about["image_shape"]))
        raise ValueError(f"the images of {images.source} are {found}, the model takes {wanted}; name another set")
    return images.fetch(torch.arange(min(len(images), most))).images


def make_int8(
    file: Path, int8: Int8, graph: nn.Module, loaded: LoadedModel, about: About, sample: Sample
) -> dict[str, Any]:
    """Round the file to int8, and say what that costs: the difference, and the metric before and after."""
    if int8 == "weights":
        round_weights_(graph)
        operations = write_graph(graph, file, "torch-export", about, example_for(about, sample))
    else:
        pixels = sample.pixels if sample.splits is None else _take(sample.splits.train, about, CALIBRATED)
        operations = quantise(file, int8, normalised(loaded, about, pixels))
    off, _ = compare(file, loaded, about, sample, float("inf"))
    found: dict[str, Any] = {"operations": operations, "int8": int8, "int8_difference": off}
    if sample.splits is None:
        return found
    images = loaded.prepare(sample.splits.test)
    images = images.subset(torch.arange(min(len(images), SCORED)))
    task = task_for(images)
    for name, model in (("before", loaded.model), ("after", load_exported(file).model)):
        metrics = evaluate(model, Batches(images, 50), task)
        found[name] = metrics.summary()[task.metric]
    return {**found, "metric": task.metric, "scored": len(images)}


def normalised(loaded: LoadedModel, about: About, pixels: Tensor) -> Tensor:
    """Pixels of the model's size as the model takes them; as ImageNet's where nothing is recorded."""
    recorded: Any = about["preprocessing"]
    channels = about["image_shape"][0]
    mean, std = (recorded["mean"], recorded["std"]) if recorded else ([0.5] * channels, [0.25] * channels)
    return normalise(pixels, tuple(mean), tuple(std), PIXEL_SCALE[pixels.dtype])


class _Logits(nn.Module):
    """A foreign model without what it wraps around its logits."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return unwrapped(self.model(images))


def graph_of(loaded: LoadedModel, about: About, form: Form = "auto") -> nn.Module:
    """The module that is traced: the model in its form for other runtimes, with its preprocessing if asked for."""
    model = copy.deepcopy(loaded.model).cpu().float()
    graph = deployed(materialize_(model) if loaded.config is None else model, form)
    graph = _Logits(graph) if loaded.config is None else graph
    if about["input"] == "pixels":
        recorded: Any = about["preprocessing"]
        fit = recorded.get("fit") or loaded.fit
        graph = FromPixels(graph, recorded, fit, loaded.dtype)
    return graph.eval()


def example_for(about: About, sample: Sample) -> Tensor:
    """What the graph is traced with: two images, of another size than the model's if it takes any."""
    if about["input"] == "pixels":
        sides = [side + 5 + 2 * i for i, side in enumerate(about["image_shape"][1:])]
        return torch.zeros(2, about["image_shape"][0], *sides, dtype=sample.pixels.dtype)
    return torch.zeros(2, *about["image_shape"])


def write_graph(graph: nn.Module, path: Path, format: Format, about: About, example: Tensor) -> dict[str, int]:
    """Trace the graph with a batch of any size and write it; gives its operations by name."""
    free = [0, *range(2, example.ndim)] if about["input"] == "pixels" else [0]
    names = ["batch", "", "height", "width", "depth"]
    shapes = {axis: torch.export.Dim(names[axis], min=1, max=MOST) for axis in free}
    with quiet(), torch.no_grad():
        program = torch.export.export(graph, (example,), dynamic_shapes=(shapes,))
        program = program.run_decompositions({})
        if format == "torch-export":
            program.example_inputs = None
            torch.export.save(program, path, extra_files={f"{KEY}.json": json.dumps(about)})
            calls = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
            return dict(Counter(call.split(".")[1] for call in calls if call.startswith("aten.")))
        proto = as_onnx(program, about)
        if format == "onnx":
            path.write_bytes(proto.SerializeToString())
        else:
            write_openvino(proto.SerializeToString(), path, about)
    return dict(Counter(node.op_type for node in proto.graph.node))


def as_onnx(program: Any, about: About) -> Any:
    """The program as an ONNX message, without the exporter's notes on where each node comes from."""
    import onnx

    names = {"input_names": ["images"], "output_names": [about["output"]]}
    made = torch.onnx.export(program, dynamo=True, verbose=False, opset_version=OPSET, **names)  # type: ignore[arg-type]
    assert made is not None
    proto = made.model_proto
    graph = proto.graph
    del graph.value_info[:]  # shapes, which every runtime infers
    for thing in (*graph.node, *graph.initializer, *graph.input, *graph.output, graph):
        thing.ClearField("metadata_props")
        thing.ClearField("doc_string")
    del proto.metadata_props[:]
    onnx.helper.set_model_props(proto, {KEY: json.dumps(about)})
    proto.producer_name = "tcpvit"
    return proto


def write_openvino(content: bytes, path: Path, about: About) -> None:
    """The pair .xml and .bin of an ONNX file's content, in float32."""
    import openvino

    model = openvino.Core().read_model(content)
    model.set_rt_info(json.dumps(about), [KEY])
    openvino.save_model(model, path, compress_to_fp16=False)


@torch.inference_mode()
def compare(file: Path, loaded: LoadedModel, about: About, sample: Sample, tolerance: float) -> tuple[float, float]:
    """The largest difference between a file and its model, and the largest number; an error if it is too large."""
    again: Any = load_exported(file).model
    worst = largest = 0.0
    model = loaded.model.eval()
    first = 0
    for size in BATCHES:
        rows = torch.arange(first, first + size) % len(sample.pixels)
        first += size
        pixels = sample.pixels[rows]
        wanted = unwrapped(model(normalised(loaded, about, pixels)))
        if about["output"] == "probabilities":
            wanted = wanted.softmax(1)
            found = torch.from_numpy(again.run(pixels.numpy()))
        else:
            found = torch.from_numpy(again.run(normalised(loaded, about, pixels).numpy()))
        if found.shape != wanted.shape or not found.isfinite().all():
            raise ValueError(f"the exported file gives {tuple(found.shape)}, the model {tuple(wanted.shape)}")
        worst = max(worst, (found - wanted).abs().max().item())
        largest = max(largest, wanted.abs().max().item())
    if worst > tolerance * max(largest, 1.0):
        raise ValueError(
            f"the exported file differs from its model by {worst:.2g}, which is more than {tolerance:g} of its largest "
            f"number, {largest:.2g}; nothing was written (--tolerance allows more)"
        )
    return worst, largest
