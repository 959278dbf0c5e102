"""How every room says no: the nearest valid name at the end of a sentence."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The valid choice that is most like `name`, if one is alike at all.

    >>> nearest("dtc", ["dct", "haar"]), nearest("fft", ["dct", "haar"])
    ('dct', None)
    """
    return next(iter(difflib.get_close_matches(name, list(known), n=1)), None)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of an error message that names the nearest valid choice, and all of them.

    >>> did_you_mean("dtc", ["dct", "haar"])
    "; did you mean 'dct'? Known: dct, haar"
    """
    known = list(known)
    close = nearest(name, known)
    hint = f"; did you mean {close!r}?" if close else "."
    return f"{hint} Known: {', '.join(known) or 'none'}"
