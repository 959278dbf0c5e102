"""The paper's tables: their symbols evaluate to their numbers."""

from __future__ import annotations

import re
from fractions import Fraction

from encoder_shapes import on_shapes

from tcpvit.analysis import EncoderShape, theory_tables


def value(formula: str, shape: EncoderShape) -> Fraction:
    """Evaluate a formula such as (4+2r)·d²·C+4·d·C."""
    code = re.sub(r"(\d)([a-z])", r"\1*\2", formula).replace("·", "*").replace("²", "**2")
    names = {"d": shape.d, "C": shape.tube, "N": shape.tokens, "r": Fraction(shape.mlp_ratio)}
    return eval(code, {}, names)


@on_shapes
def test_symbols_and_numbers_of_the_parameter_table_agree(shape):
    table = next(t for t in theory_tables(shape) if t.name == "param_general")
    *layers, total = [row.cells for row in table.rows]
    assert [cells[0] for cells in layers[:5]] == ["W_Q", "W_K", "W_V", "W_O", "MHSA"]
    for _, tcp_formula, tcp, std_formula, std, ratio in layers:
        assert value(tcp_formula, shape) == tcp
        assert value(std_formula, shape) == std
        assert ratio == tcp / std
    assert total[2] == shape.depth * shape.layer_parameters("tcp")
    assert total[4] == shape.depth * shape.layer_parameters("std")


@on_shapes
def test_symbols_and_numbers_of_the_weight_tables_agree(shape):
    mhsa, ffn, *_ = theory_tables(shape)
    sizes = {"d": shape.d, "C": shape.tube, "d_h": shape.d // shape.heads, "d_ff": shape.d_ff}
    for row in (*mhsa.rows, *ffn.rows):
        _, tensor, tensor_size, matrix, matrix_size, ratio = row.cells
        for symbols, numbers in ((tensor, tensor_size), (matrix, matrix_size)):
            factors = [symbol.split("·") for symbol in symbols.split("×")]
            expected = [sizes[f[0]] * (sizes[f[1]] if len(f) > 1 else 1) for f in factors]
            assert [int(n) for n in numbers.split("×")] == expected
        assert ratio == 1 / shape.tube


@on_shapes
def test_symbols_and_numbers_of_the_flops_table_agree(shape):
    table = theory_tables(shape)[-1]
    wide = EncoderShape(shape.d * shape.tube, 1, shape.heads, shape.mlp_ratio, shape.depth, shape.tokens)
    for row in table.rows:
        _, formula, tcp, std, ratio = row.cells
        assert tcp == shape.tube * value(formula, shape)
        assert std == value(formula, wide)
        assert ratio == tcp / std
