"""How every room says no: the nearest valid name at the end of a sentence."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MOST_NAMED = 200


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of an error message that names the nearest valid choice, and all of them where they are not too many.

    >>> did_you_mean("dtc", ["dct", "haar"])
    "; did you mean 'dct'? Known: dct, haar"
    """
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else "."
    return f"{hint} Known: {', '.join(known) or 'none'}" if len(known) <= MOST_NAMED else hint
