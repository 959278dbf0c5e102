"""A mkdocs hook: the page of the command line is made from the table of verbs and their functions."""

import inspect

from tcpvit import cli


def on_page_markdown(markdown: str, **_: object) -> str:
    """Put the verbs where the page asks for them."""
    if "<!-- verbs -->" not in markdown:
        return markdown
    return markdown.replace("<!-- verbs -->", "\n\n".join(_verb(verb) for verb in cli.VERBS))


def _verb(verb: str) -> str:
    function = cli.load(cli.VERBS[verb][0])
    about = cli.arguments_of(function)
    parameters = inspect.signature(function).parameters.values()
    rows = [f"| `{_written(p)}` | {_default(p)} | {about[p.name]} |" for p in parameters]
    table = "\n".join(["| argument or option | default | meaning |", "| --- | --- | --- |", *rows]) if rows else ""
    return f"## {verb}\n\n{cli.help_of(function)}\n\n{table}"


def _written(parameter: inspect.Parameter) -> str:
    """As it is written on the command line."""
    option = parameter.kind is parameter.KEYWORD_ONLY
    return "--" + parameter.name.replace("_", "-") if option else parameter.name


def _default(parameter: inspect.Parameter) -> str:
    """Nothing for what is left out by default."""
    default = parameter.default
    return "" if default in (parameter.empty, None, (), []) or default is False else f"`{default}`"
