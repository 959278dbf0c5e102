"""Which display a verb shows: live on a terminal, a line per epoch elsewhere, or nothing."""

from __future__ import annotations

from rich.console import Console

from tcpvit.cli.program import pasteable
from tcpvit.displays import LineProgress, LiveProgress, MessagesOnly
from tcpvit.progress import Progress


def display_for(*, quiet: bool = False, json: bool = False) -> Progress:
    """The one that suits where the output goes; with `json` stdout is left to the result."""
    console = Console(stderr=json, highlight=False)
    if quiet:
        return MessagesOnly(pasteable)
    return LiveProgress(console, pasteable) if console.is_terminal else LineProgress(console, pasteable)
