"""The demo's numbers in documentation and recipe are those of a run that was kept."""

from __future__ import annotations

import pytest

from experiments import demo
from experiments.pages import stale
from tcpvit.compare.comparison import Comparison
from tcpvit.training import Recipe, load_recipe


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return Comparison.load(demo.RECORD)


def test_pages_and_recipe_say_what_was_measured(comparison):
    assert stale(demo.pages(comparison)) == [], "write them with python -m experiments.demo"
    head = demo.RECIPE.read_text(encoding="utf-8")
    assert head == demo.with_head(head, comparison)
    assert str(comparison.table().rows[0].cells[1]) in head


def test_the_run_was_that_of_todays_recipe(comparison):
    for model in (comparison.std, comparison.tcp):
        assert Recipe.from_dict(model.recipe) == load_recipe("demo", [f"model.name={model.name}"])


def test_both_models_have_clearly_learned_within_minutes(comparison):
    tops = [run.test["top1"] for model in (comparison.std, comparison.tcp) for run in model.runs]
    assert len(tops) == 6
    assert min(tops) > 0.8
    assert comparison.std.fastest.seconds + comparison.tcp.fastest.seconds < 240
