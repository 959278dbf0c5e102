"""What `tcpvit analyze` shows of one or more models: parameters, FLOPs, ratios and memory as tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

from torch import nn

from tcpvit.analysis.count import KINDS_OF_WORK, Count, Work
from tcpvit.analysis.flops import count_flops
from tcpvit.analysis.memory import Memory, count_memory
from tcpvit.analysis.parameters import count_parameters
from tcpvit.analysis.predict import predict_flops, predict_parameters
from tcpvit.analysis.theory import KINDS, EncoderShape, Kind
from tcpvit.models.config import ViTConfig
from tcpvit.models.segmenter import Segmenter, SegmenterConfig
from tcpvit.models.vit import VisionTransformer
from tcpvit.tables import Bytes, Cell, Ratio, Table, Tables

EMBEDDING = ("patch_embed", "cls_token", "dist_token", "pos_embed")
BLOCK = ("qkv", "proj", "fc1", "fc2", "norms", "coupling")
ENCODER = (*BLOCK, "final_norm")
DECODER = ("stage_", "decoder_")  # how its components begin


@dataclass(frozen=True)
class Analysis:
    """A model's numbers; the predictions are None for a model that is not of this library."""

    name: str
    config: ViTConfig | SegmenterConfig | None
    parameters: Count
    predicted_parameters: Count | None
    flops: Count
    work: dict[str, Work] | None
    memory: Memory

    @property
    def predicted_flops(self) -> Count | None:
        """The matrix products of `work`, which the counter sees."""
        return None if self.work is None else Count.of({name: work.matrix for name, work in self.work.items()})

    @property
    def total_work(self) -> Work | None:
        """Everything one image costs, by kind."""
        return None if self.work is None else reduce(add, self.work.values())

    def _repr_html_(self) -> str:
        return report_tables([self])._repr_html_()


def encoder_of(config: Any) -> Any:
    """The config of a model's encoder: of a segmenter its backbone's, else the model's own."""
    return config.backbone if isinstance(config, SegmenterConfig) else config


def analyze_model(name: str, model: nn.Module, *, batch: int = 1) -> Analysis:
    """Count and predict; FLOPs are of one image, memory of a training step on a batch."""
    config = model.config if isinstance(model, VisionTransformer | Segmenter) else None
    return Analysis(
        name=name,
        config=config,
        parameters=count_parameters(model),
        predicted_parameters=config and predict_parameters(config),
        flops=count_flops(model),
        work=config and predict_flops(config),
        memory=count_memory(model, batch=batch),
    )


def report_tables(models: Sequence[Analysis], *, batch: int = 1) -> Tables:
    """The tables of one model, or of several side by side with the ratio of each to the first."""
    work = _work_by_kind(models) if len(models) > 1 else _work_by_component(models[0])
    tables = [_parameters(models), _flops(models), work, _ratios(models), _memory(models, batch)]
    return Tables(table for table in tables if table.rows)


def _parameters(models: Sequence[Analysis]) -> Table:
    table = _beside("parameters", "Parameters", "component", models, ("predicted", "counted"))
    pairs = [(m.predicted_parameters, m.parameters) for m in models]
    if all(m.config for m in models):
        _add(table, pairs, "embeddings and tokens", EMBEDDING, strong=True)
        _add_each(table, pairs, EMBEDDING, level=1)
        _add(table, pairs, "encoder", ENCODER, strong=True)
        _add_each(table, pairs, ENCODER, level=1)
        _add_each(table, pairs, ("transform", "head", "head_dist"))
        if decoder := tuple(name for name in _names(pairs) if name.startswith(DECODER)):
            _add(table, pairs, "decoder", decoder, strong=True)
            _add_each(table, pairs, decoder, level=1)
    else:
        _add_each(table, pairs, _names(pairs))
    _add(table, pairs, "total", _names(pairs), strong=True)
    return table


def _flops(models: Sequence[Analysis]) -> Table:
    table = _beside("flops", "FLOPs of one image, matrix products", "component", models, ("predicted", "measured"))
    pairs = [(m.predicted_flops, m.flops) for m in models]
    _add_each(table, pairs, _names(pairs))
    _add(table, pairs, "total", _names(pairs), strong=True)
    table.notes.append("2 for each multiply-add. Transforms are products with a C×C matrix and are among them.")
    return table


UNCOUNTED = (
    "Softmax counts 5 an entry, a norm 7, GELU 5, BatchNorm 2, ReLU 1; adding biases and residuals, and enlarging "
    "feature maps, is not counted."
)


def _work_by_kind(models: Sequence[Analysis]) -> Table:
    table = _beside("work", "Operations of one image by kind, predicted", "kind", models)
    works = [m.total_work for m in models]
    for kind in (*KINDS_OF_WORK, "total"):
        values = [None if work is None else getattr(work, kind) for work in works]
        if any(values):
            table.add(kind, *_with_ratios(values), strong=kind == "total")
    table.notes.append(UNCOUNTED)
    return table


def _work_by_component(model: Analysis) -> Table:
    total = model.total_work or Work()
    kinds = [kind for kind in KINDS_OF_WORK if getattr(total, kind)]
    table = Table("work", "Operations of one image by kind, predicted", ["component", *kinds, "total"])
    for name, work in (model.work or {}).items():
        if work.total:
            table.add(name, *(getattr(work, kind) for kind in kinds), work.total)
    if table.rows:
        table.add("total", *(getattr(total, kind) for kind in kinds), total.total, strong=True)
    table.notes.append(UNCOUNTED)
    return table


def _ratios(models: Sequence[Analysis]) -> Table:
    """The paper's formulas for the TCP-ViT among the models, beside the count if its Std-ViT is there too."""
    table = Table("ratios", "TCP-ViT beside Std-ViT", ["quantity", "Std-ViT", "TCP-ViT", "ratio"])
    tcp = [m for m in models if m.config and m.config.kind == "tcp"]
    std = [m for m in models if m.config and m.config.kind == "std"]
    if len(tcp) == 1:
        if len(std) == 1:
            _add_counts(table, std[0], tcp[0])
        _add_formulas(table, tcp[0])
    return table


def _add_counts(table: Table, std: Analysis, tcp: Analysis) -> None:
    quantities: dict[str, Callable[[Analysis], int]] = {
        "parameters, whole model": lambda m: m.parameters,
        "parameters, blocks and final norm": lambda m: m.parameters.sum(*ENCODER),
        "parameters, one block": lambda m: m.parameters.sum(*BLOCK) // (encoder_of(m.config).depth if m.config else 1),
        "FLOPs, matrix products": lambda m: m.flops,
        "FLOPs, with softmax, norms, GELU": lambda m: m.total_work.total if m.total_work else 0,
    }
    for name, value in quantities.items():
        table.add(name, value(std), value(tcp), Ratio.of(value(tcp), value(std)))


def _add_formulas(table: Table, tcp: Analysis) -> None:
    assert tcp.config is not None
    shape = EncoderShape.of(encoder_of(tcp.config))
    weights = {kind: sum(shape.map_weights(kind).values()) for kind in KINDS}
    formulas: dict[str, dict[Kind, int]] = {
        "linear maps of a layer, 1/C": weights,
        "layer with norms (eq. tcp_total)": {kind: shape.layer_parameters(kind) for kind in KINDS},
        "its FLOPs (eq. flops_ratio)": {kind: shape.layer_flops(kind) for kind in KINDS},
        "its FLOPs, as the paper counts": {kind: shape.layer_flops(kind, "paper") for kind in KINDS},
    }
    for name, value in formulas.items():
        table.add(f"formula: {name}", value["std"], value["tcp"], Ratio.of(value["tcp"], value["std"]))
    table.notes.append(
        f"The formulas take d = {shape.d}, C = {shape.tube}, r = {shape.mlp_ratio:g} and N = {shape.tokens} patches; "
        f"they leave out biases, embeddings, head and class token."
    )
    if encoder_of(tcp.config).slice_coupling.shared:
        table.notes.append("They know no slices that share their weights, as here: 1/C² of the dense layer's weights.")


def _memory(models: Sequence[Analysis], batch: int) -> Table:
    table = _beside("memory", f"Memory of a training step, batch {batch}", "kind", models)
    labels = {"moments": "moments of AdamW", "activations": "activations saved for backward"}
    for kind in ("weights", "gradients", "moments", "activations", "total"):
        sizes = [Bytes(getattr(m.memory, kind)) for m in models]
        table.add(labels.get(kind, kind), *_with_ratios(sizes), strong=kind == "total")
    return table


# --------------------------------------------------------------------------------------------- models side by side

Pair = tuple[Count | None, Count]  # predicted and counted


def _beside(name: str, title: str, rows: str, models: Sequence[Analysis], parts: tuple[str, ...] = ("",)) -> Table:
    """A table with columns for each model, and its ratio to the first model from the second on."""
    columns = [rows]
    for i, model in enumerate(models):
        columns += [f"{model.name} {part}".strip() for part in parts]
        columns += [f"{model.name} ratio" if len(models) > 2 else "ratio"] if i else []
    return Table(name, title, columns)


def _names(pairs: Sequence[Pair]) -> tuple[str, ...]:
    """The components of all the models, in their order."""
    return tuple(dict.fromkeys(name for pair in pairs for count in pair if count for name in count.components))


def _add_each(table: Table, pairs: Sequence[Pair], names: Sequence[str], level: int = 0) -> None:
    for name in names:
        if any(count.sum(name) for pair in pairs for count in pair if count is not None):
            _add(table, pairs, name, (name,), level=level)


def _add(
    table: Table, pairs: Sequence[Pair], label: str, names: Sequence[str], *, level: int = 0, strong: bool = False
) -> None:
    cells: list[Cell] = []
    first = pairs[0][1].sum(*names)
    for i, (predicted, counted) in enumerate(pairs):
        cells += [None if predicted is None else predicted.sum(*names), counted.sum(*names)]
        cells += [Ratio.of(counted.sum(*names), first)] if i else []
    table.add(label, *cells, level=level, strong=strong)


def _with_ratios(values: Sequence[Cell]) -> list[Cell]:
    cells = list(values[:1])
    for value in values[1:]:
        cells += [value, Ratio.of(value, values[0])]  # type: ignore[arg-type]
    return cells
