"""What verbs show: tables, and the progress of long jobs as it suits where the output goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console

from tcpvit.cli.program import pasteable
from tcpvit.displays import LineProgress, LiveProgress, MessagesOnly
from tcpvit.progress import Progress
from tcpvit.tables import Style, Table, json_text, print_to, render


def show(
    tables: Sequence[Table], *, json: bool = False, markdown: bool = False, latex: bool = False, content: object = None
) -> None:
    """Print the tables to the terminal, or in the one style that is asked for; as JSON `content`, if there is any."""
    asked: dict[Style, bool] = {"json": json, "markdown": markdown, "latex": latex}
    styles = [style for style, wanted in asked.items() if wanted]
    if len(styles) > 1:
        raise ValueError(f"--{' and --'.join(styles)} exclude each other; take one of them")
    if json and content is not None:
        print(json_text(content))
    elif styles:
        print(render(tables, styles[0]))
    else:
        tables = [replace(table, notes=[pasteable(note) for note in table.notes]) for table in tables]
        console = Console(highlight=False)
        # What goes into a file or a pipe is not folded to the width of a screen.
        print_to(console if console.is_terminal else Console(highlight=False, width=1000), tables)


def display_for(*, quiet: bool = False, json: bool = False) -> Progress:
    """Live on a terminal, a line per epoch elsewhere, or messages alone; with `json` stdout is left to the result."""
    console = Console(stderr=json, highlight=False)
    if quiet:
        return MessagesOnly(pasteable)
    return LiveProgress(console, pasteable) if console.is_terminal else LineProgress(console, pasteable)
