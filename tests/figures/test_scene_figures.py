"""Figures of scenes: what each pixel is coloured by, names of any script, lines that break where bands are missing."""

from __future__ import annotations

import numpy as np
import pytest

from tcpvit.data.scenes import class_colours, class_spectra, composite, find_scene, splits
from tcpvit.figures import scenes
from tcpvit.figures.scenes import PARTS, colour_classes, colour_confidence, colour_errors, colour_split, draw_maps
from tcpvit.figures.spectra import draw_energy, draw_importance, draw_spectra
from tcpvit.figures.style import TEXT_WIDTH, save_figure

pytest.importorskip("matplotlib")

COLOURS = ((10, 20, 30), (40, 50, 60))
LABELS = np.array([[1, 2, 0], [2, 1, 1]])


def test_colours_of_classes_parts_errors_and_confidence():
    assert colour_classes(LABELS, COLOURS)[0].tolist() == [[10, 20, 30], [40, 50, 60], [255, 255, 255]]
    codes = np.array([[splits.TRAIN, splits.TEST, splits.UNUSED], [splits.GUARD, splits.VALIDATION, splits.TEST]])
    image = colour_split(codes, LABELS, COLOURS)
    assert [tuple(pixel) for pixel in image.reshape(-1, 3).tolist()] == [
        PARTS["training"],
        COLOURS[1],
        (255, 255, 255),
        PARTS["guard"],
        PARTS["validation"],
        COLOURS[0],
    ]
    errors = colour_errors(LABELS, np.ones_like(LABELS), LABELS > 0)
    assert len({tuple(pixel) for pixel in errors.reshape(-1, 3).tolist()}) == 3
    assert colour_confidence(np.array([[0.0, 1.0]])).tolist() == [[[0, 0, 0], [255, 255, 255]]]


def test_the_codes_are_those_of_saved_splits():
    for part, code in splits.CODES.items():
        assert getattr(scenes, f"{part.upper()}_CODE") == code


@pytest.mark.parametrize("size", [(12, 14), (6, 40), (40, 6)])
def test_maps_with_many_long_names_of_any_script(size, tmp_path):
    names = [
        "冬小麦（灌溉区，二〇二四年）",
        "大豆",
        *(f"a class with a rather long name, number {k}" for k in range(14)),
    ]
    image = np.zeros((*size, 3), np.uint8)
    classes = dict(zip(names, class_colours(16), strict=True))
    figure = draw_maps(dict.fromkeys(("a", "b", "c", "d"), image), classes, PARTS)
    assert figure.get_size_inches()[0] == TEXT_WIDTH
    assert len(figure.legends[0].get_texts()) == 19  # none is lost, also where names are shortened alike
    (file,) = save_figure(figure, tmp_path / "maps", ["png"])
    assert file.stat().st_size > 1000
    with pytest.raises(ValueError, match="at least one map"):
        draw_maps({}, {})


def test_spectra_break_where_bands_are_missing():
    wavelengths = np.array([400.0, 410, 420, 600, 610, 620])
    line = draw_spectra(np.ones((1, 6)), ["a"], COLOURS[:1], wavelengths).axes[0].lines[0]
    assert np.isnan(line.get_ydata()).tolist() == [False] * 3 + [True] + [False] * 3


def test_the_figures_of_the_built_in_scene(tmp_path):
    scene = find_scene("materials")
    image = composite(scene)
    assert image.shape == (64, 64, 3)
    assert image.min() == 0
    assert image.max() == 255
    mean, deviation = class_spectra(scene)
    pixels = scene.data[scene.labels == 3]
    np.testing.assert_allclose(mean[2], pixels.mean(0), rtol=1e-6)
    np.testing.assert_allclose(deviation[2], pixels.std(0), rtol=1e-6)
    figures = [
        draw_energy(np.array([0.5, 0.3, 0.2]), 2),
        draw_importance(np.full(60, 1 / 60), np.full(8, 1 / 8), scene.wavelengths),
    ]
    for number, figure in enumerate(figures):
        (file,) = save_figure(figure, tmp_path / str(number), ["png"])
        assert file.stat().st_size > 1000
