"""The paper's formulas: closed forms, and tables whose symbols evaluate to their numbers."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest

from tcpvit.analysis import EncoderShape, predict_parameters, ratio_curves, theory_tables
from tcpvit.models import model_config

SHAPES = [
    EncoderShape(d=16, tube=3, heads=4, mlp_ratio=4, depth=4, tokens=64),  # the paper, classification
    EncoderShape(d=64, tube=3, heads=4, mlp_ratio=2, depth=4, tokens=256),  # the paper, Pet
    EncoderShape(d=25, tube=200, heads=5, mlp_ratio=4, depth=2, tokens=9),  # hyperspectral
    EncoderShape(d=256, tube=1, heads=8, mlp_ratio=3.5, depth=12, tokens=196),
]
on_shapes = pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"d{s.d}C{s.tube}")


@on_shapes
def test_parameters_of_a_layer(shape):
    d, C, r = shape.d, shape.tube, Fraction(shape.mlp_ratio)
    assert shape.layer_parameters("tcp") == (4 + 2 * r) * d**2 * C + 4 * d * C  # Eq. tcp_total
    assert shape.layer_parameters("std") == (4 + 2 * r) * d**2 * C**2 + 4 * d * C  # Eq. std_total


@on_shapes
def test_flops_ratio_of_the_paper(shape):
    d, C, N, r = shape.d, shape.tube, shape.tokens, Fraction(shape.mlp_ratio)
    for convention, alpha in (("paper", (8 + 2 * r) * d), ("multiply-add", (8 + 4 * r) * d)):
        exact = (alpha + 4 * N) / (alpha * C + 4 * N)  # Eq. flops_ratio
        assert Fraction(shape.layer_flops("tcp", convention), shape.layer_flops("std", convention)) == exact
        assert shape.flops_ratio(convention) == pytest.approx(float(exact), rel=1e-15)


def test_limits_of_the_flops_ratio():
    assert EncoderShape(d=10**7, tube=5, heads=1, tokens=10).flops_ratio() == pytest.approx(1 / 5, rel=1e-5)
    assert EncoderShape(d=4, tube=5, tokens=10**8).flops_ratio() == pytest.approx(1, rel=1e-5)
    assert EncoderShape(d=10**5, tube=5, heads=1).parameter_ratio() == pytest.approx(1 / 5, rel=1e-4)


def test_the_formula_is_the_model_without_its_biases():
    shape = EncoderShape.of(model_config("tcp_vit_cifar"))
    assert shape == SHAPES[0]
    count = predict_parameters(model_config("tcp_vit_cifar"))
    biases = 4 * 3 * (48 + 16 + 64 + 16)
    assert 4 * shape.layer_parameters("tcp") == count.sum("qkv", "proj", "fc1", "fc2", "norms") - biases
    std = EncoderShape.of(model_config("std_vit_cifar"))
    assert (std.d, std.tube) == (48, 1)
    assert std.layer_parameters("tcp") == shape.layer_parameters("std")


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


def test_curves_meet_at_the_shape():
    shape = SHAPES[0]
    for axis, at in (("C", 3), ("d", 16), ("N", 64)):
        curve = ratio_curves(shape)[axis]
        i = curve["x"].index(at)
        assert curve["parameters"][i] == shape.parameter_ratio()
        assert curve["FLOPs"][i] == shape.flops_ratio()
        assert curve["FLOPs, the paper's formula"][i] == shape.flops_ratio("paper")
        assert curve["1/C"][i] == 1 / 3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"d": 0}, "d is at least 1"),
        ({"d": 16, "heads": 3}, "num_heads=3 does not divide the slice width 16"),
        ({"d": 16, "tube": 0}, "tube is at least 1"),
        ({"d": 4, "mlp_ratio": 0.1}, "leaves no hidden feature"),
    ],
)
def test_shapes_that_cannot_be(options, said):
    with pytest.raises(ValueError, match=said):
        EncoderShape(**{"tube": 3, **options})
