"""`tcpvit demo`: a Std-ViT and its TCP twin compared anywhere, in minutes, without a download."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from rich.columns import Columns
from rich.console import Console
from rich.text import Text

from tcpvit.cli import tour
from tcpvit.cli.compare import compare
from tcpvit.cli.program import program
from tcpvit.compare.comparison import Comparison
from tcpvit.figures.labelled import draw_sheet
from tcpvit.figures.style import save_figure
from tcpvit.files import refuse_links
from tcpvit.inference import load_model
from tcpvit.inference.predict import Prediction, predict_files
from tcpvit.training import load_recipe
from tcpvit.training.build import load_splits

KEPT, SHOWN = 24, 5  # images of the test part: kept as files, shown in the terminal


@dataclass(frozen=True)
class Answered:
    """An image of the test part: (H, W, 3) uint8, its digit, and what each model takes it for."""

    pixels: np.ndarray
    digit: str
    std: str
    tcp: str

    @property
    def caption(self) -> str:
        """Who is right."""
        return "  ".join(
            f"{side} {said} {'✓' if said == self.digit else '✗'}"
            for side, said in (("std", self.std), ("tcp", self.tcp))
        )


def demo(
    *,
    algebra: bool = False,
    set: list[str] = [],  # noqa: B006 (typer copies it)
    runs: Path = Path("runs"),
    overwrite: bool = False,
) -> Comparison | None:
    """Train a Std-ViT and its TCP twin within minutes, and compare them.

    Both learn real handwritten digits on photographs, which are made on the spot: nothing is downloaded. It ends in a
    table, figures, and what to try next. Ctrl-C saves everything; the same command resumes.

    Args:
        algebra: take a short tour of the algebra instead.
        set: KEY=VALUE, a change to the recipe `demo`; may be repeated.
        runs: the folder of all runs; this one is called demo.
        overwrite: train again what is there.

    Examples:
        tcpvit demo
        tcpvit demo --algebra
        tcpvit demo --set level=hard --overwrite
    """
    if algebra and (set or overwrite):
        raise ValueError("--algebra trains nothing, so that --set and --overwrite would change nothing: leave them out")
    if algebra:
        tour.demo()
        return None
    home = runs / "demo"
    refuse_links(home, ("images",))
    console = Console(highlight=False)
    console.print("Two Vision Transformers learn handwritten digits on photographs, in turn.")
    comparison = compare("demo", set=set, name="demo", runs=runs, overwrite=overwrite)
    answered = ask(comparison, home / "images")
    sheet = draw_sheet([each.pixels for each in answered], [(each.digit, each.caption) for each in answered])
    print(save_figure(sheet, home / "figures" / "images")[1])
    if console.is_terminal:
        _show(console, answered[:SHOWN])
    console.print("\nWhat to try next", style="bold")
    for command, what in next_steps(home, comparison).items():
        console.print(Text.assemble((f"  {command}\n", "cyan"), (f"      {what}", "dim")), soft_wrap=True)
    return comparison


def ask(comparison: Comparison, folder: Path) -> list[Answered]:
    """Keep some images of the test part as PNG files in `folder`, and ask both models what they are."""
    runs = [Path(model.runs[0].folder) for model in (comparison.std, comparison.tcp)]
    test = load_splits(load_recipe(runs[0] / "config.yaml").data).test
    batch = test.fetch(torch.arange(min(KEPT, len(test))))
    pixels = list(batch.images.permute(0, 2, 3, 1).numpy())
    digits = [test.classes[k] for k in batch.targets.tolist()]
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{digit}-{i:02d}.png" for i, digit in enumerate(digits)]
    for file, image in zip(files, pixels, strict=True):
        Image.fromarray(image).save(file)
    said = [_labels(run, files) for run in runs]
    return [Answered(*each) for each in zip(pixels, digits, *said, strict=True)]


def _labels(run: Path, files: list[Path]) -> list[str]:
    """What the model of a run takes each image for."""
    found = predict_files(load_model(run), files).found
    return [each.labels[0] for each in found if isinstance(each, Prediction)]


def next_steps(home: Path, comparison: Comparison) -> dict[str, str]:
    """Commands to copy, with what they do."""
    run, images = shlex.quote(comparison.tcp.runs[0].folder), shlex.quote(str(home / "images"))
    steps = {
        f"predict {run} {images} --sheet labels.png": "label image files, also your own",
        f"eval {run} --set level=hard": "the same model on harder images than it has learned",
        "compare demo --set level=hard --name hard": "learn the harder ones",
        "analyze std_vit_cifar tcp_vit_cifar": "where the parameters and FLOPs of the two models are",
        "compare paper-classification --data cifar10": "the paper's experiment, for a GPU or patience",
        "demo --algebra": "the algebra beneath, on small numbers",
    }
    return {f"{program()} {step}": what for step, what in steps.items()}


def _show(console: Console, answered: list[Answered]) -> None:
    """A row of images in the terminal, each above what the models say."""
    width = min(18, console.width // len(answered) - 2)
    drawn = [Text.assemble(tour.image(torch.from_numpy(each.pixels) / 255, width), each.caption) for each in answered]
    console.print()
    console.print(Columns(drawn, padding=(0, 2, 0, 0)))
