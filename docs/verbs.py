"""A mkdocs hook: verbs come from their functions, the keys of recipes from their classes, tables from the README."""

import inspect
import re
from pathlib import Path

from tcpvit.cli import app
from tcpvit.cli.train import keys_table
from tcpvit.tables import render
from tcpvit.training import Recipe

README = Path(__file__).parents[1] / "README.md"


def on_page_markdown(markdown: str, **_: object) -> str:
    """Put the verbs, the keys of a recipe and blocks of the README where a page asks for them."""
    markdown = re.sub(r"<!-- README: (\w+) -->", lambda found: _readme_block(found[1]), markdown)
    if "<!-- verbs -->" in markdown:
        markdown = markdown.replace("<!-- verbs -->", "\n\n".join(_verb(verb) for verb in app.VERBS))
    if "<!-- keys -->" in markdown:
        markdown = markdown.replace("<!-- keys -->", render([keys_table("All keys", Recipe())], "markdown"))
    return markdown


def _readme_block(name: str) -> str:
    """What a program wrote into the README between `<!-- name -->` and `<!-- /name -->`."""
    return README.read_text(encoding="utf-8").split(f"<!-- {name} -->")[1].split(f"<!-- /{name} -->")[0].strip()


def _verb(verb: str) -> str:
    function = app.load(app.VERBS[verb][0])
    about = app.arguments_of(function)
    parameters = inspect.signature(function).parameters.values()
    rows = [f"| `{_written(p)}` | {_default(p)} | {about[p.name]} |" for p in parameters]
    table = "\n".join(["| argument or option | default | meaning |", "| --- | --- | --- |", *rows]) if rows else ""
    return f"## {verb}\n\n{app.help_of(function)}\n\n{table}"


def _written(parameter: inspect.Parameter) -> str:
    """As it is written on the command line."""
    option = parameter.kind is parameter.KEYWORD_ONLY
    return "--" + parameter.name.replace("_", "-") if option else parameter.name


def _default(parameter: inspect.Parameter) -> str:
    """Nothing for what is left out by default."""
    default = parameter.default
    return "" if default in (parameter.empty, None, (), []) or default is False else f"`{default}`"
