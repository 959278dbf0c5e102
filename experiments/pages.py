"""Pages are Markdown that people write, with marked blocks that a program fills with tables and figures.

A block stands between `<!-- name -->` and `<!-- /name -->`. A page that is not there yet is made of its blocks alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tcpvit.compare.study import Places
from tcpvit.files import write_atomically
from tcpvit.tables import Table, render

ROOT = Path(__file__).parents[1]  # of the repository
DOCS, README = ROOT / "docs", ROOT / "README.md"
NOTHING = "Nothing was run here yet."

Blocks = Mapping[str, str]  # what stands in each block of a page, by its name


def fill(page: Path, blocks: Blocks) -> Path:
    """Write the blocks into the page."""
    text = page.read_text(encoding="utf-8") if page.is_file() else "\n\n".join(map(_marked, blocks, [""] * len(blocks)))
    page.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(page, (filled(text, blocks).rstrip("\n") + "\n").encode())
    return page


def filled(text: str, blocks: Blocks) -> str:
    """The text of a page with its blocks written anew; every block has to be there.

    >>> filled("# Sizes\\n<!-- sizes -->\\nold\\n<!-- /sizes -->", {"sizes": "new"})
    '# Sizes\\n<!-- sizes -->\\nnew\\n<!-- /sizes -->'
    """
    for name, block in blocks.items():
        pattern = re.compile(rf"<!-- {re.escape(name)} -->.*?<!-- /{re.escape(name)} -->", re.DOTALL)
        written = _marked(name, block)
        text, found = pattern.subn(lambda _, written=written: written, text)  # as it is, backslashes too
        if not found:
            raise ValueError(f"the page has no block <!-- {name} --> ... <!-- /{name} -->")
    return text


def _marked(name: str, block: str) -> str:
    return f"<!-- {name} -->\n{block.strip()}\n<!-- /{name} -->"


def markdown(*tables: Table) -> str:
    """Tables that have rows; without any, the word that nothing was run."""
    full = [table for table in tables if table.rows]
    return render(full, "markdown") if full else NOTHING


def figure(stem: str, caption: str, pages: Path, ending: str = "svg") -> str:
    """A figure with its caption, if it lies among the pages."""
    file = f"{stem}.{ending}"
    return f"![{caption}]({file})\n\n*{caption}*" if (pages / file).is_file() else NOTHING


def write_pages(places: Places, pages: Mapping[str, Blocks], readme: Blocks) -> list[Path]:
    """Fill the pages by their names; and the README, if they are the documentation's own."""
    written = [fill(places.pages / name, blocks) for name, blocks in pages.items()]
    if places.pages.resolve() == DOCS / "results" and readme:
        written.append(fill(README, readme))
    return written


def stale(pages: Mapping[Path, Blocks]) -> Sequence[Path]:
    """The pages whose blocks are not what the program would write now."""
    texts = {page: page.read_text(encoding="utf-8") for page in pages}
    return [page for page, blocks in pages.items() if filled(texts[page], blocks) != texts[page]]
