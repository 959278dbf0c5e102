"""The style that figures share: readable at the width of a column, safe for colour-blind readers, the same every time.

Okabe and Ito's colours; lines also differ by their dashes and bars by their names, so that a grey print is enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tcpvit.fonts import HOUSE, require_matplotlib

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TEXT_WIDTH = 5.9  # inches: the text width of the paper
COLUMN_WIDTH = 3.3  # inches: a column of a paper in two
INK, FAINT = "#333333", "#e6e6e6"
ORANGE, BLUE, GREEN, PINK, SKY, YELLOW = "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#E69F00"
# The paper's colours: Std-ViT is red, TCP-ViT is blue.
MODELS: tuple[dict[str, Any], ...] = (
    {"color": ORANGE, "linestyle": "--"},
    {"color": BLUE, "linestyle": "-"},
    {"color": GREEN, "linestyle": "-."},
    {"color": PINK, "linestyle": ":"},
)
DPI = 200  # of images
SMALL = 100  # pixels: smaller images are enlarged pixel by pixel
_RC = {
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.7,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "text.color": INK,
    "xtick.color": INK,
    "xtick.labelsize": 7.5,
    "ytick.color": INK,
    "ytick.labelsize": 7.5,
    "savefig.dpi": DPI,
    "svg.hashsalt": "tcpvit",  # the names inside an SVG are random otherwise
}


def matplotlib_figure() -> type[Figure]:
    """The class Figure of matplotlib, not of pyplot: no global state, no window."""
    require_matplotlib()
    from matplotlib.figure import Figure

    return Figure


@contextmanager
def house_style(families: Sequence[str] = (HOUSE,)) -> Iterator[type[Figure]]:
    """Draw inside: gives matplotlib's Figure with our settings in force.

    `families` are the fonts for each letter, the first that has it; see `tcpvit.fonts`.
    """
    Figure = matplotlib_figure()
    import matplotlib

    with matplotlib.rc_context(_RC | {"font.family": list(families)}):  # type: ignore[arg-type]
        yield Figure


def show_image(panel: Any, image: Any, **options: Any) -> None:
    """Show pixels (H, W, 3) or (H, W) on a panel, small images without blur."""
    small = max(image.shape[:2]) < SMALL
    panel.imshow(image, interpolation="nearest" if small else "antialiased", **options)


def save_figure(figure: Figure, path: Path, endings: Sequence[str] = ("svg", "png")) -> list[Path]:
    """Write `path` with each ending (svg, png, webp, pdf), the same bytes for the same figure; gives the paths."""
    path.parent.mkdir(parents=True, exist_ok=True)
    files = [path.with_name(f"{path.name}.{ending}") for ending in endings]
    with house_style():
        figure.set_dpi(DPI)  # letters are not as wide at every resolution: lay out what is written
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # it is done; no need to work it out for each file
        for file in files:
            figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)
    return files
