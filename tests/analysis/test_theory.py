"""The paper's formulas against their closed forms."""

from __future__ import annotations

from fractions import Fraction

import pytest
from encoder_shapes import SHAPES, on_shapes

from tcpvit.analysis import EncoderShape, predict_parameters, ratio_curves
from tcpvit.models import model_config


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
