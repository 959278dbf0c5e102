"""What a long job shows while it runs: live on a terminal and in a notebook, a line per epoch elsewhere, or nothing."""

from __future__ import annotations

import html
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, Task, TextColumn
from rich.progress import Progress as Bar
from rich.table import Column
from rich.text import Text

from tcpvit.errors import printable
from tcpvit.progress import Item, Progress, Row, RunSummary, State
from tcpvit.tables import Table, Written, duration, percent, render

BEST = "★"
NUMBERS = 27  # characters that "1,000/1,000  0:00:09 left" and the spaces beside it take
DELAY = 2.0  # seconds of a loop before it has a bar
Rewrite = Callable[[str], str]  # of a message before it is shown


def say(text: str) -> None:
    """Write a message for the user on stderr."""
    shown = "\n".join(map(printable, text.split("\n")))
    print(f"tcpvit: {shown}", file=sys.stderr, flush=True)


class MessagesOnly(Progress):
    """Only what the user must know, on stderr: --quiet."""

    def __init__(self, rewrite: Rewrite = str):
        self.rewrite = rewrite

    def message(self, text: str) -> None:
        """As the errors of the command line are shown."""
        say(self.rewrite(text))


class LineProgress(MessagesOnly):
    """One line for each epoch."""

    def __init__(self, console: Console, rewrite: Rewrite = str):
        super().__init__(rewrite)
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
        cells = cells_of(row, self.summary)
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
            f"acc [bold]{100 * state.mean('hits'):.1f} %[/]  [dim]{state.images_per_second:,.0f} img/s  "
            f"{self.clock.left} left[/]"
        )
        if self.bar:
            self.bar.update(self.task, completed=state.step, shown=shown)

    def epoch(self, row: Row, is_best: bool) -> None:
        """A row of the table."""
        cells = cells_of(row, self.summary)
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
        self.console.print(Text(printable(self.rewrite(text)), style="yellow"))

    def stop(self) -> None:
        """Take the bar away."""
        if self.bar:
            self.bar.stop()
            self.bar = None
            self.console.print()

    def track(self, items: Iterable[Item], description: str, total: int | None = None) -> Iterable[Item]:
        """A bar on stderr, for a loop that takes longer than `DELAY`; it is gone when the loop ends."""
        console = self.console if self.console.stderr else Console(stderr=True, highlight=False)
        if self.bar or not console.is_terminal:
            yield from items
            return
        bar = loop_bar(console)
        task = bar.add_task(printable(description), total=length(items, total))
        with _shown_after(DELAY, bar):
            for item in items:
                yield item
                bar.advance(task)


class NotebookProgress(MessagesOnly):
    """A table and a bar in the output of a notebook's cell, which are replaced as the run goes on."""

    every = 0.5  # seconds between two changes of the bar
    output: _Output | None = None  # of the run under way

    def start(self, summary: RunSummary, state: State) -> None:
        """The head, the table and the bar."""
        self.summary, self.rows = summary, list[tuple[Row, bool]]()
        self.clock = Clock(summary.epochs * summary.batches, state.step)
        self.output = _Output()
        self._draw(state.step, "")

    def step(self, state: State) -> None:
        """Move the bar."""
        self.clock.update(state.step)
        if self.output and self.output.age >= self.every:
            numbers = f"loss {state.mean('loss'):.3f}, acc {percent(state.mean('hits'))}, {self.clock.left} left"
            self._draw(state.step, f"epoch {state.epoch + 1}/{self.summary.epochs}, {numbers}")

    def epoch(self, row: Row, is_best: bool) -> None:
        """A row of the table."""
        self.rows.append((row, is_best))
        self._draw(int(row["step"]), f"{self.clock.left} left")

    def stop(self) -> None:
        """Take the bar away, and leave the table."""
        if self.output:
            self.output.show(render([self._table()], "html"))
            self.output = None

    def track(self, items: Iterable[Item], description: str, total: int | None = None) -> Iterable[Item]:
        """A bar for a loop that takes longer than `DELAY`; it is gone when the loop ends."""
        total, begin, output = length(items, total), time.monotonic(), None
        for done, item in enumerate(items, start=1):
            yield item
            if output is None and time.monotonic() - begin > DELAY:
                output = _Output()
            if output and output.age >= self.every:
                output.show(html_bar(done, total, description))
        if output:
            output.show("")

    def _draw(self, done: int, words: str) -> None:
        bar = html_bar(done, self.summary.epochs * self.summary.batches, words)
        if self.output:
            self.output.show(f"{render([self._table()], 'html')}\n{bar}")

    def _table(self) -> Table:
        headings = list(cells_of(self.rows[0][0], self.summary)) if self.rows else []
        table = Table("epochs", self.summary.title, ["epoch", *headings, ""])
        for row, is_best in self.rows:
            cells = map(Written, cells_of(row, self.summary).values())
            table.add(str(row["epoch"]), *cells, BEST if is_best else "")
        table.notes += [f"{name}: {fact}" for name, fact in self.summary.facts.items()]
        return table


class _Output:
    """A place in the output of a notebook's cell."""

    def __init__(self) -> None:
        from IPython.display import display  # type: ignore[import-not-found]  # there, where a notebook is

        self.shown = float("-inf")  # when it changed
        self.handle: Any = display({"text/plain": ""}, raw=True, display_id=True)

    @property
    def age(self) -> float:
        """Seconds since it changed."""
        return time.monotonic() - self.shown

    def show(self, text: str) -> None:
        self.handle.update({"text/html": text, "text/plain": ""}, raw=True)
        self.shown = time.monotonic()


def html_bar(done: int, total: int | None, words: str) -> str:
    """A bar with words beside it; without a total it only moves.

    >>> html_bar(3, 4, "<b>")
    '<progress value="3" max="4"></progress> &lt;b&gt;'
    """
    value = f' value="{done}" max="{total}"' if total else ""
    return f"<progress{value}></progress> {html.escape(printable(words))}"


def loop_bar(console: Console) -> Bar:
    """A bar of rich for a loop: what is done, how much of it, the time left."""
    width = max(5, min(30, console.width - 60))
    words = Column(max_width=max(console.width - width - NUMBERS, 5), no_wrap=True, overflow="ellipsis")
    return Bar(
        TextColumn("{task.description}", markup=False, table_column=words),
        BarColumn(bar_width=width, complete_style="cyan", finished_style="cyan"),
        _Done(),
        console=console,
        transient=True,
        refresh_per_second=8,
    )


class _Done(ProgressColumn):
    """3/12, 0:00:09 left."""

    def render(self, task: Task) -> Text:
        if task.total is None:
            return Text(f"{task.completed:,.0f}", style="dim")
        left = "-:--:--" if task.time_remaining is None else duration(task.time_remaining)
        return Text(f"{task.completed:,.0f}/{task.total:,.0f}  {left} left", style="dim")


@contextmanager
def _shown_after(seconds: float, bar: Bar) -> Iterator[None]:
    """Show the bar if the block takes longer than this."""
    timer = threading.Timer(seconds, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # it may be starting the bar
        if bar.live.is_started:
            bar.stop()


def length(items: Iterable[object], total: int | None) -> int | None:
    """How many items there are, as far as that is known."""
    return len(items) if total is None and isinstance(items, Sized) else total


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


def default_display() -> Progress:
    """What Python's functions show if they are given nothing: in the notebook, else on stderr."""
    console = Console(stderr=True, highlight=False)
    if console.is_jupyter:
        return NotebookProgress()
    return LiveProgress(console) if console.is_terminal else LineProgress(console)


def cells_of(row: Row, summary: RunSummary) -> dict[str, str]:
    """The numbers of an epoch that are shown, by their heading; empty where nothing was measured."""
    evaluated = "val_loss" in row
    return {
        "train loss": f"{row['train_loss']:.4f}",
        "train acc": percent(row["train_accuracy"]),
        "val loss": f"{row['val_loss']:.4f}" if evaluated else "",
        f"val {summary.label}": percent(row[f"val_{summary.metric}"]) if evaluated else "",
        "img/s": f"{row['images_per_second']:,.0f}",
        "time": duration(row["seconds"]),
    }


def _width(heading: str) -> int:
    """The width of a column."""
    return max(9, len(heading) + 2)
