"""The demo's numbers in README, documentation and recipe are those of a run that was kept."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tcpvit.compare.comparison import Comparison
from tcpvit.training import Recipe, load_recipe

ROOT = Path(__file__).parents[2]
WRITER = ROOT / "docs" / "write_demo.py"


@pytest.fixture(scope="module")
def writer():
    """docs/write_demo.py as a module."""
    spec = importlib.util.spec_from_file_location("write_demo", WRITER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pages_and_recipe_say_what_was_measured(writer):
    comparison = Comparison.load(writer.RECORD)
    for page, text in writer.pages(comparison).items():
        written = page.read_text(encoding="utf-8")
        assert written == text, f"{page.name} is not what python docs/write_demo.py writes"
        assert str(comparison.table().rows[0].cells[1]) in written


def test_the_run_was_that_of_todays_recipe(writer):
    comparison = Comparison.load(writer.RECORD)
    for model in (comparison.std, comparison.tcp):
        assert Recipe.from_dict(model.recipe) == load_recipe("demo", [f"model.name={model.name}"])


def test_both_models_have_clearly_learned_within_minutes(writer):
    comparison = Comparison.load(writer.RECORD)
    tops = [run.test["top1"] for model in (comparison.std, comparison.tcp) for run in model.runs]
    assert len(tops) == 6
    assert min(tops) > 0.8
    assert comparison.std.fastest.seconds + comparison.tcp.fastest.seconds < 240
