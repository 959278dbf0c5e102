"""What is shown: a live table on a terminal, lines in a file, nothing when quiet."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from tcpvit.cli.show import display_for
from tcpvit.displays import Clock, LineProgress, LiveProgress, MessagesOnly
from tcpvit.training import train


def shown(kind, recipe, splits, tmp_path, width=100) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=kind is LiveProgress, color_system=None)
    train(recipe.override(["evaluation.every=2"]), tmp_path / "run", splits=splits, progress=kind(console))
    return console.file.getvalue()


def test_lines_elsewhere(recipe, splits, tmp_path):
    text = shown(LineProgress, recipe, splits, tmp_path, width=30)
    lines = text.splitlines()
    assert lines[0] == "tcp_vit_cifar on made"
    assert re.fullmatch(r"model: [\d,]+ parameters, 3 classes", lines[1])
    assert lines[2] == "data: 40 training, 20 validation images, 32×32×3"
    first, second = (line for line in lines if line.startswith("epoch"))
    number, pct = r"\d+\.\d{4}", r"\d+\.\d %"
    assert re.fullmatch(
        rf"epoch 1/2, train loss {number}, train acc {pct}, img/s [\d,]+, time 0:00:0\d, .* left", first
    )
    assert re.search(rf"epoch 2/2, .* val loss {number}, val top-1 {pct}, .* 0:00:00 left, best$", second)
    assert "\x1b" not in text


@pytest.mark.parametrize("width", [80, 120])
def test_a_live_table_on_a_terminal(recipe, splits, tmp_path, width):
    text = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", shown(LiveProgress, recipe, splits, tmp_path, width)).replace(
        "\r", "\n"
    )
    table = [line for line in text.splitlines() if re.match(r"epoch  train|    \d ", line)]
    assert re.fullmatch(r"epoch +train loss +train acc +val loss +val top-1 +img/s +time", table[0])
    assert len(table) == 3
    assert all(len(line.rstrip()) == len(table[0]) for line in table[1:2])
    assert table[2].rstrip().endswith("★")
    assert re.search(r"epoch 2/2  loss \d", text)
    assert all(len(line) <= width for line in text.splitlines())


def test_quiet_says_only_what_must_be_said(recipe, splits, tmp_path, capsys):
    silent = display_for(quiet=True)
    assert type(silent) is MessagesOnly
    train(recipe, tmp_path / "run", splits=splits, progress=silent)
    silent.message("a checkpoint is damaged")
    assert capsys.readouterr() == ("", "tcpvit: a checkpoint is damaged\n")


def test_json_leaves_stdout_to_the_result():
    assert display_for(json=True).console.stderr
    assert not display_for().console.stderr


def test_the_clock_goes_by_the_pace_of_this_session():
    clock = Clock(total=100, done=40)
    assert clock.left == "-:--:--"
    clock.begin -= 30
    clock.update(50)
    assert clock.left == "0:02:30"
