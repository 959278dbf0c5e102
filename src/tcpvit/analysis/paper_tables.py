"""The tables of the paper's Section 5 for any shape, as symbols and as numbers."""

from __future__ import annotations

from tcpvit.analysis.theory import Convention, EncoderShape
from tcpvit.tables import Math, Ratio, Table, Tables


def theory_tables(shape: EncoderShape) -> Tables:
    """The paper's Tables mhsa_weights, ffn_weights and param_general and its FLOPs, as symbols and as numbers."""
    return Tables([_mhsa_weights(shape), _ffn_weights(shape), _param_general(shape), _flops(shape)])


def _mhsa_weights(shape: EncoderShape) -> Table:
    d, d_h = ("d", shape.d), ("d_h", shape.d // shape.heads)
    table = _weights("mhsa_weights", f"MHSA weights, one of H = {shape.heads} heads ({_values(shape)})")
    for name in "QKV":
        _add_weight(table, f"W_{name},h", d, d_h, shape.tube)
    _add_weight(table, "W_O", d, d, shape.tube)
    return table


def _ffn_weights(shape: EncoderShape) -> Table:
    d, d_ff = ("d", shape.d), ("d_ff", shape.d_ff)
    table = _weights("ffn_weights", f"FFN weights ({_values(shape)})")
    _add_weight(table, "W_1", d, d_ff, shape.tube)
    _add_weight(table, "W_2", d_ff, d, shape.tube)
    return table


def _weights(name: str, title: str) -> Table:
    return Table(name, title, ["projection", "TCP-ViT tensor", "size", "Std-ViT matrix", "its size", "ratio"])


def _add_weight(table: Table, name: str, rows: tuple[str, int], columns: tuple[str, int], C: int) -> None:
    (m, m_value), (n, n_value) = rows, columns
    tensor, tensor_size = f"{m}×{n}×C", f"{m_value}×{n_value}×{C}"
    matrix, matrix_size = f"{m}·C×{n}·C", f"{m_value * C}×{n_value * C}"
    table.add(*map(Math, (name, tensor, tensor_size, matrix, matrix_size)), Ratio(1 / C))


# Name, formula without its C or C², and the maps that it counts.
_PARTS = [
    ("W_Q", "d²", "Q"),
    ("W_K", "d²", "K"),
    ("W_V", "d²", "V"),
    ("W_O", "d²", "O"),
    ("MHSA", "4·d²", "QKVO"),
    ("W_1", "r·d²", "1"),
    ("W_2", "r·d²", "2"),
    ("FFN", "2r·d²", "12"),
]


def _param_general(shape: EncoderShape) -> Table:
    columns = ["component", "TCP-ViT", "parameters", "Std-ViT", "its parameters", "ratio"]
    table = Table("param_general", f"Parameters of a layer ({_values(shape)})", columns)
    tcp_weights, std_weights = shape.map_weights("tcp"), shape.map_weights("std")
    for name, formula, maps in _PARTS:
        tcp, std = (sum(weights[m] for m in maps) for weights in (tcp_weights, std_weights))
        cells = Math(f"{formula}·C"), tcp, Math(f"{formula}·C²"), std, Ratio.of(tcp, std)
        if len(maps) > 1:
            table.add(name, *cells, strong=True)
        else:
            table.add(Math(name), *cells, level=1)
    norms = 4 * shape.d * shape.tube
    table.add("two norms", Math("4·d·C"), norms, Math("4·d·C"), norms, Ratio(1))
    tcp, std = shape.layer_parameters("tcp"), shape.layer_parameters("std")
    formulas = Math("(4+2r)·d²·C+4·d·C"), Math("(4+2r)·d²·C²+4·d·C")
    table.add("layer", formulas[0], tcp, formulas[1], std, Ratio.of(tcp, std), strong=True)
    L = shape.depth
    table.add(f"L = {L} layers", None, L * tcp, None, L * std, Ratio.of(tcp, std), strong=True)
    table.notes.append("Weights and norms as in the paper; biases come on top in the models.")
    return table


def _flops(shape: EncoderShape) -> Table:
    columns = ["convention", "F(N, d)", "TCP-ViT", "Std-ViT", "ratio"]
    table = Table("flops_ratio", f"FLOPs of a layer ({_values(shape)}, N = {shape.tokens})", columns)
    formulas: dict[Convention, str] = {"multiply-add": "(8+4r)·d²·N+4·N²·d", "paper": "(8+2r)·d²·N+4·N²·d"}
    for convention, formula in formulas.items():
        tcp, std = shape.layer_flops("tcp", convention), shape.layer_flops("std", convention)
        table.add(convention, Math(formula), tcp, std, Ratio.of(tcp, std))
    table.notes += [
        "TCP-ViT: C·F(N, d), Std-ViT: F(N, d·C), without the transforms; N patches, no class token.",
        "The ratio goes to 1/C for wide slices and to 1 for many tokens.",
    ]
    return table


def _values(shape: EncoderShape) -> str:
    return f"d = {shape.d}, C = {shape.tube}, r = {shape.mlp_ratio:g}"
