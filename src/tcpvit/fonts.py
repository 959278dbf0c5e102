"""Names of files and classes in figures: an installed font for every letter, or the letter as an escape."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any

from tcpvit.errors import import_extra, printable

HOUSE = "DejaVu Sans"  # comes with matplotlib
# Parts of the names of fonts that have many letters, which are looked into first.
PREFERRED = (
    "CJK",
    "Noto Sans",
    "Source Han",
    "WenQuanYi",
    "YaHei",
    "PingFang",
    "Hiragino",
    "Malgun",
    "Gothic",
    "Unicode",
)


@dataclass(frozen=True)
class Letters:
    """The fonts that have the letters of some names, in the order in which matplotlib tries them."""

    families: tuple[str, ...] = (HOUSE,)
    files: tuple[str, ...] = ()  # of these families
    missing: frozenset[str] = frozenset()  # letters that no installed font has

    def shown(self, text: str) -> str:
        """The text as it can be drawn."""
        return "".join(_escaped(letter) if letter in self.missing else letter for letter in printable(text))

    def shortened(self, text: str, width: int) -> str:
        """The text as it can be drawn, its middle left out beyond `width` letters; wide letters count twice."""
        return shorten(self.shown(text), width)

    def runs(self, text: str) -> list[tuple[str, str]]:
        """The text as it can be drawn, in parts, each with the file of a font that has its letters."""
        return [(file, "".join(part)) for file, part in groupby(self.shown(text), self._file_with)]

    def _file_with(self, letter: str) -> str:
        return next((file for file in self.files if letter in _glyphs(file)), self.files[0])


def letters_for(texts: Iterable[str]) -> Letters:
    """The fonts for these texts; letters that none has are told in one warning."""
    needed = {letter for text in texts for letter in printable(text)}
    return _find(frozenset(needed - _glyphs(_house_file())))


def shorten(text: str, width: int) -> str:
    """The text, its middle left out if it is wider than so many letters; those of East Asia are two wide.

    >>> shorten("holiday/2024/beach.jpeg", 13), shorten("信号灯と交通標識", 8)
    ('holida…h.jpeg', '信…識')
    """
    if sum(map(_width, text)) <= width:
        return text
    head, tail = _take(text, (width - 1) // 2), _take(text[::-1], (width - 1) // 2)
    return f"{head}…{tail[::-1]}"


def _take(text: str, width: int) -> str:
    """The beginning of the text, so many letters wide."""
    taken = 0
    for i, letter in enumerate(text):
        taken += _width(letter)
        if taken > width:
            return text[:i]
    return text


def _width(letter: str) -> int:
    from unicodedata import east_asian_width

    return 2 if east_asian_width(letter) in "WF" else 1


@lru_cache(maxsize=64)
def _find(needed: frozenset[str]) -> Letters:
    families, files, missing = [HOUSE], [_house_file()], set(needed)
    for family, file in _candidates() if needed else ():
        if found := missing & _glyphs(file):
            families.append(family)
            files.append(file)
            missing -= found
        if not missing:
            break
    if missing:
        some = "".join(sorted(missing)[:5])
        warnings.warn(
            f"no installed font has the letters {some}{'…' if len(missing) > 5 else ''}, so that figures show their "
            "codes; install one that has, as Noto Sans CJK",
            stacklevel=4,
        )
    return Letters(tuple(families), tuple(files), frozenset(missing))


def _candidates() -> Iterator[tuple[str, str]]:
    """The fonts that matplotlib knows, then those that were installed since it looked for them last."""
    from matplotlib.font_manager import findSystemFonts, fontManager

    known = list(fontManager.ttflist)
    yield from _upright(known)
    for file in set(findSystemFonts()) - {font.fname for font in known}:
        with suppress(OSError, RuntimeError, ValueError):  # damaged, or of a kind that it does not read
            fontManager.addfont(file)
    yield from _upright(fontManager.ttflist[len(known) :])


def _upright(fonts: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """One file of each family, those with many letters first."""
    plain = {font.name: font.fname for font in fonts if font.style == "normal" and font.weight == 400}
    order = sorted(plain, key=lambda name: (not any(part in name for part in PREFERRED), name))
    yield from ((name, plain[name]) for name in order if name != "Last Resort High-Efficiency")


def require_matplotlib() -> None:
    """Raise unless it is installed; the error says how to install it."""
    import_extra("matplotlib", "figures are drawn with matplotlib, which is missing", "plots")


def _house_file() -> str:
    require_matplotlib()
    from matplotlib.font_manager import findfont

    return str(findfont(HOUSE))


@lru_cache(maxsize=256)
def _glyphs(file: str) -> frozenset[str]:
    from matplotlib.ft2font import FT2Font

    try:
        codes: Any = FT2Font(file).get_charmap()
    except (OSError, RuntimeError):  # a font that is listed and gone, or damaged
        return frozenset()
    return frozenset(map(chr, codes))


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")
