"""`tcpvit analyze`: parameters, FLOPs and memory of models."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from tcpvit.analysis.paper_tables import theory_tables
from tcpvit.analysis.report import analyze_model, encoder_of, report_tables
from tcpvit.analysis.theory import EncoderShape, ratio_curves
from tcpvit.cli.show import show
from tcpvit.files import check_writable
from tcpvit.models.config import ViTConfig, without_tcp_options
from tcpvit.models.registry import create_model, model_config
from tcpvit.overrides import find_key, nested, parse
from tcpvit.tables import Table
from tcpvit.validation import within


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
        set: an option of the models, KEY=VALUE, such as attention=joint or img_size=64; may be repeated. Options
            that only a TCP-ViT has are set for the TCP-ViTs alone.
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
        tcpvit analyze std_vit_pet tcp_vit_pet --set backbone.depth=8
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
    if figure is not None:
        check_writable(figure)
    chosen = _with_options(names, set or [])
    if theory:
        tables = theory_tables(replace(_shape(chosen), **given))
    else:
        models = [analyze_model(name, create_model(name, **options), batch=batch) for name, options in chosen]
        tables = report_tables(models, batch=batch)
    show(tables, json=json, markdown=markdown, latex=latex)
    if figure:
        _draw(replace(_shape(chosen), **given), figure)
    return tables


def _with_options(names: list[str], words: list[str]) -> list[tuple[str, dict[str, Any]]]:
    """Each name with its options: those of TCP models go to the TCP models, if there are any."""
    configs = [model_config(name) for name in names]
    any_tcp = any(config.kind == "tcp" for config in configs)
    chosen = []
    for name, config in zip(names, configs, strict=True):
        options = _options_of(name, config, words)
        chosen.append((name, without_tcp_options(options) if config.kind == "std" and any_tcp else options))
    return chosen


def _options_of(name: str, config: Any, words: list[str]) -> dict[str, Any]:
    """KEY=VALUE words as options of the model, which in a recipe are model.options.KEY."""
    known = [field.name for field in fields(config)]
    pairs = [(find_key(key.removeprefix("model.options."), known, name), value) for key, value in parse(words)]
    options = nested(pairs)
    with within("model.options"):
        model_config(name, **without_tcp_options(options) if config.kind == "std" else options)
    return options


def _shape(chosen: list[tuple[str, dict[str, Any]]]) -> EncoderShape:
    """The shape that formulas take: that of the first TCP-ViT, or else of the first model."""
    configs = [model_config(name, **options) for name, options in chosen]
    encoder = encoder_of(next((config for config in configs if config.kind == "tcp"), configs[0]))
    if not isinstance(encoder, ViTConfig):
        raise ValueError(f"the paper's formulas are those of a ViT, and {chosen[0][0]} is none; name a ViT")
    return EncoderShape.of(encoder)


def _draw(shape: EncoderShape, path: Path) -> None:
    from tcpvit.figures.ratios import draw_ratios

    at = {"C": shape.tube, "d": shape.d, "N": shape.tokens}
    draw_ratios(ratio_curves(shape), at).savefig(path, dpi=300)
