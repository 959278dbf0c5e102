"""The tour says what is so."""

from __future__ import annotations

import contextlib
import io
import re
import sys

import pytest

from tcpvit import cli


@pytest.fixture(scope="module")
def tour():
    """What `tcpvit demo --algebra` prints, by lines."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setenv("COLUMNS", "100")
        assert cli.main(["demo", "--algebra"]) == 0
    return printed.getvalue().splitlines()


def row(tour: list[str], start: str) -> str:
    return next(line for line in tour if line.startswith(start))


def test_the_laws_hold(tour):
    for law in ("A ⋆ B = block_matrix(A) @ B", "(A ⋆ B) ⋆ C", "(A ⋆ B)ᵀ", "⟨A, A⟩"):
        assert float(row(tour, law).split()[-1]) < 1e-13


def test_the_papers_identity_fails_under_the_dct_only(tour):
    after = tour[tour.index(row(tour, "3  ")) :]
    error = {name: [float(x) for x in row(after, name).split()[-2:]] for name in ("dct", "cosine_kka", "dft")}
    assert max(error["dct"][0], *error["cosine_kka"], *error["dft"]) < 1e-14
    assert error["dct"][1] > 0.1


def test_the_dct_compresses_the_photograph_best(tour):
    for energy in ("95.0%", "99.0%", "99.9%"):
        error, dct, channels, flat = (float(x) for x in re.findall(r"([\d.]+)%", row(tour, energy))[1:])
        assert error <= 100 * (1 - float(energy[:-1]) / 100) ** 0.5 + 0.05
        assert dct < flat < channels
    assert "4, 0, 0" in row(tour, "95.0%")  # "no colour is left"


def test_a_missing_scikit_learn_is_one_sentence(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    assert cli.main(["demo", "--algebra"]) == 1
    assert "scikit-learn: pip install 'tcpvit[demo]'" in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--overwrite"], ["--set", "depth=2"]])
def test_what_would_change_nothing_is_refused(option, capsys):
    assert cli.main(["demo", "--algebra", *option]) == 1
    assert "--algebra trains nothing" in capsys.readouterr().err
