"""The figures of the benchmark: they draw the numbers they are given, and always the same."""

from __future__ import annotations

import pytest

from benchmarks.speed.figures import POINTS, SHADES, draw_components, draw_growth, draw_speedups
from tcpvit.figures.style import save_figure

pytest.importorskip("matplotlib")

SPEEDUPS = {"slice": {"cifar": (2.2, 1.4), "pet": (2.0, 1.5)}, "joint": {"cifar": (2.2, 1.9)}, "paper": {}}
PARTS = {"cifar": {"std": {"products": 6.0, "norm": 2.0}, "tcp": {"products": 1.0, "norm": 3.0}}}
LINES = {"N": {"std": ([16, 64], [1.0, 8.0], 1.5), "tcp": ([16, 64], [1.0, 4.0], 1.0)}}
FIGURES = {
    "speedups": lambda: draw_speedups({"1 thread": SPEEDUPS, "2 threads": SPEEDUPS}),
    "components": lambda: draw_components(PARTS),
    "growth": lambda: draw_growth(LINES),
}


@pytest.mark.parametrize("name", FIGURES)
def test_the_same_figure_is_the_same_file(name, tmp_path):
    first, second = (save_figure(FIGURES[name](), tmp_path / letter) for letter in "ab")
    assert [one.read_bytes() for one in first] == [other.read_bytes() for other in second]


def test_speedups_stand_where_they_were_measured():
    figure = FIGURES["speedups"]()
    assert [panel.get_title() for panel in figure.axes] == ["1 thread", "2 threads"]
    lines = {line.get_label(): line for line in figure.axes[0].lines}
    assert list(zip(*lines["slice"].get_data(), strict=True)) == [(2.2, 1.4), (2.0, 1.5)]
    diagonal = lines["what the FLOPs promise"]
    assert list(diagonal.get_xdata()) == list(diagonal.get_ydata())
    low, high = figure.axes[0].get_ylim()
    assert low < 1.4
    assert high > 2.2
    assert {text.get_text() for text in figure.axes[0].texts} == {"cifar", "pet"}


def test_components_are_shares_with_their_sum_beside_them():
    (panel,) = FIGURES["components"]().axes
    assert [bar.get_width() for bar in panel.patches] == [75, 25, 25, 75]
    assert [text.get_text() for text in panel.texts] == ["8.0 ms", "4.0 ms", "cifar"]
    assert [label.get_text() for label in panel.get_yticklabels()] == ["std", "tcp"]


def test_growth_is_drawn_in_logarithms_with_its_slopes():
    (panel,) = FIGURES["growth"]().axes
    assert (panel.get_xscale(), panel.get_yscale()) == ("log", "log")
    assert [list(line.get_ydata()) for line in panel.lines] == [[1, 8], [1, 4]]
    assert [text.get_text() for text in panel.texts] == ["1.50", "1.00"]


def test_models_and_components_can_be_told_apart():
    assert len({point["marker"] for point in POINTS}) == len(POINTS)
    assert len(set(SHADES)) == len(SHADES)


@pytest.mark.parametrize(
    ("draw", "sentence"),
    [
        (lambda: draw_speedups({"1 thread": {"slice": {}}}), "at least one speed-up"),
        (lambda: draw_components({}), "at least one shape"),
        (lambda: draw_growth({}), "at least one axis"),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw, sentence):
    with pytest.raises(ValueError, match=sentence):
        draw()
