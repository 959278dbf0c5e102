"""The figure of the ratios: it draws what it is given, to the size of a page."""

from __future__ import annotations

import pytest

from tcpvit.analysis import EncoderShape, ratio_curves
from tcpvit.figures.ratios import LINES, draw_ratios

pytest.importorskip("matplotlib")


def test_three_panels_with_the_curves_that_were_given():
    shape = EncoderShape(d=16, tube=3)
    curves = ratio_curves(shape)
    figure = draw_ratios(curves, {"C": 3, "d": 16, "N": 64})
    assert [panel.get_xlabel().split("$")[1] for panel in figure.axes] == ["C", "d", "N"]
    for panel, lines in zip(figure.axes, curves.values(), strict=True):
        drawn = {line.get_label(): list(line.get_ydata()) for line in panel.lines if line.get_label() in LINES}
        assert drawn == {name: lines[name] for name in LINES}
    assert figure.get_size_inches()[0] < 6


def test_lines_differ_without_colour_too():
    assert len({line["color"] for line in LINES.values()}) == len(LINES)
    assert len({line["linestyle"] for line in LINES.values()}) == len(LINES)
