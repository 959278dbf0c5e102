"""How every room says no: the nearest valid name at the end of a sentence, and names that cannot harm a terminal."""

from __future__ import annotations

import difflib
import importlib
import math
import re
import unicodedata
from collections.abc import Iterable
from typing import Any

MANY = 12  # choices: an error that can name the nearest does not list more


class Resumable(ValueError):
    """What ended a run that can be resumed when its cause is gone; the sentence says how."""


def import_extra(module: str, use: str, extra: str) -> Any:
    """A module of a package that need not be installed, or an error that says how to install it.

    >>> import_extra("no_such_package", "tides are computed with it", "tides")
    Traceback (most recent call last):
    ImportError: tides are computed with it: pip install 'tcpvit[tides]'
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ImportError(f"{use}: pip install 'tcpvit[{extra}]'") from None


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The valid choice that is most like `name`, if one is alike at all.

    >>> nearest("dtc", ["dct", "haar"]), nearest("fft", ["dct", "haar"])
    ('dct', None)
    """
    return next(iter(difflib.get_close_matches(name, list(known), n=1)), None)


def did_you_mean(name: str, known: Iterable[str], listing: str = "") -> str:
    """The end of an error message that names the nearest valid choice, and all of them unless they are many.

    `listing` is the command that shows all, for choices that are too many for a message.

    >>> did_you_mean("dtc", ["dct", "haar"])
    "; did you mean 'dct'? Known: dct, haar"
    >>> did_you_mean("fft", ["dct", "haar"], "tcpvit models")
    '; `tcpvit models` lists them'
    """
    known = list(known)
    close = nearest(name, known)
    if close and (listing or len(known) > MANY):
        return f"; did you mean {close!r}?"
    if listing:
        return f"; `{listing}` lists them"
    hint = f"; did you mean {close!r}?" if close else "."
    return f"{hint} Known: {', '.join(known) or 'none'}"


def divisors(number: int) -> list[int]:
    """The numbers that divide a number, for an error that names what would fit.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def printable(text: str) -> str:
    r"""A name of a file or class as it may be shown: control characters, and bytes that are no UTF-8, as escapes.

    >>> printable("cat\x1b[2J\r"), printable("猫 b\udcffd")
    ('cat\\x1b[2J\\r', '猫 b\\udcffd')
    """
    return re.sub(r"[^ -~]", _escaped, text)


def _escaped(found: re.Match[str]) -> str:
    character = found[0]
    shown = character.isprintable() or unicodedata.category(character) == "Zs"
    return character if shown else character.encode("unicode_escape").decode("ascii")
