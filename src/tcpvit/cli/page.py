"""`tcpvit page`: the explorer of a model as one HTML file."""

from __future__ import annotations

import sys
from pathlib import Path

from tcpvit.cli.predict import load_trained
from tcpvit.cli.show import display_for
from tcpvit.errors import printable
from tcpvit.files import check_writable, write_atomically
from tcpvit.inference.loading import Weights
from tcpvit.inference.page import build_page, find_twin


def page(
    target: str = "tcp_vit_cifar_plus",
    twin: str | None = None,
    *,
    out: Path = Path("explorer.html"),
    weights: Weights = "best",
) -> Path:
    """Write one HTML file that runs a TCP-ViT in a browser and shows what its slices do.

    The file needs no server and no network: the weights are inside, and the forward pass is plain JavaScript. It shows
    the patches, slices, tokens, attention and answer for any image, and the model beside its standard twin.

    Args:
        target: a TCP classifier of colour images: a run folder, a folder written by save_pretrained, or a preset
            whose weights come with the package.
        twin: a standard ViT for the same images and classes, to show beside it; by default the one that comes with
            the package, if it fits.
        out: the file to write.
        weights: which weights of runs, those of the best or of the last epoch.

    Examples:
        tcpvit page
        tcpvit page tcp_vit_cifar_plus --out explorer.html
        tcpvit page runs/demo/tcp-0 runs/demo/std-0 --out digits.html
    """
    check_writable(out)
    progress = display_for(json=True)
    loaded = load_trained(target, weights, progress)
    beside = find_twin(loaded) if twin is None else load_trained(twin, weights, progress)
    content = build_page(loaded, beside).encode()
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, content)
    print(f"{printable(str(out))}, {len(content) / 1000:,.0f} kB; open it in a browser", file=sys.stderr)
    return out
