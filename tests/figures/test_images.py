"""Images in a row: what is drawn, and what is refused."""

import numpy as np
import pytest
import torch

from tcpvit.figures.images import image_row


def test_each_image_stands_under_its_title():
    red = torch.zeros(4, 6, 3)
    red[..., 0] = 2.0  # clipped to 1
    figure = image_row({"red": red, "two\nlines": torch.rand(8, 6, 3, dtype=torch.float64, requires_grad=True)})
    assert [axes.get_title() for axes in figure.axes] == ["red", "two\nlines"]
    drawn = figure.axes[0].images[0].get_array()
    assert drawn.shape == (4, 6, 3)
    np.testing.assert_array_equal(drawn[0, 0], [1, 0, 0])


def test_what_is_no_colour_image_is_refused():
    with pytest.raises(ValueError, match=r"shape \(H, W, 3\), got \(4, 6\) for 'grey'"):
        image_row({"grey": torch.zeros(4, 6)})
    with pytest.raises(ValueError, match="at least one image"):
        image_row({})
