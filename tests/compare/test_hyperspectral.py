"""`tcpvit reproduce hyperspectral`, on the built-in scene in place of Indian Pines."""

from __future__ import annotations

import json

from tcpvit.cli.reproduce import reproduce
from tcpvit.compare import hyperspectral
from tcpvit.data import load_dataset


def test_models_of_one_seed_have_the_same_pixels_and_no_pixel_is_held_out():
    plan = hyperspectral.planned()
    recipes = [run.resolved() for run in plan if (run.group, run.seed) == ("random", 3)]
    assert {recipe.data.options["seed"] for recipe in recipes} == {recipe.seed for recipe in recipes} == {3}
    assert len({json.dumps(recipe.data.options, sort_keys=True) for recipe in recipes}) == 1
    splits = load_dataset("materials", **recipes[0].data.options)
    assert splits.val is splits.test
    assert len({run.key for run in plan}) == len(plan) == 4 * (5 + 10)


def test_a_run_leaves_a_record_and_the_table_has_its_lead(monkeypatch, tmp_path):
    made = ("data.name=materials", *hyperspectral.WHOLE[1:], "schedule.warmup_epochs=0")
    monkeypatch.setattr(hyperspectral, "WHOLE", made)
    only = ["disjoint-std_scene-0", "disjoint-std_scene_small-0"]
    page, *_ = reproduce("hyperspectral", only=only, seeds=1, epochs=1, out=tmp_path, quiet=True)
    records = {file.stem: json.loads(file.read_text()) for file in (page.parent / "records").glob("*.json")}
    assert set(records) == set(only)
    small = records["disjoint-std_scene_small-0"]
    assert {"oa", "aa", "kappa"} <= set(small)
    lead = 100 * (small["oa"] - records["disjoint-std_scene-0"]["oa"])
    text = page.read_text()
    assert f"{100 * small['oa']:.1f} %" in text
    assert f"{lead:.1f}".lstrip("-") in text
