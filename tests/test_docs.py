"""What the README and the documentation say is true: their examples run, their commands exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tcpvit.cli import app as cli

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
named = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    "page", [p for p in PAGES if p.name != "CONTRIBUTING.md"], ids=lambda p: str(p.relative_to(ROOT))
)
def test_examples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in blocks(page, "python"):
        exec(block, names)


def test_the_readme_has_an_example_to_run():
    assert blocks(ROOT / "README.md", "python")


@named
def test_commands_exist(page):
    text = page.read_text(encoding="utf-8")
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert set(re.findall(r"\bmake ([a-z][a-z-]*)", "\n".join(code(text)))) <= set(targets)
    if page.name != "CONTRIBUTING.md":  # which shows how a verb would be added
        assert set(re.findall(r"\btcpvit ([a-z]+)", "\n".join(code(text)))) <= set(cli.VERBS)


@named
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
        if not link.startswith(("http://", "https://", "mailto:")):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"


def code(text: str) -> list[str]:
    """Blocks and `spans` of code that are not Python."""
    return re.findall(r"^```(?!python)[a-z]*\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL) + re.findall(
        r"`([^`\n]+)`", text
    )
