"""The report: side by side with ratios, alone, and for models that are not of this library."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from tcpvit.analysis import EncoderShape, analyze_model, report_tables, theory_tables
from tcpvit.models import create_model
from tcpvit.tables import render


@pytest.fixture(scope="module")
def pair():
    return [analyze_model(name, create_model(name)) for name in ("std_vit_cifar", "tcp_vit_cifar")]


def rows(tables, name: str) -> dict:
    table = next(table for table in tables if table.name == name)
    return {row.cells[0]: row.cells[1:] for row in table.rows}


def test_the_pair_side_by_side(pair):
    tables = report_tables(pair)
    assert [table.name for table in tables] == ["parameters", "flops", "work", "ratios", "memory"]
    parameters = rows(tables, "parameters")
    assert parameters["total"] == (119_194, 119_194, 43_114, 43_114, 43_114 / 119_194)
    assert parameters["encoder"] == (113_184, 113_184, 39_456, 39_456, 39_456 / 113_184)
    assert parameters["embeddings and tokens"][3] == 3_168
    assert "coupling" not in parameters  # neither model has any


def test_components_add_up_to_the_total(pair):
    for name in ("parameters", "flops"):
        table = next(table for table in report_tables(pair) if table.name == name)
        leaves = [row for row in table.rows if row.level == 1 or not row.strong]
        for column in range(1, 5):
            assert sum(row.cells[column] for row in leaves) == table.rows[-1].cells[column]


def test_both_ratios_and_both_conventions_are_printed(pair):
    text = render(report_tables(pair), "text")
    for ratio in ("0.362×", "0.349×", "0.455×", "0.500×", "0.333×"):
        assert ratio in text
    ratios = rows(report_tables(pair), "ratios")
    assert ratios["parameters, one block"] == (28_272, 9_840, 9_840 / 28_272)
    assert ratios["formula: layer with norms (eq. tcp_total)"][:2] == (27_840, 9_408)


def test_three_models_have_their_own_ratios(pair):
    joint = analyze_model("joint", create_model("tcp_vit_cifar", attention="joint"))
    table = report_tables([*pair, joint])[0]
    assert [c for c in table.columns if c.endswith("ratio")] == ["tcp_vit_cifar ratio", "joint ratio"]
    assert "ratios" not in {t.name for t in report_tables([*pair, joint])}  # two TCP-ViTs: no one pair to speak of


def test_one_model_alone(pair):
    tables = report_tables(pair[1:])
    assert rows(tables, "parameters")["total"] == (43_114, 43_114)
    assert rows(tables, "ratios")["formula: its FLOPs (eq. flops_ratio)"][2] == 640 / 1408
    work = next(table for table in tables if table.name == "work")
    assert list(work.columns) == ["component", "products", "transform", "softmax", "norm", "activation", "total"]
    assert rows(tables, "work")["attention"] == (3_244_800, 0, 1_014_000, 0, 0, 4_258_800)
    assert rows(tables, "work")["total"][-1] == 9_495_456
    assert [table.name for table in report_tables(pair[:1])] == ["parameters", "flops", "work", "memory"]


@pytest.mark.parametrize("coupling", ["mix", "shared+mix"])
def test_formulas_that_know_no_shared_weights_say_so(coupling):
    tables = report_tables([analyze_model("tcp", create_model("tcp_vit_cifar", coupling=coupling))])
    notes = next(table for table in tables if table.name == "ratios").notes
    assert any("share their weights" in note for note in notes) == ("shared" in coupling)


def test_a_model_of_somebody_else_has_counts_and_no_predictions(pair):
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16, 4))
    model.pretrained_cfg = {"input_size": (3, 4, 4)}
    foreign = analyze_model("foreign", model, batch=2)
    tables = report_tables([pair[0], foreign], batch=2)
    assert rows(tables, "parameters")["1"] == (0, 0, None, 196, None)
    assert rows(tables, "flops")["total"][2:] == (None, 2 * 48 * 4, 2 * 48 * 4 / 17_917_632)
    assert rows(tables, "work")["softmax"][1:] == (None, None)
    alone = report_tables([foreign])
    assert [table.name for table in alone] == ["parameters", "flops", "memory"]
    assert rows(alone, "memory")["activations saved for backward"] == (0,)  # the images alone
    assert torch.is_grad_enabled()


def test_the_page_of_the_documentation_shows_these_tables(pair):
    """All but memory, which is the layers' own affair; if this fails, print the tables anew into the page."""
    page = (Path(__file__).parents[2] / "docs" / "analysis.md").read_text(encoding="utf-8")
    shown = [t for t in report_tables(pair) if t.name != "memory"] + theory_tables(EncoderShape.of(pair[1].config))
    for table in shown:
        assert render([table], "markdown") in page, table.name
