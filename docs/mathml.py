"""A mkdocs hook: formulas become MathML, which browsers draw themselves, without scripts and without a network."""

import html
import re

from latex2mathml.converter import convert

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_page_content(content: str, **_: object) -> str:
    """Replace what pymdownx.arithmatex leaves."""
    return FORMULA.sub(lambda found: _mathml(found[2], "block" if found[1] == "div" else "inline"), content)


def _mathml(latex: str, display: str) -> str:
    return convert(html.unescape(latex), display=display)
