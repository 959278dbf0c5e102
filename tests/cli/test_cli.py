"""The command line: what users see when all is well, and when it is not."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from typing import Literal

import pytest
import torch

import tcpvit
from tcpvit.cli import app as cli


def fruit(kind: str, amounts: list[int] = (1,), *, peel: Literal["thin", "thick"] = "thin", ripe_now: bool = False):
    """Buy fruit.

    It is weighed [in full] at the till.

    Args:
        kind: what it is called,
            in full.
        ripe_now: to eat today.

    Examples:
        tcpvit fruit apple 2 3
        tcpvit fruit pear --ripe-now
    """
    failures = {
        "sour": ValueError("the fruit is sour; wait a week"),
        "singular": torch.linalg.LinAlgError("there is one left"),
        "gone": FileNotFoundError(2, "No such file or directory", "basket"),
        "wheel": ImportError("needs timm: pip install 'tcpvit[timm]'"),
        "stop": KeyboardInterrupt(),
        "bug": TypeError("ours"),
    }
    if kind in failures:
        raise failures[kind]
    print(kind, list(amounts), peel, ripe_now)
    return 7


@pytest.fixture
def run(monkeypatch, capsys):
    """Run a command line that also knows `fruit`: (exit code, stdout, stderr)."""
    monkeypatch.setitem(cli.VERBS, "fruit", (f"{__name__}:fruit", "Buy fruit."))
    monkeypatch.setenv("COLUMNS", "200")

    def run(*args: str) -> tuple[int, str, str]:
        code = cli.main(args)
        return code, *capsys.readouterr()

    return run


def in_process(*args: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "tcpvit", *args], capture_output=True, text=True, **options)


@pytest.mark.parametrize("verb", cli.VERBS)
def test_every_verb_is_described(verb):
    target, summary = cli.VERBS[verb]
    function = cli.load(target)
    doc = inspect.getdoc(function)
    assert doc.splitlines()[0] == summary
    assert f"tcpvit {verb}" in cli._section(doc, "Examples")
    assert set(inspect.signature(function).parameters) == set(cli.arguments_of(function))


def test_help_lists_the_verbs_without_importing_them(run):
    for args in [(), ("--help",), ("-h",)]:
        code, out, err = run(*args)
        assert (code, err) == (0, "")
        assert all(verb in out and summary in out for verb, (_, summary) in cli.VERBS.items())
    code = "import sys; from tcpvit import cli; cli.main(['--help']); print('tcpvit.cli.tour' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).endswith("False\n")


def test_help_of_a_verb_comes_from_its_docstring(run):
    code, out, _ = run("fruit", "--help")
    assert code == 0
    assert "It is weighed [in full] at the till." in out
    assert "what it is called, in full." in out
    assert "\n  tcpvit fruit apple 2 3 " in out
    assert "Args:" not in out
    assert "--no-ripe-now" not in out


def test_positional_parameters_are_arguments_and_keyword_only_ones_options(run):
    assert run("fruit", "apple") == (0, "apple [1] thin False\n", "")
    assert run("fruit", "apple", "2", "3", "--peel", "thick", "--ripe-now") == (0, "apple [2, 3] thick True\n", "")


def test_version_names_torch_too(run):
    code, out, _ = run("--version")
    assert code == 0
    assert out.startswith(f"tcpvit {tcpvit.__version__} (torch {torch.__version__}")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["friut"], "No such command 'friut'. Did you mean 'fruit'? (see tcpvit --help)"),
        (["--versoin"], "--version"),
        (["fruit", "apple", "--ripe-nwo"], "--ripe-now"),
        (["fruit", "apple", "--peel", "thik"], "'thik' is not one of 'thin', 'thick'"),
        (["fruit", "apple", "two"], "integer"),
        (["fruit"], "Missing argument 'kind'"),
    ],
)
def test_misuse_is_one_sentence_that_names_the_nearest(run, args, said):
    code, out, err = run(*args)
    assert (code, out) == (2, "")
    assert said in err
    assert err.startswith("tcpvit: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("sour", "the fruit is sour; wait a week"),
        ("singular", "there is one left"),
        ("gone", "No such file or directory: basket"),
        ("wheel", "needs timm: pip install 'tcpvit[timm]'"),
    ],
)
def test_errors_are_one_sentence(run, kind, sentence):
    assert run("fruit", kind) == (1, "", f"tcpvit: {sentence}\n")


def test_the_traceback_can_be_asked_for(run, monkeypatch):
    monkeypatch.setenv("TCPVIT_TRACEBACK", "1")
    with pytest.raises(ValueError, match="sour"):
        run("fruit", "sour")


def test_a_fault_of_ours_is_not_hidden(run):
    with pytest.raises(TypeError, match="ours"):
        run("fruit", "bug")


def test_ctrl_c_exits_130(run):
    assert run("fruit", "stop") == (130, "", "tcpvit: interrupted\n")


@pytest.mark.skipif(os.name == "nt", reason="a pipe of POSIX")
def test_a_closed_pipe_is_no_error():
    done = subprocess.run(
        f"{sys.executable} -m tcpvit demo --algebra | true", shell=True, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("", "")


def test_the_module_runs_as_a_program():
    done = in_process("--versoin")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
