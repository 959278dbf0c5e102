"""Studies: every planned run is a recipe that holds, leaves one record, and is not run twice."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest

from tcpvit.cli.reproduce import reproduce
from tcpvit.compare import segmentation
from tcpvit.compare.classification import STUDY, measured, paper_table, planned
from tcpvit.compare.study import Finished, Places, Planned, Study, choose, record, work
from tcpvit.progress import Progress
from tcpvit.training import Recipe

SETTINGS = {
    "model": {"options": {"depth": 1}},
    "data": {"name": "digits-on-photos", "options": {"sizes": [40, 20, 20]}, "batch_size": 20},
    "schedule": {"epochs": 1},
}


class Listening(Progress):
    def __init__(self):
        self.said: list[str] = []

    def message(self, text):
        self.said.append(text)


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> tuple[Study, Places]:
    """A study of two tiny runs, and where it is to be kept."""
    folder = tmp_path_factory.mktemp("study")
    recipe = folder / "small.yaml"
    recipe.write_text(Recipe.from_dict(SETTINGS).to_yaml())
    runs = [
        Planned("paper", "std", str(recipe), ("model.name=std_vit_cifar",)),
        Planned("paper", "tcp", str(recipe)),
    ]
    study = Study("classification", lambda: runs, measured, STUDY.write)
    places = Places(folder / "runs", folder / "results", folder / "pages")
    assert work(study, runs, places, epochs=None, root=None, progress=Listening()) == []
    return study, places


def test_a_run_leaves_one_record_that_says_how_it_was_made(small):
    _, places = small
    found = json.loads((places.results / "paper-std-0.json").read_text())
    asked = "model parameters dataset train_images epochs seed recipe top1_best top1_last train_loss test_loss seconds"
    assert set(asked.split()) | {"command", "commit", "cpu_seconds"} <= set(found)
    assert (found["train_images"], found["test_images"], found["epochs"]) == (40, 20, 1)
    finished = Finished.read(places.runs / "paper-std-0")
    assert found["top1_last"] == finished.history[-1]["val_top1"]
    assert found["parameters"] == finished.result["parameters"]


def test_a_resumed_run_names_the_command_that_began_it(small, tmp_path):
    study, places = small
    folder = tmp_path / "paper-std-0"
    shutil.copytree(places.runs / "paper-std-0", folder)
    sessions = json.loads((folder / "environment.json").read_text())
    later = {
        **sessions[0],
        "from_step": 1,
        "command": ["tcpvit", "train", "--resume", "paper-std-0"],
        "commit": "later",
    }
    (folder / "environment.json").write_text(json.dumps([*sessions, later]))
    found = record(study, study.planned()[0], folder, tmp_path / "paper-std-0.json")
    assert (found["command"], found["commit"]) == (
        shlex.join(["tcpvit", *sessions[0]["command"][1:]]),
        sessions[0]["commit"],
    )
    assert found["resumed"] == [{"from_step": 1, "commit": "later"}]


def test_what_is_done_is_not_trained_again(small):
    study, places = small
    before = (places.runs / "paper-std-0" / "result.json").stat().st_mtime_ns
    report = Listening()
    work(study, study.planned(), places, epochs=None, root=None, progress=report)
    assert report.said == []
    assert (places.runs / "paper-std-0" / "result.json").stat().st_mtime_ns == before


def test_a_record_that_was_lost_is_written_again_from_its_run(small):
    study, places = small
    file = places.results / "paper-tcp-0.json"
    before = file.read_text()
    file.unlink()
    work(study, study.planned(), places, epochs=None, root=None, progress=Listening())
    assert file.read_text() == before


def test_a_record_of_another_recipe_is_no_result_of_this_plan(small):
    study, places = small
    other = Planned("paper", "std", study.planned()[0].recipe, ("model.name=std_vit_cifar", "optimizer.lr=0.1"))
    with pytest.raises(ValueError, match="the plan"):
        work(study, [other], places, epochs=None, root=None, progress=Listening())


def test_a_record_of_another_seed_or_of_nothing_is_no_result_either(small, tmp_path):
    study, places = small
    run, elsewhere = study.planned()[0], Places(places.runs, tmp_path, places.pages)
    second = replace(run, seed=1)
    (tmp_path / f"{second.key}.json").write_bytes((places.results / f"{run.key}.json").read_bytes())
    with pytest.raises(ValueError, match="seed=0, the plan 1"):
        work(study, [second], elsewhere, epochs=None, root=None, progress=Listening())
    (tmp_path / f"{run.key}.json").write_text("[1]")
    with pytest.raises(ValueError, match="no record of a run"):
        work(study, [run], elsewhere, epochs=None, root=None, progress=Listening())


def test_the_page_holds_what_the_records_hold(small):
    study, places = small
    page, *figures = study.write(places)
    text = page.read_text()
    for found in places.records():
        assert f"{100 * found['top1_last']:.1f} %" in text
    assert text.count("not run here") == 6  # SVHN, STL-10 and all of CIFAR-10
    names = ("curves_paper", "parameters")
    assert {file.name for file in figures} == {f"{name}.{ending}" for name in names for ending in ("svg", "png")}
    assert all(f"]({name}.svg)" in text for name in names)


def test_the_paper_s_numbers_stand_beside_ours():
    made = {"lr": 0.01, "epochs": 150, "train_loss": 0.5, "test_loss": 1.0}
    runs = [
        {**made, "group": "paper", "name": "std", "seed": seed, "top1_best": best, "top1_last": 0.5}
        for seed, best in enumerate((0.5, 0.6))
    ]
    std, tcp, *_ = (row.cells for row in paper_table(runs).rows)
    assert std[2:] == ("0.01", 150, "0, 1", "55.0 ± 7.1 %", "50.0 ± 0.0 %", "0.500", "1.000", "61.8 %")
    assert (tcp[4], tcp[-1]) == ("not run here", "63.6 %")


def test_the_plans_are_those_of_the_paper():
    assert {run.group for run in planned()} == {"paper", "svhn", "stl10", "full"}
    for run in [run for run in planned() + segmentation.planned() if run.seed == 0]:
        recipe = run.resolved()
        assert recipe.model.name.startswith({"std": "std_vit_", "tcp": "tcp_vit_"}[run.name])
        assert recipe.schedule.epochs == (200 if run.group == "full" else 150)
        assert recipe.optimizer.lr == (5e-4 if run.recipe == "paper-segmentation" else 0.01)


def test_seeds_and_wildcards_choose():
    plan = planned()
    assert {run.seed for run in choose(plan, ["paper"], seeds=None)} == {0, 1, 2}
    assert [run.key for run in choose(plan, ["svhn-std-*"], seeds=2)] == ["svhn-std-0", "svhn-std-1"]
    with pytest.raises(ValueError, match="no run of this study matches 'svnh'; did you mean 'svhn'"):
        choose(plan, ["svnh"], seeds=None)


@pytest.mark.parametrize("option", ["seeds", "epochs", "threads"])
def test_numbers_that_cannot_be_are_refused_before_anything_is_written(option, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=f"--{option} is at least 1, got 0"):
        reproduce("classification", **{option: 0})
    assert not list(tmp_path.iterdir())


def test_a_record_that_is_damaged_is_named(small, tmp_path):
    _, places = small
    damaged = tmp_path / "paper-std-0.json"
    damaged.write_text("{")
    with pytest.raises(ValueError, match=r"paper-std-0\.json holds no JSON"):
        Places(places.runs, tmp_path, places.pages).records()


@pytest.mark.parametrize(("text", "lacking"), [("[]", "key, group"), ('{"key": "paper-std-0"}', "group, name")])
def test_a_file_among_the_records_that_is_no_record_is_named(small, tmp_path, text, lacking):
    _, places = small
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(ValueError, match=rf"other\.json is no record of a run: it lacks {lacking}"):
        Places(places.runs, tmp_path, places.pages).records()


def test_the_verb_keeps_everything_below_out(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    written = reproduce("segmentation", pages_only=True)
    assert all(path.parts[:2] == ("reproduced", "segmentation") for path in written)
    text = (tmp_path / "reproduced/segmentation/segmentation.md").read_text()
    assert "| parameters | – | – | – | 1,570,978 | 751,586 | 0.478× |" in text
    assert "| **mIoU** | **not run here** | **not run here** | **–** | **87.8** | **86.8** | **−1.0** |" in text
    assert list(tmp_path.iterdir()) == [tmp_path / "reproduced"]
    with pytest.raises(ValueError, match="no study is called 'slices'"):
        reproduce("slices")


def test_without_the_images_the_command_says_where_to_get_them(tmp_path):
    found = subprocess.run(
        [sys.executable, "-m", "tcpvit", "reproduce", "classification", "--only", "svhn", "--seeds", "1"],
        cwd=tmp_path,
        env={**os.environ, "TCPVIT_DATA": str(tmp_path / "nothing"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert found.returncode != 0
    assert "svhn" in found.stderr
    assert "Traceback" not in found.stderr
    assert not list(tmp_path.iterdir())
