"""`tcpvit analyze` and `tcpvit models` as users call them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tcpvit import cli
from tcpvit.models import list_models
from tcpvit.models.presets import PRESETS


@pytest.fixture
def run(capsys):
    def run(*args: str) -> tuple[int, str, str]:
        code = cli.main(args)
        return code, *capsys.readouterr()

    return run


def test_the_pair_from_a_shell():
    """One whole process: what is printed into a pipe is the table, unfolded."""
    command = [sys.executable, "-m", "tcpvit", "analyze", "std_vit_cifar", "tcp_vit_cifar"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    total = next(line for line in done.stdout.splitlines() if line.startswith("total"))
    assert total.split() == ["total", "119,194", "119,194", "43,114", "43,114", "0.362×"]


def test_the_pair_is_the_default(run):
    assert run("analyze", "--json") == run("analyze", "std_vit_cifar", "tcp_vit_cifar", "--json")


def test_json(run):
    code, out, _ = run("analyze", "tcp_vit_cifar", "--json")
    content = json.loads(out)
    assert code == 0
    last = content["parameters"]["rows"][-1]
    assert last == {"component": "total", "tcp_vit_cifar predicted": 43114, "tcp_vit_cifar counted": 43114}


def test_options_of_tcp_reach_the_tcp_model_alone(run):
    arguments = ("std_vit_cifar", "tcp_vit_cifar", "--set", "attention=joint", "--set", "depth=2", "--json")
    work = json.loads(run("analyze", *arguments)[1])["work"]["rows"]
    softmax = next(row for row in work if row["kind"] == "softmax")
    assert softmax["std_vit_cifar"] == softmax["tcp_vit_cifar"] == 2 * 5 * 4 * 65**2


def test_the_batch_is_that_of_the_memory(run):
    one, eight = (
        json.loads(run("analyze", "tcp_vit_cifar", "--batch", str(batch), "--json")[1])["memory"]["rows"]
        for batch in (1, 8)
    )
    assert eight[3]["tcp_vit_cifar"] == 8 * one[3]["tcp_vit_cifar"]
    assert eight[2] == one[2]


def test_theory_of_a_model_and_of_any_shape(run):
    _, out, _ = run("analyze", "tcp_vit_pet_backbone", "--theory", "--json")
    assert "d = 64, C = 3, r = 2, N = 256" in json.loads(out)["flops_ratio"]["title"]
    arguments = ("--d", "25", "--tube", "200", "--heads", "5", "--mlp-ratio", "2", "--depth", "3", "--tokens", "9")
    _, out, _ = run("analyze", "--theory", *arguments, "--json")
    rows = json.loads(out)["param_general"]["rows"]
    assert rows[-1]["component"] == "L = 3 layers"
    assert rows[-1]["parameters"] == 3 * (8 * 25**2 * 200 + 4 * 25 * 200)


def test_latex_and_markdown(run):
    _, latex, _ = run("analyze", "--theory", "--latex")
    assert latex.count(r"\begin{table}") == latex.count(r"\end{table}") == 4
    assert latex.count("{") == latex.count("}")
    assert r"$(4+2r)\,d^{2}\,C^{2}+4\,d\,C$" in latex
    _, markdown, _ = run("analyze", "tcp_vit_cifar", "--markdown")
    assert "| **total** | **43,114** | **43,114** |" in markdown


def test_the_figure_is_drawn(run, tmp_path):
    path = tmp_path / "ratios.svg"
    assert run("analyze", "--theory", "--json", "--figure", str(path))[0] == 0
    assert "</svg>" in path.read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tcp_vit_cifer"], "no model is called 'tcp_vit_cifer'; did you mean 'tcp_vit_cifar'?"),
        (["tcp_vit_cifar", "--set", "atention=joint"], "did you mean 'attention'?"),
        (["std_vit_cifar", "--set", "attention=joint"], "attention is an option of TCP models"),
        (["tcp_vit_cifar", "--set", "num_heads=3"], "num_heads=3 does not divide the slice width 16"),
        (["--tube", "4"], "--tube belongs to --theory"),
        (["--mlp-ratio", "4"], "--mlp-ratio belongs to --theory"),
        (["--theory", "--d", "25"], "num_heads=4 does not divide the slice width 25"),
        (["tcp_vit_cifar", "--batch", "0"], "batch is at least 1"),
        (["--theory", "--json", "--latex"], "exclude each other"),
        (["--theory", "--figure", "ratios.xyz"], "xyz"),
    ],
)
def test_misuse_is_one_sentence(run, arguments, said):
    code, _, err = run("analyze", *arguments)
    assert code == 1
    assert said in err
    assert err.count("\n") == 1


def test_models_lists_the_registry(run):
    code, out, _ = run("models", "--json")
    rows = {row["model"]: row for row in json.loads(out)["models"]["rows"]}
    assert code == 0
    assert list(rows) == list_models()
    assert rows["tcp_vit_cifar"]["parameters"] == 43_114
    assert rows["tcp_vit_cifar"]["of its Std twin"] == 43_114 / 119_194
    assert rows["std_vit_cifar"]["of its Std twin"] is None
    assert rows["tcp_vit_pet_backbone"]["image"] == "3×128×128"


def test_a_model_of_the_users_need_not_have_a_twin(run, monkeypatch):
    monkeypatch.setitem(PRESETS, "tcp_mine", PRESETS["tcp_vit_cifar"])
    _, out, _ = run("models", "tcp_mine", "--json")
    assert json.loads(out)["models"]["rows"][0]["of its Std twin"] is None


def test_models_takes_a_wildcard(run):
    _, out, _ = run("models", "*_cifar")
    assert "std_vit_cifar" in out
    assert "pet" not in out
    code, _, err = run("models", "vit_cifar")
    assert code == 1
    assert "no model matches 'vit_cifar'; did you mean" in err
