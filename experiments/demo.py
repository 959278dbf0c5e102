"""Write the numbers and figures of the demo where they are shown, from a comparison that was run.

    tcpvit compare demo --seeds 3 --name demo3
    python -m experiments.demo runs/demo3

Keeps the comparison in results/demo.json and its figures in docs/figures, fills the block `demo` of docs/demo.md, and
writes the head of the recipe. Without a folder it writes them from results/demo.json again.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from experiments.pages import DOCS, ROOT, Blocks, fill
from tcpvit.compare.comparison import Comparison
from tcpvit.tables import duration, render
from tcpvit.training.recipe import SHIPPED

RECORD = ROOT / "results" / "demo.json"
RECIPE = SHIPPED / "demo.yaml"
FIGURES = DOCS / "figures"
CAPTIONS = {
    "curves": "Losses and accuracy of both models against the epoch",
    "parameters": "Parameters of both models by component",
    "confusion": "Confusion matrices of both models",
}


def main(folder: str | None = None) -> None:
    """Write everything; `folder` is that of a comparison."""
    if folder is not None:
        Comparison.load(Path(folder) / "comparison.json").save(RECORD)
    comparison = Comparison.load(RECORD)
    with TemporaryDirectory() as drawn:
        for figure in comparison.draw(Path(drawn)):
            if figure.suffix == ".svg":
                shutil.copy(figure, FIGURES / f"demo_{figure.name}")
    for page, blocks in pages(comparison).items():
        fill(page, blocks)
    RECIPE.write_text(with_head(RECIPE.read_text(encoding="utf-8"), comparison), encoding="utf-8")


def pages(comparison: Comparison) -> dict[Path, Blocks]:
    """The block of the page: the table, where it ran, and figures."""
    table, run = comparison.table(), comparison.tcp.runs[0]
    about = run.environment
    table.notes = [f"{len(run.history)} epochs, {about['threads']} threads, {about['device']}, torch {about['torch']}."]
    text = render([table], "markdown")
    return {
        DOCS / "demo.md": {
            "demo": "\n\n".join(
                [text, *(f"![{caption}](figures/demo_{name}.svg)" for name, caption in CAPTIONS.items())]
            )
        },
    }


def with_head(recipe: str, comparison: Comparison) -> str:
    """The recipe with what to expect."""
    top1, *_ = comparison.table().rows
    seeds = ", ".join(str(run.seed) for run in comparison.std.runs)
    seconds = [model.fastest.seconds for model in (comparison.std, comparison.tcp)]
    threads = comparison.tcp.runs[0].environment["threads"]
    expected = f"# expected: test top-1 of Std / TCP: {top1.cells[1]} / {top1.cells[2]} (seeds {seeds})"
    time = f"# time:     {duration(sum(seconds))} for both on {threads} threads ({' + '.join(map(duration, seconds))})"
    recipe = re.sub(r"^# expected:.*$", expected, recipe, flags=re.MULTILINE)
    return re.sub(r"^# time:.*$", time, recipe, flags=re.MULTILINE)


if __name__ == "__main__":
    main(*sys.argv[1:])
