"""Write the numbers and figures of the demo where they are shown, from a comparison that was run.

    tcpvit compare demo --seeds 3 --name demo3
    python docs/write_demo.py runs/demo3

Keeps the comparison in results/demo.json and its figures in docs/figures. From it writes the blocks between
`<!-- demo -->` and `<!-- /demo -->` in README.md and docs/demo.md, and the head of the recipe. Without a folder it
writes them from results/demo.json again.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tcpvit.compare.comparison import Comparison
from tcpvit.tables import duration, render
from tcpvit.training.recipe import SHIPPED

ROOT = Path(__file__).parent.parent
RECORD = ROOT / "results" / "demo.json"
FIGURES = ROOT / "docs" / "figures"


def main(folder: str | None = None) -> None:
    """Write everything; `folder` is that of a comparison."""
    if folder is not None:
        RECORD.parent.mkdir(exist_ok=True)
        Comparison.load(Path(folder) / "comparison.json").save(RECORD)
    comparison = Comparison.load(RECORD)
    with TemporaryDirectory() as drawn:
        for figure in comparison.draw(Path(drawn)):
            if figure.suffix == ".png":
                shutil.copy(figure, FIGURES / f"demo_{figure.name}")
    for page, text in pages(comparison).items():
        page.write_text(text, encoding="utf-8")


def pages(comparison: Comparison) -> dict[Path, str]:
    """What the pages and the recipe should say."""
    recipe = SHIPPED / "demo.yaml"
    texts = {page: with_block(page, comparison) for page in (ROOT / "README.md", ROOT / "docs" / "demo.md")}
    return texts | {recipe: with_head(recipe.read_text(encoding="utf-8"), comparison)}


def with_block(page: Path, comparison: Comparison) -> str:
    """The page with its block written anew."""
    figures = FIGURES.relative_to(page.parent).as_posix()
    run = comparison.tcp.runs[0]
    machine = run.environment["device"].partition("(")[2].rstrip(")")
    lines = [
        render([comparison.table()], "markdown"),
        f"{len(run.history)} epochs on {run.environment['threads']} threads of a CPU ({machine}), torch "
        f"{run.environment['torch']}; written by `docs/write_demo.py` from `results/demo.json`.",
        f"![Losses and accuracy of both models against the epoch]({figures}/demo_curves.png)",
    ]
    if page.name != "README.md":
        lines.append(f"![Parameters of both models by component]({figures}/demo_parameters.png)")
        lines.append(f"![Confusion matrices of both models]({figures}/demo_confusion.png)")
    block = "<!-- demo -->\n" + "\n\n".join(lines) + "\n<!-- /demo -->"
    return re.sub(r"<!-- demo -->.*<!-- /demo -->", lambda _: block, page.read_text(encoding="utf-8"), flags=re.DOTALL)


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
