"""The verbs `tcpvit analyze` and `tcpvit models`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tcpvit.algebra.checks import nearest
from tcpvit.analysis.options import parse_options
from tcpvit.analysis.paper_tables import theory_tables
from tcpvit.analysis.parameters import count_parameters
from tcpvit.analysis.predict import predict_parameters
from tcpvit.analysis.report import analyze_model, report_tables
from tcpvit.analysis.theory import EncoderShape, ratio_curves
from tcpvit.models.config import ViTConfig
from tcpvit.models.registry import create_model, list_models, model_config
from tcpvit.tables import Ratio, Table, show

# What a standard ViT has no choice of.
TCP_OPTIONS = ("tube", "transform", "attention", "activation_domain", "coupling", "patch_embed")


def analyze(
    names: list[str] | None = None,
    *,
    set: list[str] | None = None,
    batch: int = 1,
    theory: bool = False,
    d: int | None = None,
    tube: int | None = None,
    heads: int | None = None,
    mlp_ratio: float | None = None,
    depth: int | None = None,
    tokens: int | None = None,
    figure: Path | None = None,
    json: bool = False,
    markdown: bool = False,
    latex: bool = False,
) -> list[Table]:
    """Parameters, FLOPs and memory of models, by formula and by count.

    Several models stand side by side, with the ratio of each to the first. With --theory the paper's tables are
    shown instead, as symbols and numbers: of the TCP-ViT that is named, or of any d, C, H, r, L and N.

    Args:
        names: models that `tcpvit models` lists; std_vit_cifar and tcp_vit_cifar if none is named.
        set: an option of the models, KEY=VALUE, such as attention=joint or img_size=64; may be repeated. What only
            a TCP-ViT has is set for the TCP-ViTs alone.
        batch: images in the training step whose memory is counted.
        theory: the paper's Tables mhsa_weights, ffn_weights and param_general, and its FLOPs.
        d: with --theory, the width of a slice.
        tube: with --theory, the tube length C.
        heads: with --theory, the heads H of a slice.
        mlp_ratio: with --theory, the expansion r of the FFN.
        depth: with --theory, the layers L.
        tokens: with --theory, the patches N.
        figure: also draw the ratios against C, d and N into this file (.png, .pdf or .svg).
        json: print JSON.
        markdown: print Markdown.
        latex: print LaTeX (booktabs).

    Examples:
        tcpvit analyze std_vit_cifar tcp_vit_cifar
        tcpvit analyze tcp_vit_cifar --set attention=joint --batch 256
        tcpvit analyze std_vit_base_patch16_224 tcp_vit_base_patch16_224 --markdown
        tcpvit analyze --theory --d 25 --tube 200 --heads 5 --tokens 9
        tcpvit analyze --theory --latex --figure ratios.pdf
    """
    symbols: dict[str, Any] = {
        "d": d,
        "tube": tube,
        "heads": heads,
        "mlp_ratio": mlp_ratio,
        "depth": depth,
        "tokens": tokens,
    }
    given = {name: value for name, value in symbols.items() if value is not None}
    if given and not theory:
        option = next(iter(given)).replace("_", "-")
        raise ValueError(f"--{option} belongs to --theory; an option of a model is written --set KEY=VALUE")
    names = list(dict.fromkeys(names or ["std_vit_cifar", "tcp_vit_cifar"]))
    chosen = _with_options(names, parse_options(set or [], ViTConfig))
    shape = replace(_shape(chosen), **given)
    if theory:
        tables = theory_tables(shape)
    else:
        models = [analyze_model(name, create_model(name, **options), batch=batch) for name, options in chosen]
        tables = report_tables(models, batch=batch)
    show(tables, json=json, markdown=markdown, latex=latex)
    if figure:
        _draw(shape, figure)
    return tables


def models(pattern: str = "*", *, json: bool = False, markdown: bool = False, latex: bool = False) -> Table:
    """The models there are, with their size and the ratio to their twin.

    Args:
        pattern: show only the names that match this wildcard.
        json: print JSON.
        markdown: print Markdown.
        latex: print LaTeX (booktabs).

    Examples:
        tcpvit models
        tcpvit models 'tcp_*'
        tcpvit models '*_tiny_*' --json
    """
    names = list_models(pattern)
    if not names:
        raise ValueError(f"no model matches {pattern!r}{nearest(pattern, list_models())}")
    columns = ["model", "image", "patch", "d", "C", "depth", "heads", "parameters", "of its Std twin"]
    table = Table("models", "Models", columns)
    for name in names:
        table.add(*_line(name))
    table.notes.append("d is the width of a slice, C the tube length, heads are counted in each slice.")
    show([table], json=json, markdown=markdown, latex=latex)
    return table


def _line(name: str) -> list[Any]:
    config = model_config(name)
    height, width = config.image_shape
    size, twin = _size(name), "std_" + name.removeprefix("tcp_")
    ratio = Ratio(size / _size(twin)) if config.kind == "tcp" and twin in list_models() else None
    image = f"{config.in_chans}×{height}×{width}"
    return [name, image, config.patch_size, config.d, config.tube_length, config.depth, config.num_heads, size, ratio]


def _size(name: str) -> int:
    """Parameters, without building the model where a formula has them."""
    config = model_config(name)
    return predict_parameters(config) if isinstance(config, ViTConfig) else count_parameters(create_model(name))


def _with_options(names: list[str], options: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Each name with its options: those of TCP-ViT go to the TCP-ViTs, if there are any."""
    kinds = [model_config(name).kind for name in names]
    common = {key: value for key, value in options.items() if key not in TCP_OPTIONS}
    return [
        (name, common if kind == "std" and "tcp" in kinds else options) for name, kind in zip(names, kinds, strict=True)
    ]


def _shape(chosen: list[tuple[str, dict[str, Any]]]) -> EncoderShape:
    """The shape that formulas take: that of the first TCP-ViT, or else of the first model."""
    configs = [model_config(name, **options) for name, options in chosen]
    return EncoderShape.of(next((config for config in configs if config.kind == "tcp"), configs[0]))


def _draw(shape: EncoderShape, path: Path) -> None:
    from tcpvit.figures.ratios import draw_ratios

    at = {"C": shape.tube, "d": shape.d, "N": shape.tokens}
    draw_ratios(ratio_curves(shape), at).savefig(path, dpi=300)
