"""Images side by side, each under its title."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def image_row(images: Mapping[str, Tensor], width: float = 3.0) -> Figure:
    """One row of colour images, (H, W, 3) with values from 0 to 1 (others are clipped), `width` inches each.

    >>> import torch
    >>> figure = image_row({"black": torch.zeros(4, 6, 3), "white": torch.ones(4, 6, 3)})
    >>> [axes.get_title() for axes in figure.axes]
    ['black', 'white']
    """
    try:
        from matplotlib.figure import Figure  # not pyplot: no global state, no window
    except ImportError:
        raise ImportError("images are drawn with matplotlib, which is missing: pip install 'tcpvit[plots]'") from None
    if not images:
        raise ValueError("image_row needs at least one image, got none")
    tallest = max(image.shape[0] / image.shape[1] for image in images.values())
    lines = max(title.count("\n") + 1 for title in images)
    figure = Figure(figsize=(width * len(images), width * tallest + 0.15 + 0.17 * lines), layout="constrained")
    for axes, (title, image) in zip(figure.subplots(1, len(images), squeeze=False)[0], images.items(), strict=True):
        if image.ndim != 3 or image.shape[-1] != 3:
            raise ValueError(f"a colour image has shape (H, W, 3), got {tuple(image.shape)} for {title!r}")
        axes.imshow(image.detach().cpu().float().clamp(0, 1).numpy())
        axes.set_title(title, fontsize=9)
        axes.set_axis_off()
    return figure
