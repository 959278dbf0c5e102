"""What a run shows while it runs: a live display on a terminal, a line per epoch elsewhere, or nothing."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, Task, TextColumn
from rich.progress import Progress as Bar
from rich.text import Text

from tcpvit.cli.program import pasteable, tell
from tcpvit.progress import Progress, Row, RunSummary, State
from tcpvit.tables import duration, percent
from tcpvit.training.metrics import LABELS

BEST = "★"


class MessagesOnly(Progress):
    """Only what the user must know, on stderr: --quiet."""

    def message(self, text: str) -> None:
        """As the errors of the command line are shown."""
        tell(text)


class LineProgress(MessagesOnly):
    """One line for each epoch."""

    def __init__(self, console: Console):
        self.console = console

    def start(self, summary: RunSummary, state: State) -> None:
        """The head: what is trained on what."""
        self.summary = summary
        self.clock = Clock(summary.epochs * summary.batches, state.step)
        self._head()

    def _head(self) -> None:
        self._print(self.summary.title)
        for name, fact in self.summary.facts.items():
            self._print(f"{name}: {fact}")

    def step(self, state: State) -> None:
        """Remember the time."""
        self.clock.update(state.step)

    def epoch(self, row: Row, is_best: bool) -> None:
        """The numbers of the epoch."""
        cells = cells_of(row, self.summary.metric)
        words = [
            f"epoch {row['epoch']}/{self.summary.epochs}",
            *(f"{name} {cell}" for name, cell in cells.items() if cell),
        ]
        self._print(", ".join([*words, f"{self.clock.left} left", *(["best"] if is_best else [])]))

    def _print(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True, markup=False)


class LiveProgress(LineProgress):
    """A table that grows by a row for each epoch, above a bar that moves with each step."""

    bar: Bar | None = None  # of the run under way

    def _head(self) -> None:
        self.console.print()
        self.console.print(Text(self.summary.title, style="bold cyan"))
        for name, fact in self.summary.facts.items():
            self.console.print(Text.assemble((f"{name:<8}", "dim"), fact))
        self.console.print()
        self.has_columns = False
        width = max(5, min(30, self.console.width - 62))
        self.bar = Bar(
            BarColumn(bar_width=width, complete_style="cyan", finished_style="cyan"),
            TextColumn("{task.fields[shown]}"),
            _Left(self),
            console=self.console,
            transient=True,
            refresh_per_second=8,
        )
        self.task = self.bar.add_task("", total=self.summary.epochs * self.summary.batches, shown="")
        self.bar.start()

    def step(self, state: State) -> None:
        """Move the bar."""
        super().step(state)
        shown = (
            f"epoch [bold]{state.epoch + 1}[/]/{self.summary.epochs}  loss [bold]{state.mean('loss'):.3f}[/]  "
            f"acc [bold]{100 * state.mean('hits'):.1f} %[/]  [dim]{state.images_per_second:,.0f} img/s[/]"
        )
        if self.bar:
            self.bar.update(self.task, completed=state.step, shown=shown)

    def epoch(self, row: Row, is_best: bool) -> None:
        """A row of the table."""
        cells = cells_of(row, self.summary.metric)
        if not self.has_columns:
            heads = "".join(f"{name:>{_width(name)}}" for name in cells)
            self.console.print(Text(f"epoch{heads}", style="dim"))
            self.has_columns = True
        line = Text(f"{row['epoch']:>5}")
        for name, cell in cells.items():
            line.append(f"{cell:>{_width(name)}}", style="bold" if is_best and name.startswith("val") else "")
        self.console.print(line.append(f"  {BEST}", style="bold yellow") if is_best else line)

    def message(self, text: str) -> None:
        """Above the bar."""
        self.console.print(Text(pasteable(text), style="yellow"))

    def stop(self) -> None:
        """Take the bar away."""
        if self.bar:
            self.bar.stop()
            self.bar = None
            self.console.print()


class Clock:
    """The time that is left, from the pace of this session, evaluations included."""

    def __init__(self, total: int, done: int):
        self.total, self.first, self.done, self.begin = total, done, done, time.monotonic()

    def update(self, done: int) -> None:
        """So many steps are done."""
        self.done = done

    @property
    def left(self) -> str:
        """As h:mm:ss."""
        if self.done <= self.first:
            return "-:--:--"
        pace = (time.monotonic() - self.begin) / (self.done - self.first)
        return duration(pace * (self.total - self.done))


class _Left(ProgressColumn):
    def __init__(self, live: LiveProgress):
        super().__init__()
        self.live = live

    def render(self, task: Task) -> Text:
        return Text(f"{self.live.clock.left} left", style="dim")


def display_for(*, quiet: bool = False, json: bool = False) -> Progress:
    """The one that suits where the output goes; with `json` stdout is left to the result."""
    console = Console(stderr=json, highlight=False)
    if quiet:
        return MessagesOnly()
    return LiveProgress(console) if console.is_terminal else LineProgress(console)


def cells_of(row: Row, metric: str) -> dict[str, str]:
    """The numbers of an epoch that are shown, by their heading; empty where nothing was measured."""
    evaluated = "val_loss" in row
    return {
        "train loss": f"{row['train_loss']:.4f}",
        "train acc": percent(row["train_accuracy"]),
        "val loss": f"{row['val_loss']:.4f}" if evaluated else "",
        f"val {LABELS[metric]}": percent(row[f"val_{metric}"]) if evaluated else "",
        "img/s": f"{row['images_per_second']:,.0f}",
        "time": duration(row["seconds"]),
    }


def _width(heading: str) -> int:
    """Of a column."""
    return max(9, len(heading) + 2)
