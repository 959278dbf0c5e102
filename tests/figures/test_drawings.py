"""Curves, bars, confusion matrices and labelled images: they draw what they are given, and always the same."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest

from tcpvit.figures.bars import SHADES, draw_parameter_bars
from tcpvit.figures.confusion import draw_confusions
from tcpvit.figures.curves import draw_curves
from tcpvit.figures.labelled import draw_labelled, draw_sheet
from tcpvit.figures.style import MODELS, save_figure

pytest.importorskip("matplotlib")

IMAGE = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
PARTS = {"std": {"blocks": 900, "head": 100}, "tcp": {"blocks": 300, "head": 100, "mix": 9}}
FIGURES = {
    "curves": lambda: draw_curves({"loss": {"std": [([1, 2], [0.9, 0.5])], "tcp": [([1, 2], [0.8, 0.6])]}}),
    "bars": lambda: draw_parameter_bars(PARTS),
    "confusion": lambda: draw_confusions({"std": [[8, 2], [1, 9]], "tcp": [[7, 3], [0, 0]]}, ["cat", "dog"]),
    "sheet": lambda: draw_sheet([IMAGE] * 3, [("7  98 %", f"{i}.png") for i in range(3)], columns=2),
    "labelled": lambda: draw_labelled(IMAGE, ["7", "1"], [0.9, 0.1], "a.png"),
}


@pytest.mark.parametrize("name", FIGURES)
def test_the_same_figure_is_the_same_file(name, tmp_path):
    first = save_figure(FIGURES[name](), tmp_path / "new" / "a")
    second = save_figure(FIGURES[name](), tmp_path / "b")
    assert [path.name for path in first] == ["a.svg", "a.png"]
    for one, other in zip(first, second, strict=True):
        assert one.stat().st_size > 3000
        assert one.read_bytes() == other.read_bytes()


def test_names_with_a_dot_keep_it(tmp_path):
    assert [path.name for path in save_figure(FIGURES["labelled"](), tmp_path / "v1.2")] == ["v1.2.svg", "v1.2.png"]


def test_curves_of_every_seed_share_the_line_of_their_model():
    figure = draw_curves({"a": {"std": [([1], [2]), ([1], [3])], "tcp": [([1], [4])]}, "b": {"std": [], "tcp": []}})
    lines = figure.axes[0].lines
    assert [line.get_ydata()[0] for line in lines] == [2, 3, 4]
    assert lines[0].get_color() == lines[1].get_color() != lines[2].get_color()
    assert lines[0].get_linestyle() != lines[2].get_linestyle()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["std", "tcp"]
    assert figure.axes[1].get_title() == "b"


def test_bars_have_the_heights_and_ratios_of_the_numbers():
    totals, components = draw_parameter_bars(PARTS).axes
    assert [text.get_text() for text in totals.texts] == ["1,000", "409\n0.409×"]
    tops = [bar.get_y() + bar.get_height() for bar in totals.patches]
    assert max(tops) == 1000
    assert [bar.get_width() for bar in components.patches] == [900, 100, 0, 300, 100, 9]
    said = [text.get_text() for text in components.texts]
    assert said == ["900", "100", "none", "300  0.333×", "100  1.000×", "9"]
    assert not {style["color"] for style in MODELS[:2]} & set(SHADES)


def test_confusions_are_in_per_cent_of_the_truth():
    figure = FIGURES["confusion"]()
    drawn = [panel.images[0].get_array().tolist() for panel in figure.axes[:2]]
    assert drawn == [[[80, 20], [10, 90]], [[70, 30], [0, 0]]]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["cat", "dog"]


def test_many_classes_have_neither_numbers_nor_names():
    figure = draw_confusions({"std": np.eye(50, dtype=int).tolist()}, [f"class {k}" for k in range(50)])
    assert not figure.axes[0].texts
    assert not len(figure.axes[0].get_xticks())


@pytest.mark.parametrize(
    ("draw", "sentence"),
    [
        (lambda: draw_curves({}), "at least one panel"),
        (lambda: draw_parameter_bars({}), "at least one model"),
        (lambda: draw_confusions({}, []), "at least one matrix"),
        (lambda: draw_confusions({"std": [[1, 2]]}, ["a", "b"]), "std should have 2 rows and columns"),
        (lambda: draw_sheet([IMAGE], []), "a caption for each image, got 1 and 0"),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw, sentence):
    with pytest.raises(ValueError, match=sentence):
        draw()


def test_a_missing_matplotlib_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install 'tcpvit\[plots\]'"):
        FIGURES["bars"]()


def test_figures_leave_the_settings_of_others_alone():
    import matplotlib

    before = dict(matplotlib.rcParams)
    FIGURES["curves"]()
    assert dict(matplotlib.rcParams) == before


def test_names_are_no_formulas():
    name = "price_$_final_$.jpg"
    for figure in (
        draw_sheet([np.zeros((8, 8, 3))], [(name, name)]),
        draw_labelled(np.zeros((8, 8, 3)), [name], [1.0], title=name),
    ):
        figure.savefig(io.BytesIO())
