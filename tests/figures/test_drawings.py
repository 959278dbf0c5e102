"""Curves, bars, confusion matrices and labelled images: they draw what they are given, and always the same."""

from __future__ import annotations

import io
import sys
import warnings

import numpy as np
import pytest

from tcpvit import fonts
from tcpvit.figures.bars import SHADES, draw_parameter_bars
from tcpvit.figures.confusion import draw_confusions
from tcpvit.figures.curves import draw_curves
from tcpvit.figures.labelled import draw_labelled, draw_sheet
from tcpvit.figures.style import MODELS, save_figure

pytest.importorskip("matplotlib")
from matplotlib.backends.backend_agg import FigureCanvasAgg

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


def overlaps(texts) -> list[tuple[str, str]]:
    """Pairs of drawn texts that lie over each other; turned ones as boxes, so for upright ones alone."""
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts if text.get_text()]
    return [(a, b) for i, (a, box) in enumerate(boxes) for b, other in boxes[i + 1 :] if box.overlaps(other)]


LONG = [f"a name of forty letters, which is long {k}" for k in range(4)]


@pytest.mark.parametrize("count", [4, 37, 100])
@pytest.mark.parametrize("models", [["std"], ["std", "tcp"]])
def test_names_of_confusions_are_all_there_and_apart(count, models):
    classes = [f"{LONG[0]} {k}" for k in range(count)]
    figure = draw_confusions({model: np.eye(count, dtype=int).tolist() for model in models}, classes)
    FigureCanvasAgg(figure).draw()
    width, height = figure.canvas.get_width_height()
    for panel in figure.axes[: len(models)]:
        assert [label.get_text()[-2:] for label in panel.get_xticklabels()] == [name[-2:] for name in classes]
        assert not overlaps(panel.get_yticklabels()) or panel is not figure.axes[0]
        drawn = [*panel.get_xticklabels(), panel.xaxis.label]
        drawn += [*panel.get_yticklabels(), panel.yaxis.label] if panel is figure.axes[0] else []
        for text in drawn:
            box = text.get_window_extent()
            assert -1 <= box.x0 < box.x1 <= width + 1, text
            assert -1 <= box.y0 < box.y1 <= height + 1, text
        assert panel.get_window_extent().width > 0.2 * width / len(models)
    assert bool(figure.axes[0].texts) == (count == 4)


def test_hundreds_of_classes_have_numbers_in_place_of_names():
    figure = draw_confusions({"std": np.eye(200, dtype=int).tolist()}, [f"class {k}" for k in range(200)])
    assert len(figure.axes[0].get_xticks()) < 15


@pytest.mark.parametrize("name", ["cat", "aeroplane", LONG[0], "猫" * 40, "$_$", "a\x1b[2J\r\n"])
@pytest.mark.filterwarnings("ignore:no installed font")
def test_captions_of_a_sheet_do_not_overlap(name):
    figure = draw_sheet([np.zeros((8, 8, 3), np.uint8)] * 9, [(f"{name}  97 %", f"{name}-{k}.jpeg") for k in range(9)])
    FigureCanvasAgg(figure).draw()
    assert len(figure.texts) == 18
    assert not overlaps(figure.texts)
    assert figure.get_size_inches()[0] < 9
    assert all(text.get_text().isprintable() for text in figure.texts)
    assert all(text.get_text().endswith("97 %") for text in figure.texts[::2])


def test_letters_of_other_scripts_come_from_a_font_that_has_them():
    letter = "\U0001d49c"  # a script letter, which the house's font lacks and matplotlib's STIX fonts have
    letters = fonts.letters_for([f"{letter} cat"])
    assert len(letters.families) == 2
    assert letters.shown(letter) == letter
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib warns of each missing glyph
        FigureCanvasAgg(draw_sheet([np.zeros((8, 8, 3), np.uint8)], [(letter, "a.png")])).draw()


@pytest.fixture
def no_other_fonts(monkeypatch):
    """Only the house's font."""
    monkeypatch.setattr(fonts, "_candidates", lambda: iter(()))
    fonts._find.cache_clear()
    yield
    fonts._find.cache_clear()


def test_fonts_that_were_installed_since_matplotlib_looked_are_found(monkeypatch):
    from matplotlib import font_manager

    house = fonts._house_file()
    monkeypatch.setattr(font_manager.fontManager, "ttflist", [])
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [__file__, house])
    assert fonts.HOUSE in dict(fonts._candidates())


def test_letters_that_no_font_has_are_told_once_and_escaped(no_other_fonts):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            figure = draw_sheet([np.zeros((8, 8, 3), np.uint8)], [("一", "a.png")])
            FigureCanvasAgg(figure).draw()
    assert figure.texts[0].get_text() == r"\u4e00"
    assert len(caught) == 1
    assert "install one that has, as Noto Sans CJK" in str(caught[0].message)


def test_one_epoch_has_one_tick():
    figure = draw_curves({"loss": {"std": [([1], [0.69])], "tcp": [([1], [0.65])]}})
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["1"]


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


def test_names_stay_on_the_figure_that_is_written(tmp_path):
    """Letters are not as wide at every resolution: the layout is that of the file."""
    names = [f"a class with a name that is long {k}" for k in range(10)]
    figure = draw_confusions(dict.fromkeys(("std", "tcp"), np.eye(10, dtype=int).tolist()), names)
    save_figure(figure, tmp_path / "a", ["png"])
    assert all(panel.get_tightbbox().x0 >= 0 and panel.get_tightbbox().y0 >= 0 for panel in figure.axes)
