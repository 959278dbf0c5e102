"""Pictures side by side, each under its title."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def picture_row(pictures: Mapping[str, Tensor], width: float = 3.0) -> Figure:
    """One row of colour pictures, (H, W, 3) with values from 0 to 1 (others are clipped), `width` inches each.

    >>> import torch
    >>> figure = picture_row({"black": torch.zeros(4, 6, 3), "white": torch.ones(4, 6, 3)})
    >>> [axes.get_title() for axes in figure.axes]
    ['black', 'white']
    """
    try:
        from matplotlib.figure import Figure  # not pyplot: no global state, no window
    except ImportError:
        raise ImportError("pictures are drawn with matplotlib, which is missing: pip install 'tcpvit[plots]'") from None
    if not pictures:
        raise ValueError("picture_row needs at least one picture, got none")
    tallest = max(picture.shape[0] / picture.shape[1] for picture in pictures.values())
    lines = max(title.count("\n") + 1 for title in pictures)
    figure = Figure(figsize=(width * len(pictures), width * tallest + 0.15 + 0.17 * lines), layout="constrained")
    for axes, (title, picture) in zip(
        figure.subplots(1, len(pictures), squeeze=False)[0], pictures.items(), strict=True
    ):
        if picture.ndim != 3 or picture.shape[-1] != 3:
            raise ValueError(f"a colour picture has shape (H, W, 3), got {tuple(picture.shape)} for {title!r}")
        axes.imshow(picture.detach().cpu().float().clamp(0, 1).numpy())
        axes.set_title(title, fontsize=9)
        axes.set_axis_off()
    return figure
