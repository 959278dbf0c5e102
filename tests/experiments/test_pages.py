"""Every marked block of the documentation is what the program would write now, and figures are kept once."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys

import pytest

from experiments.__main__ import STUDIES
from experiments.pages import DOCS, README, ROOT, fill, filled, stale
from experiments.zoo import facts
from tcpvit.compare.study import Places
from tcpvit.models.zoo import CARD, ZOO, list_pretrained

ZOO_RECORDS = {
    "std_vit_cifar": ("classification/final-std-0.json", "last"),
    "std_vit_cifar_44k": ("classification/small-std-44k-0.json", "last"),
    "std_vit_cifar_120k": ("classification/small-std-120k-0.json", "last"),
    "tcp_vit_cifar_44k": ("classification/small-tcp-44k-mixed-0.json", "last"),
    "tcp_vit_cifar_120k": ("classification/small-tcp-120k-mixed-smooth-0.json", "last"),
    "tcp_vit_cifar_plus": ("classification/final-joint-sqrt-lr-0.json", "last"),
    "tcp_vit_cifar_wide": ("classification/final-large-81x3-0.json", "last"),
    "tcp_vit_pet": ("segmentation/whole-tcp-0.json", "best"),
}
FIGURES = [path for path in DOCS.rglob("*") if path.suffix in (".svg", ".png", ".webp")]


def places(study: str) -> Places:
    return Places(ROOT / "runs", ROOT / "results" / study, DOCS / "results")


@pytest.mark.parametrize("study", STUDIES)
def test_the_pages_hold_what_the_records_hold(study):
    pages = importlib.import_module(f"experiments.{study}.pages")
    blocks = {DOCS / "results" / name: written for name, written in pages.blocks(places(study)).items()}
    if hasattr(pages, "readme"):
        blocks[README] = pages.readme(places(study))
    assert stale(blocks) == [], f"write them with python -m experiments {study} --pages-only"


@pytest.mark.parametrize("name", list_pretrained())
def test_the_cards_of_the_zoo_hold_what_the_records_hold(name):
    record, weights = ZOO_RECORDS[name]
    found = facts(weights, json.loads((ROOT / "results" / record).read_text(encoding="utf-8")))
    assert stale({ZOO / name / CARD: {"facts": found}}) == []


def test_a_page_that_is_not_there_is_made_of_its_blocks(tmp_path):
    page = fill(tmp_path / "new" / "page.md", {"a": "1", "b": "2"})
    assert page.read_text() == "<!-- a -->\n1\n<!-- /a -->\n\n<!-- b -->\n2\n<!-- /b -->\n"
    page.write_text("# By hand\n\n" + page.read_text())
    fill(page, {"b": "\\1 stays"})
    assert page.read_text().startswith("# By hand\n\n<!-- a -->\n1\n")
    assert "\\1 stays" in page.read_text()
    with pytest.raises(ValueError, match="no block <!-- c -->"):
        filled(page.read_text(), {"c": ""})


def test_every_figure_has_one_format_is_small_and_is_shown():
    assert len({path.with_suffix("") for path in FIGURES}) == len(FIGURES)
    pages = "".join(page.read_text(encoding="utf-8") for page in (README, *DOCS.rglob("*.md")))
    for path in FIGURES:
        assert path.stat().st_size < 400_000, path.name
        assert path.name in pages, f"no page shows {path.name}"


def test_pages_are_short_and_explain_no_letters():
    for name in (*(f"results/{study}.md" for study in STUDIES), "speed.md"):
        text = (DOCS / name).read_text(encoding="utf-8")
        assert text.count("\n") <= 140, name
        assert not re.search(r"\b(asked|verdict|missed|reached)\b", text), name


def test_the_program_knows_its_studies(tmp_path):
    def run(*words: str) -> subprocess.CompletedProcess:
        return subprocess.run([sys.executable, "-m", "experiments", *words], cwd=ROOT, capture_output=True, text=True)

    listed = run("slices", "--plan", "--json", "--runs", str(tmp_path), "--results", str(tmp_path))
    rows = json.loads(listed.stdout)["plan"]["rows"]
    assert [(row["run"], row["state"]) for row in rows] == [("slices-paper-0", "to do"), ("slices-plus-0", "to do")]
    unknown = run("slcies", "--plan")
    assert unknown.returncode == 1
    assert unknown.stderr.startswith("experiments: no study is called 'slcies'; did you mean 'slices'?")


def test_the_library_imports_no_experiment():
    for file in (ROOT / "src").rglob("*.py"):
        assert not re.search(r"^\s*(from|import) (experiments|benchmarks)\b", file.read_text(encoding="utf-8"), re.M), (
            file
        )


@pytest.mark.parametrize("room", ["compare", "cli"])
def test_installed_code_looks_for_no_readme_or_docs_of_a_repository(room):
    for file in (ROOT / "src" / "tcpvit" / room).rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        assert "README.md" not in text, file
        assert "docs/" not in text, file
