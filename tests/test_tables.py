"""One table, five ways to write it: the numbers survive each of them."""

from __future__ import annotations

import io
import json
import re
from xml.etree import ElementTree

import pytest
import torch
from rich.console import Console
from torch import nn

import tcpvit
from tcpvit.analysis import theory_tables
from tcpvit.analysis.report import analyze_model
from tcpvit.analysis.theory import EncoderShape
from tcpvit.cli.show import show
from tcpvit.inference.evaluate import Evaluation
from tcpvit.progress import Progress
from tcpvit.tables import Bytes, Math, Ratio, Table, Tables, Written, as_latex, as_text, print_to, render
from tcpvit.training import ClassificationMetrics, train


@pytest.fixture
def table() -> Table:
    table = Table("sizes", "Sizes of 50 % & more", ["part", "formula", "std_vit counted", "ratio"])
    table.add("head [red]", Math("r·d²·C"), 490, Ratio(1), level=1)
    table.add("total | all", Math("d_ff×d_h"), 119194, None, strong=True)
    table.notes.append("A note about d_h.")
    return table


def balanced(latex: str) -> bool:
    plain = re.sub(r"\\[\\{}$]", "", latex)
    environments = re.findall(r"\\begin\{(\w+)\}", latex), re.findall(r"\\end\{(\w+)\}", latex)
    return (
        plain.count("{") == plain.count("}")
        and plain.count("$") % 2 == 0
        and environments[0] == environments[1][::-1]
        and not re.search(r"[^\x00-\x7f]", latex)
    )


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (119194, "119,194"),
        (0.123456, "0.1235"),
        (Ratio(43114 / 119194), "0.362×"),
        (Ratio(1 / 200), "0.005×"),
        (Ratio(1 / 300), "0.00333×"),
        (Ratio(0), "0.000×"),
        (Bytes(0), "0 B"),
        (Bytes(999), "999 B"),
        (Bytes(1000), "1.0 kB"),
        (Bytes(476776), "476.8 kB"),
        (Bytes(3 * 10**18), "3000000.0 TB"),
        (None, "–"),
        (float("nan"), "–"),
        (True, "yes"),
        ("dct", "dct"),
    ],
)
def test_a_value_is_written_by_its_type(cell, text):
    assert as_text(cell) == text


def test_markdown_has_as_many_cells_in_each_line(table):
    lines = [line for line in render([table], "markdown").splitlines() if line.startswith("|")]
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in lines] == [5] * 4
    assert lines[1] == "| --- | --- | ---: | ---: |"
    assert lines[3] == "| **total \\| all** | **d_ff×d_h** | **119,194** | **–** |"


def test_latex_is_balanced_and_escaped(table):
    latex = render([table, table], "latex")
    assert balanced(latex)
    assert r"\caption{Sizes of 50 \% \& more. A note about d\_h.}" in latex
    assert r"\quad head [red] & $r\,d^{2}\,C$ & 490 & 1.000$\times$ \\" in latex
    assert r"$d_{\mathrm{ff}} \times d_{h}$" in latex
    assert r"\begin{tabular}{llrr}" in latex


@pytest.mark.parametrize("text", ["a_b", "{}", "50%", "$5", "#1", "~", "^", "\\", "A × B²", "α→ρ", "Φ≈Σ·½"])
def test_any_text_is_valid_latex(text):
    assert balanced(as_latex(text))
    assert balanced(as_latex(Math("W_Q,h·α")))


def test_json_keeps_the_numbers(table):
    content = json.loads(render([table], "json"))["sizes"]
    assert content["title"] == "Sizes of 50 % & more"
    assert content["rows"][0] == {"part": "head [red]", "formula": "r·d²·C", "std_vit counted": 490, "ratio": 1.0}
    assert content["rows"][1]["ratio"] is None
    assert content["notes"] == ["A note about d_h."]


def test_json_has_no_infinity():
    table = Table("odd", "Odd", ["x", "y"])
    table.add("loss", float("inf"))
    assert json.loads(render([table], "json"))["odd"]["rows"] == [{"x": "loss", "y": None}]


def test_text_takes_no_markup_and_indents(table):
    lines = render([table], "text").splitlines()
    assert lines[0] == "Sizes of 50 % & more"
    assert any(line.startswith("  head [red]") for line in lines)
    assert "119,194" in lines[-2]
    assert lines[-1] == "A note about d_h."


@pytest.mark.parametrize("width", [40, 30])
def test_on_a_narrow_screen_nothing_is_lost(table, width):
    console = Console(width=width, file=io.StringIO())
    print_to(console, [table])
    text = console.file.getvalue()
    assert "…" not in text
    assert "119,194" in text
    assert max(map(len, text.splitlines())) <= width


def test_a_pipe_is_not_folded(capsys):
    table = Table("wide", "Wide", ["name", *(f"column {i}" for i in range(30))])
    table.add("row", *range(10**9, 10**9 + 30))
    show([table])
    assert sum("1,000,000,0" in line for line in capsys.readouterr().out.splitlines()) == 1


def test_show_takes_one_style(table, capsys):
    show([table], markdown=True)
    assert capsys.readouterr().out.strip() == render([table], "markdown")
    with pytest.raises(ValueError, match="--json and --latex exclude each other"):
        show([table], json=True, latex=True)


def test_a_row_has_a_cell_for_each_column(table):
    with pytest.raises(ValueError, match="4 columns, got a row of 2"):
        table.add("head", 490)


def test_a_ratio_needs_both_and_a_whole():
    assert Ratio.of(1, 4) == 0.25
    assert Ratio.of(None, 4) is None
    assert Ratio.of(1, None) is None
    assert Ratio.of(1, 0) is None


def test_html_escapes_everything_and_keeps_every_cell(table):
    table.add("<script>alert(1)</script>\x1b", Math("a<b"), Written("&"), None)
    table.title, table.columns = "<i>title", ["<th>", *table.columns[1:]]
    table.notes.append("<note>")
    text = table._repr_html_()
    assert text == render([table], "html") == Tables([table])._repr_html_()
    rows = [["".join(cell.itertext()) for cell in row] for row in ElementTree.fromstring(f"<x>{text}</x>").iter("tr")]
    assert rows[0] == ["<th>", "formula", "std_vit counted", "ratio"]
    assert rows[1] == ["\u2003head [red]", "r·d²·C", "490", "1.000×"]
    assert rows[3] == ["<script>alert(1)</script>\\x1b", "a<b", "&", "–"]
    assert set(re.findall(r"</?(\w+)", text)) == {"b", "table", "tr", "th", "td", "div", "small"}


def test_reports_and_results_are_tables_in_a_notebook(recipe, splits, tmp_path):
    model = tcpvit.create_model("tcp_vit_cifar", depth=1)
    shown = [
        tcpvit.tensorize_(nn.Sequential(nn.Linear(6, 6)), example=False),
        analyze_model("<one>", model),
        theory_tables(EncoderShape.of(model.config)),
        train(recipe.override(["schedule.epochs=1"]), tmp_path / "run", splits=splits, progress=Progress()),
        Evaluation("<model>", "set", 1, 1.0, ("<a>", "b"), metrics()),
    ]
    for thing in shown:
        text = thing._repr_html_()
        assert text.count("<table>") == text.count("</table>") > 0
        assert "<one>" not in text
        assert "<model>" not in text


def metrics() -> ClassificationMetrics:
    found = ClassificationMetrics(2)
    found.update(torch.eye(2), torch.tensor([0, 1]), torch.tensor(1.0))
    return found
