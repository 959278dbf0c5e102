"""The six figures of the segmentation study, as wide as a column: they draw the numbers that they are given."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.figures.efficiency import compression_cost, draw_efficiency
from experiments.figures.parameters import draw_parameter_column
from experiments.figures.segmentations import draw_errors, draw_segmentations, error_map
from tcpvit.figures.confusion import draw_confusions
from tcpvit.figures.curves import draw_curves
from tcpvit.figures.masks import ERRORS, overlay
from tcpvit.figures.style import COLUMN_WIDTH, MODELS, save_figure

pytest.importorskip("matplotlib")

IMAGE = np.arange(12 * 16 * 3, dtype=np.uint8).reshape(12, 16, 3)
TRUTH = np.zeros((12, 16), dtype=np.uint8)
TRUTH[3:9, 4:12], TRUTH[9, 4:12] = 1, 255
SEEN = {"Std-ViT": [TRUTH == 1, TRUTH == 1], "TCP-ViT": [np.zeros_like(TRUTH), np.ones_like(TRUTH)]}
SAID = {"Std-ViT": ["mIoU 100.0", "mIoU 100.0"], "TCP-ViT": ["mIoU 36.6", "mIoU 13.3"]}
PARTS = {
    "Std-ViT": {"encoder": 800, "decoder": 200},
    "TCP-ViT": {"encoder": 250, "decoder": 200},
    "TCP-ViT full": {"encoder": 250, "decoder": 60},
}
POINTS = {"Std-ViT": (1000, [80.0, 81.0, 82.0]), "TCP-ViT": (450, [79.0, 80.0, 81.0]), "TCP-ViT full": (310, [80.0])}
LINES = {"Std-ViT": [([1, 2], [0.9, 0.5])], "TCP-ViT": [([1, 2], [0.8, 0.6])]}
FIGURES = {
    "params": lambda: draw_parameter_column(PARTS),
    "curves": lambda: draw_curves({"(a)": LINES, "(b)": LINES, "(c)": LINES}, in_column=True),
    "confusion": lambda: draw_confusions({m: [[8, 2], [1, 9]] for m in SEEN}, ["background", "pet"], in_column=True),
    "visual": lambda: draw_segmentations([IMAGE] * 2, [TRUTH] * 2, SEEN, SAID),
    "errors": lambda: draw_errors([IMAGE] * 2, [TRUTH] * 2, SEEN, SAID),
    "efficiency": lambda: draw_efficiency(POINTS),
}


@pytest.mark.parametrize("name", FIGURES)
def test_figures_fit_a_column_and_are_the_same_every_time(name, tmp_path):
    figure = FIGURES[name]()
    assert figure.get_size_inches()[0] <= COLUMN_WIDTH + 0.01
    first, second = save_figure(figure, tmp_path / "a"), save_figure(FIGURES[name](), tmp_path / "b")
    assert [path.suffix for path in first] == [".svg", ".png"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_letters_are_not_smaller_than_a_reader_can_take():
    from matplotlib.text import Text

    for draw in FIGURES.values():
        texts = [text for text in draw().findobj(Text) if text.get_text().strip()]
        assert min(text.get_fontsize() for text in texts) >= 6.5


def test_bars_in_three_panels_have_the_numbers():
    total, stacked, by_component = FIGURES["params"]().axes
    assert [panel.get_title() for panel in (total, stacked, by_component)] == [
        "(a) total",
        "(b) stacked",
        "(c) by component",
    ]
    assert [text.get_text() for text in total.texts] == ["1,000", "450  0.450×", "310  0.310×"]
    assert [bar.get_width() for bar in total.patches] == [1000, 450, 310]
    assert [bar.get_width() for bar in stacked.patches] == [800, 250, 250, 200, 200, 60]
    assert [bar.get_x() for bar in stacked.patches] == [0, 0, 0, 800, 250, 250]
    assert [bar.get_width() for bar in by_component.patches] == [800, 200, 250, 200, 250, 60]
    shades = {bar.get_facecolor() for bar in stacked.patches}
    assert len(shades) == 2
    assert not shades & {bar.get_facecolor() for bar in total.patches}


def test_curves_stand_below_each_other():
    figure = FIGURES["curves"]()
    assert [panel.get_xlabel() for panel in figure.axes] == ["", "", "epoch"]
    assert [list(line.get_ydata()) for line in figure.axes[2].lines] == [[0.9, 0.5], [0.8, 0.6]]


def test_efficiency_is_the_papers_and_is_written_down():
    assert compression_cost((1_570_978, [87.8]), (751_586, [86.8])) == pytest.approx(1.0 / 52.158, rel=1e-4)
    assert compression_cost((100, [80.0, 82.0]), (50, [82.0, 82.0])) == pytest.approx(-1.0 / 50)
    said = [text.get_text() for text in FIGURES["efficiency"]().legends[0].get_texts()]
    assert said == [
        "Std-ViT: 81.0 ± 1.0 %",
        "TCP-ViT: 80.0 ± 1.0 %, 0.450×, η = 0.018",
        "TCP-ViT full: 80.0 %, 0.310×, η = 0.014",
    ]


def test_error_maps_tell_right_wrong_and_ignored_apart_by_lightness():
    drawn = error_map(TRUTH, SEEN["TCP-ViT"][0])
    colors = {name: tuple(int(color[i : i + 2], 16) for i in (1, 3, 5)) for name, color in ERRORS.items()}
    assert tuple(drawn[0, 0]) == colors["correct"]
    assert tuple(drawn[4, 5]) == colors["wrong"]
    assert tuple(drawn[9, 5]) == colors["ignored"]
    lightness = {name: 0.2126 * r + 0.7152 * g + 0.0722 * b for name, (r, g, b) in colors.items()}
    assert lightness["correct"] - lightness["ignored"] > 50
    assert lightness["ignored"] - lightness["wrong"] > 50


def test_overlays_tint_the_pet_and_what_is_ignored_and_nothing_else():
    drawn = overlay(IMAGE, TRUTH)
    untouched = TRUTH == 0
    assert (drawn[untouched] == IMAGE[untouched]).all()
    assert (drawn[TRUTH == 1] != IMAGE[TRUTH == 1]).any(1).all()
    assert (drawn[TRUTH == 255] != IMAGE[TRUTH == 255]).any(1).all()


def test_rows_have_their_titles_and_captions():
    visual, errors = FIGURES["visual"](), FIGURES["errors"]()
    assert [panel.get_title() for panel in visual.axes[:4]] == ["input", "truth", "Std-ViT", "TCP-ViT"]
    assert [panel.get_title() for panel in errors.axes[:3]] == ["input", "Std-ViT", "TCP-ViT"]
    said = [text.get_text() for panel in visual.axes for text in panel.texts]
    assert said == ["mIoU 100.0", "mIoU 36.6", "mIoU 100.0", "mIoU 13.3"]
    assert (errors.axes[2].images[0].get_array() == error_map(TRUTH, SEEN["TCP-ViT"][0])).all()
    assert [text.get_text() for text in errors.legends[0].get_texts()] == ["correct", "wrong", "ignored"]


@pytest.mark.parametrize(
    ("draw", "sentence"),
    [
        (lambda: draw_efficiency({}), "at least one model"),
        (lambda: draw_errors([], [], SEEN, SAID), "at least one image"),
        (lambda: draw_segmentations([], [], SEEN, SAID), "at least one image"),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw, sentence):
    with pytest.raises(ValueError, match=sentence):
        draw()


def test_each_model_has_its_own_style():
    assert len({style["color"] for style in MODELS}) == len({style["linestyle"] for style in MODELS}) == 4
