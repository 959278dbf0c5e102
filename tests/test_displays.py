"""What Python's functions show by themselves, bars of long loops, and the display of a notebook."""

from __future__ import annotations

import io
import re
import sys
import time
import types
from dataclasses import replace

import pytest
from rich.console import Console

from tcpvit import displays
from tcpvit.displays import LineProgress, LiveProgress, NotebookProgress, default_display
from tcpvit.progress import Progress
from tcpvit.training import train


def terminal(width: int) -> Console:
    return Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None, stderr=True)


def frames(console: Console) -> list[str]:
    text = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", console.file.getvalue())
    return [line.rstrip() for line in re.split(r"[\r\n]", text) if line.strip()]


@pytest.mark.parametrize("width", [40, 60, 120])
def test_a_long_loop_has_a_bar_with_the_time_left(monkeypatch, width):
    monkeypatch.setattr(displays, "DELAY", 0.05)
    console = terminal(width)
    done = []
    for item in LiveProgress(console).track(range(12), "reading [red]images\x1b of a folder"):
        time.sleep(0.05)
        done.append(item)
    assert done == list(range(12))
    shown = frames(console)
    assert shown
    assert all(len(line) <= width for line in shown)
    assert all(line.startswith("reading [red]" if width > 40 else "reading…") for line in shown)
    assert re.search(r"\d+/12 +\d:\d\d:\d\d left$", shown[-1])
    assert console.file.getvalue().endswith("\x1b[2K")  # the bar is gone


def test_a_short_loop_shows_nothing():
    console = terminal(80)
    assert list(LiveProgress(console).track(iter("abc"), "reading", 3)) == ["a", "b", "c"]
    assert console.file.getvalue() == ""


def test_a_loop_that_fails_takes_its_bar_away(monkeypatch):
    monkeypatch.setattr(displays, "DELAY", 0.0)
    console = terminal(80)
    with pytest.raises(ValueError, match="bad file"):  # noqa: PT012
        for item in LiveProgress(console).track([1, 2], "reading"):
            time.sleep(0.3)
            if item == 2:
                raise ValueError("bad file")
    assert console.file.getvalue().endswith("\x1b[2K")


def test_no_bar_where_no_terminal_is(monkeypatch):
    monkeypatch.setattr(displays, "DELAY", 0.0)
    console = Console(file=io.StringIO(), stderr=True)
    for kind in (LiveProgress, LineProgress):
        for _ in kind(console).track([1, 2], "reading"):
            time.sleep(0.02)
    assert console.file.getvalue() == ""


def test_python_shows_a_run_unless_it_is_told_not_to(recipe, splits, tmp_path, capsys):
    train(recipe, tmp_path / "shown", splits=splits)
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.partition(",")[0] for line in err.splitlines() if line.startswith("epoch")] == [
        "epoch 1/2",
        "epoch 2/2",
    ]
    train(recipe, tmp_path / "silent", splits=splits, progress=Progress())
    assert capsys.readouterr() == ("", "")


class Handle:
    """Remembers what the output of a cell was."""

    def __init__(self):
        self.shown: list[str] = []

    def update(self, content, raw):
        assert raw
        self.shown.append(content["text/html"])


@pytest.fixture
def cells(monkeypatch) -> list[Handle]:
    """The outputs that a notebook would show: IPython's display, replaced."""
    made: list[Handle] = []

    def display(content, raw, display_id):
        assert raw
        assert display_id
        made.append(Handle())
        return made[-1]

    module = types.ModuleType("IPython.display")
    module.display = display
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return made


def test_a_notebook_shows_a_table_that_grows_above_a_bar(recipe, splits, tmp_path, cells, monkeypatch):
    monkeypatch.setattr(NotebookProgress, "every", 0.0)
    splits = replace(splits, name="<script>")
    train(recipe, tmp_path / "run", splits=splits, progress=NotebookProgress())
    (cell,) = cells
    assert [text.count("<tr>") for text in cell.shown] == [1, 1, 1, 1, 2, 2, 2, 2, 3, 3]
    assert all("&lt;script&gt;" in text and "<script>" not in text for text in cell.shown)
    assert 'value="2" max="6"' in cell.shown[2]
    assert "<progress" not in cell.shown[-1]
    assert "val top-1" in cell.shown[-1]


def test_a_long_loop_in_a_notebook(cells, monkeypatch):
    monkeypatch.setattr(displays, "DELAY", 0.01)
    monkeypatch.setattr(NotebookProgress, "every", 0.0)
    for _ in NotebookProgress().track([1, 2, 3], "<b>reading"):
        time.sleep(0.02)
    (cell,) = cells
    assert cell.shown[0] == '<progress value="1" max="3"></progress> &lt;b&gt;reading'
    assert cell.shown[-1] == ""


def test_a_notebook_is_recognised(monkeypatch):
    assert type(default_display()) is LineProgress
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert type(default_display()) is NotebookProgress
