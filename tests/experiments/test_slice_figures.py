"""Figures of slices: they draw what they are given, always the same, and refuse what cannot be drawn."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.figures.slices import (
    attention_image,
    draw_ablation,
    draw_classes,
    draw_energy,
    draw_gradients,
    draw_slice_images,
    slice_images,
)
from tcpvit.algebra import get_transform
from tcpvit.figures.style import save_figure

pytest.importorskip("matplotlib")

DCT = get_transform("dct", 3).matrix.numpy()
PIXELS = np.random.RandomState(0).rand(8, 8, 3)
ABLATION = {
    "paper": {"at the entry": {"all": 40.0, "without 0": 20.0}},
    "mix": {"at the entry": {"all": 60.0, "without 0": 50.0}},
}
FIGURES = {
    "images": lambda: draw_slice_images({"image": {"": [PIXELS]}, "slices": {"0": [PIXELS], "1": [PIXELS]}}, ["cat"]),
    "ablation": lambda: draw_ablation(ABLATION, chance=10.0),
    "classes": lambda: draw_classes({"paper": [[-5.0, 2.0], [0.0, 1.0]]}, ["cat", "dog"]),
    "energy": lambda: draw_energy({"paper": {"image": [6.0, 3.0, 1.0], "block 1": [2.0, 1.0, 1.0]}}),
    "gradients": lambda: draw_gradients({"paper": ([1, 3, 5], [[1.0, 2.0, 1.5], [0.5, 0.4, 0.6]])}),
}


@pytest.mark.parametrize("name", FIGURES)
def test_the_same_figure_is_the_same_file(name, tmp_path):
    first, second = (save_figure(FIGURES[name](), tmp_path / folder / name)[1] for folder in "ab")
    assert first.read_bytes() == second.read_bytes()


def test_slices_alone_add_up_to_the_image():
    brightness, *contrasts = slice_images(PIXELS, DCT)
    np.testing.assert_allclose(brightness, PIXELS.mean(-1, keepdims=True).repeat(3, -1))
    np.testing.assert_allclose(brightness + sum(contrasts) - 0.5 * len(contrasts), PIXELS)


def test_a_grey_image_has_no_contrasts():
    grey = np.full((2, 2, 3), 0.8)
    assert all(np.allclose(part, 0.5) for part in slice_images(grey, DCT, gain=9.0)[1:])


def test_attention_lights_its_patches():
    shown = attention_image(np.full((8, 8, 3), 0.5), np.array([[1.0, 0.0], [0.0, 0.0]]))
    assert shown.shape == (8, 8, 3)
    assert len({tuple(color) for color in shown[:4, :4].reshape(-1, 3)}) == 1
    assert shown[0, 0].mean() > shown[4, 4].mean()


def test_all_accuracies_are_inside_both_panels():
    figure = FIGURES["ablation"]()
    limits = [panel.get_xlim() for panel in figure.axes]
    assert limits[0] == limits[1]
    assert limits[0][0] == 0
    assert limits[0][1] > 60
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["chance", "at the entry"]


def test_energies_are_shares():
    tops = [bar.get_y() + bar.get_height() for bar in FIGURES["energy"]().axes[0].patches]
    assert tops == pytest.approx([60, 50, 90, 75, 100, 100])


@pytest.mark.parametrize("draw", [draw_energy, draw_gradients])
def test_no_model_is_refused(draw):
    with pytest.raises(ValueError, match="at least one model"):
        draw({})


def test_no_image_is_refused():
    with pytest.raises(ValueError, match="a group and a name, got 1 and 0"):
        draw_slice_images({"image": {"": []}}, [])
