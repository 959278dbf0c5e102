"""`tcpvit compare` and `tcpvit demo`: equal terms, nothing trained twice, a table and figures of what was measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from tcpvit.cli import app as cli
from tcpvit.cli.demo import next_steps
from tcpvit.compare.compare import train_once, twins
from tcpvit.compare.comparison import Comparison, Model, Run, curves_of
from tcpvit.displays import MessagesOnly
from tcpvit.tables import duration
from tcpvit.training import Recipe, load_recipe

SETTINGS = {
    "model": {"options": {"depth": 1}},
    "data": {"name": "digits-on-photos", "options": {"sizes": [40, 20, 20]}, "batch_size": 20},
    "optimizer": {"lr": 0.003},
    "schedule": {"epochs": 12},
}
WORDS = ["model.options.depth=1", "data.options.sizes=[40, 20, 20]", "data.batch_size=20", "schedule.epochs=1"]
SMALL = [word for each in WORDS for word in ("--set", each)]


def start(folder: Path, *args: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "tcpvit", *args],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "100"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with the recipe small.yaml and its comparison in runs/pair."""
    folder = tmp_path_factory.mktemp("compare")
    (folder / "small.yaml").write_text(Recipe.from_dict(SETTINGS).to_yaml())
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as printed:
        patch.chdir(folder)
        patch.setenv("COLUMNS", "100")
        assert cli.main(["compare", "small.yaml", "--name", "pair"]) == 0
    (folder / "stdout").write_text(printed.getvalue())
    return folder


@pytest.fixture
def run(place, monkeypatch, capsys):
    """Run a command line beside small.yaml: (exit code, stdout, stderr)."""
    monkeypatch.chdir(place)
    monkeypatch.setenv("COLUMNS", "100")

    def run(*args: str) -> tuple[int, str, str]:
        code = cli.main(args)
        return code, *capsys.readouterr()

    return run


def weights(folder: Path) -> bytes:
    return (folder / "last" / "model.safetensors").read_bytes()


def test_the_table_says_what_the_runs_measured(place):
    printed = (place / "stdout").read_text()
    home = place / "runs" / "pair"
    std, tcp = (json.loads((home / side / "result.json").read_text()) for side in ("std-0", "tcp-0"))
    cells = {line.split("  ")[0]: line.split() for line in printed.splitlines() if line}
    shown = [f"{100 * result['test']['top1']:.1f}" for result in (std, tcp)]
    assert [cells["top-1"][1], cells["top-1"][3]] == shown
    assert cells["top-1"][5].replace("−", "-") == f"{100 * (tcp['test']['top1'] - std['test']['top1']):+.1f}"
    sizes = std["parameters"], tcp["parameters"]
    difference, ratio = f"−{sizes[0] - sizes[1]:,}", f"{sizes[1] / sizes[0]:.3f}×"
    assert cells["parameters"][1:] == [f"{sizes[0]:,}", f"{sizes[1]:,}", difference, ratio]
    for name in ("curves", "parameters", "confusion"):
        assert f"runs/pair/figures/{name}.png" in printed
        for ending in ("svg", "png"):
            assert (home / "figures" / f"{name}.{ending}").stat().st_size > 5000


def test_both_models_had_the_same_data_and_seed(place):
    home = place / "runs" / "pair"
    std, tcp = (load_recipe(home / side / "config.yaml").to_dict() for side in ("std-0", "tcp-0"))
    assert (std.pop("model")["name"], tcp.pop("model")["name"]) == ("std_vit_cifar", "tcp_vit_cifar")
    assert std == tcp
    assert (home / "std-0" / "data.json").read_bytes() == (home / "tcp-0" / "data.json").read_bytes()


def test_a_second_time_nothing_is_trained(place, run):
    home = place / "runs" / "pair"
    before = {path: path.stat().st_mtime_ns for path in home.glob("*-0/**/*")}
    code, out, err = run("compare", "small.yaml", "--name", "pair")
    assert code == 0
    assert err.count("is complete and is not trained again") == 2
    assert {path: path.stat().st_mtime_ns for path in home.glob("*-0/**/*")} == before
    assert out.startswith("Test part of digits-on-photos")
    assert (place / "stdout").read_text().endswith(out)


def test_a_comparison_that_was_killed_goes_on_to_the_same_weights(place, run):
    killed = start(place, "compare", "small.yaml", "--name", "killed", "--quiet")
    checkpoints = place / "runs" / "killed" / "tcp-0" / "checkpoints"
    while killed.poll() is None and not list(checkpoints.glob("*.safetensors")):
        time.sleep(0.002)
    killed.kill()
    killed.communicate()
    home = place / "runs" / "killed"
    assert (home / "std-0" / "result.json").exists()
    assert not (home / "tcp-0" / "result.json").exists()
    code, _, err = run("compare", "small.yaml", "--name", "killed", "--quiet")
    assert code == 0
    assert "std-0 is complete" in err
    assert "tcp-0 is complete" not in err
    for side in ("std-0", "tcp-0"):
        assert weights(home / side) == weights(place / "runs" / "pair" / side)
    sessions = json.loads((home / "tcp-0" / "environment.json").read_text())
    assert sessions[1]["from_step"] > 0


def test_a_run_of_another_recipe_is_not_taken_for_this_one(place, run):
    kept = weights(place / "runs" / "pair" / "std-0")
    code, out, err = run("compare", "small.yaml", "--name", "pair", "--set", "schedule.epochs=3")
    assert (code, out) == (1, "")
    assert "was trained with schedule.epochs=12, now it is 3; replace it with --overwrite" in err
    assert weights(place / "runs" / "pair" / "std-0") == kept
    code, _, err = run("compare", "small.yaml", "--name", "pair", "--set", "data.eval_batch_size=20")  # changes no step
    assert code == 0
    assert "is complete" in err


def test_seeds_give_means_and_deviations(place, run):
    args = [
        "compare",
        "small.yaml",
        "--name",
        "seeds",
        "--seeds",
        "2",
        "--set",
        "schedule.epochs=1",
        "--quiet",
        "--json",
    ]
    code, out, _ = run(*args)
    assert code == 0
    found = json.loads(out)
    folders = [each["folder"] for each in found["tcp"]["runs"]]
    assert folders == ["runs/seeds/tcp-0", "runs/seeds/tcp-1"]
    assert weights(place / folders[0]) != weights(place / folders[1])
    comparison = Comparison.load(place / "runs" / "seeds" / "comparison.json")
    assert comparison.to_dict() | {"figures": found["figures"]} == found
    tops = [each["test"]["top1"] for each in found["tcp"]["runs"]]
    deviation = abs(tops[0] - tops[1]) / 2**0.5
    assert comparison.table().rows[0].cells[2] == f"{50 * sum(tops):.1f} ± {100 * deviation:.1f} %"
    assert comparison.table().title.endswith("mean ± deviation of seeds 0, 1")
    seconds = min(each["seconds"] for each in found["tcp"]["runs"])
    assert ("training time, fastest run", duration(seconds)) == comparison.table().rows[-2].cells[::2][:2]


def test_options_of_a_tcp_vit_reach_only_that_one():
    recipe = load_recipe("demo", ["model.options.attention=joint", "model.options.depth=2"])
    pair = twins(recipe, set_std=["optimizer.lr=0.5"])
    assert pair["std"].model.options == {"depth": 2}
    assert pair["tcp"].model.options == {"depth": 2, "attention": "joint"}
    assert (pair["std"].optimizer.lr, pair["tcp"].optimizer.lr) == (0.5, recipe.optimizer.lr)
    named_by_the_other = twins(load_recipe("demo", ["model.name=std_vit_cifar"]))
    assert named_by_the_other["tcp"].model.name == "tcp_vit_cifar"


@pytest.mark.parametrize("word", ["model.name=std_vit_pet", "data.options.level=hard", "seed=3"])
def test_what_both_share_cannot_be_set_for_one(word):
    with pytest.raises(ValueError, match=f"both models have the same .*--set {word}"):
        twins(Recipe(), set_tcp=[word])


def test_an_option_that_does_not_fit_one_is_said_before_the_other_is_trained(place, run):
    code, _, err = run("compare", "small.yaml", "--name", "unfit", "--set-tcp", "model.options.num_heads=3")
    assert code == 1
    assert "3" in err
    assert not (place / "runs" / "unfit").exists()


def test_a_model_without_a_twin_is_named(run):
    code, _, err = run("compare", "demo", "--set", "model.name=tcp_vit_cifa")
    assert code == 1
    assert "no model is called 'tcp_vit_cifa'; did you mean 'tcp_vit_cifar'?" in err


def test_an_interruption_says_how_to_go_on(tmp_path, monkeypatch, capsys):
    def interrupt(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("tcpvit.training.train", interrupt)
    with pytest.raises(KeyboardInterrupt):
        train_once(Recipe(), tmp_path / "std-0", progress=MessagesOnly())
    assert "the same command resumes the whole comparison" in capsys.readouterr().err
    with pytest.raises(KeyboardInterrupt):
        train_once(Recipe(), tmp_path / "std-0", overwrite=True, progress=MessagesOnly())
    assert "the same command without --overwrite resumes" in capsys.readouterr().err


def test_many_processes_are_refused(run, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    code, _, err = run("compare", "small.yaml", "--name", "two")
    assert code == 1
    assert "a comparison is one process" in err


def test_without_matplotlib_the_table_is_printed_all_the_same(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, out, err = run("compare", "small.yaml", "--name", "pair")
    assert code == 0
    assert "parameters" in out
    assert ".png" not in out
    assert "pip install 'tcpvit[plots]'" in err


def segmenter(name: str, parameters: int, ious: list[float | None]) -> Model:
    """A model with made numbers."""
    test = {"loss": 0.2, "miou": ious[0], "mdice": 0.9, "pixel_accuracy": 0.95}
    test |= {"by_class": {"iou": ious, "dice": [0.9, 0.9]}, "confusion": [[9, 1], [2, 8]]}
    history = [{"epoch": 1, "train_loss": 0.5, "images_per_second": 10.0}]
    history.append({"epoch": 2, "train_loss": 0.4, "val_loss": 0.4, "val_miou": 0.8, "images_per_second": 30.0})
    recipe = {"model": {"name": name}, "data": {"name": "oxford-pet", "options": {}}}
    return Model(recipe, parameters, {"backbone": parameters}, [Run(f"runs/{name}", 0, 90.0, test, history, {})])


def test_segmenters_are_compared_by_miou_and_class(tmp_path):
    """The form of the paper's tab. seg_performance."""
    std, tcp = segmenter("std_vit_pet", 1_570_978, [0.878, 0.9]), segmenter("tcp_vit_pet", 751_586, [0.868, None])
    comparison = Comparison(std, tcp, ["background", "pet"], "miou", ["a note"])
    table = comparison.table()
    cells = {row.cells[0]: row.cells[1:] for row in table.rows}
    assert list(cells)[:5] == ["mIoU", "mDice", "pixel accuracy", "IoU: background", "IoU: pet"]
    assert cells["mIoU"] == ("87.8 %", "86.8 %", "−1.0", pytest.approx(0.868 / 0.878))
    assert cells["IoU: pet"] == ("90.0 %", None, None, None)
    assert cells["parameters"][:3] == (1_570_978, 751_586, "−819,392")
    assert round(cells["parameters"][3], 3) == 0.478
    assert cells["training time"][0] == "0:01:30"
    assert cells["images a second"][0] == 20
    assert table.notes == ["a note"]
    curves = curves_of({"std": [std.runs[0].history]}, {"mIoU": ("val_miou", 100.0)})
    assert curves == {"mIoU": {"std": [([2], [80.0])]}}
    assert len(comparison.draw(tmp_path)) == 6


def test_the_demo_ends_in_images_and_commands_to_copy(place, run):
    code, out, err = run("demo", "--runs", "runs", *SMALL)
    assert (code, err) == (0, "")
    home = place / "runs" / "demo"
    assert len(list((home / "images").glob("*.png"))) == 20
    assert (home / "figures" / "images.png").stat().st_size > 5000
    commands = next_steps(Path("runs/demo"), Comparison.load(home / "comparison.json"))
    for command in commands:
        assert command in out
        assert command.split()[1] in cli.VERBS
    predict = next(command for command in commands if " predict " in command)
    code, out, _ = run(*predict.split()[1:])
    assert code == 0
    assert out.count("\n") == 21
    assert (place / "labels.png").exists()


@pytest.mark.skipif(os.name == "nt", reason="links need rights on Windows")
@pytest.mark.parametrize(("verb", "part"), [("compare", "figures"), ("compare", "comparison.json"), ("demo", "images")])
def test_nothing_is_written_through_links(tmp_path, monkeypatch, capsys, verb, part):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "demo").mkdir(parents=True)
    (tmp_path / "runs" / "demo" / part).symlink_to(tmp_path / "elsewhere")
    assert cli.main([verb, *SMALL, *["--name=demo"] * (verb == "compare")]) == 1
    assert f"runs/demo/{part} is a link to " in capsys.readouterr().err
