"""The classes of masks: as classes.txt names them, or as many as the masks hold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tcpvit.data.decode import SPECIAL, is_special, read_mask
from tcpvit.data.image_set import IGNORE
from tcpvit.data.images import list_bad, why

MASK_VALUES_HINT = "rename the values with mask_values (--set 'data.options.mask_values={0: 0, 255: 1}')"
CLASSES_HINT = f"{MASK_VALUES_HINT}, or name the classes, one a line in classes.txt or with the option classes"


def listed_classes(folder: Path) -> list[str]:
    """The lines of classes.txt, where there is one."""
    listed = folder / "classes.txt"
    if is_special(str(listed)):
        raise ValueError(f"{listed} is {SPECIAL}; put a text file there, or remove it")
    try:
        lines = listed.read_text(encoding="utf-8-sig").splitlines() if listed.is_file() else []
    except UnicodeDecodeError:
        raise ValueError(f"{listed} is no text in UTF-8; save it as such, one class a line") from None
    return [line.strip() for line in lines if line.strip()]


def classes_of_masks(train: Path, masks: Sequence[str], mask_values: dict[int, int] | None) -> list[str]:
    """As many classes as the masks hold."""
    if mask_values:
        return _name_classes(train, dict.fromkeys(mask_values.values(), "mask_values"))
    holders, bad = _values_of_masks(masks)
    if not holders:
        raise ValueError(f"{list_bad(bad, len(masks))}; no mask of {train} is left: repair them")
    return _name_classes(train, holders, f"; besides, {list_bad(bad, len(masks))}" if bad else "")


def _name_classes(train: Path, holders: dict[int, str], besides: str = "") -> list[str]:
    """Names up to the largest class id; a mask that skips some holds something else than class ids."""
    ids = sorted(holders.keys() - {IGNORE})
    if len(ids) < 2:
        raise ValueError(
            f"the masks of {train} hold only the values {sorted(holders)}, where {IGNORE} is ignored: "
            f"{MASK_VALUES_HINT if IGNORE in holders else CLASSES_HINT}{besides}"
        )
    if missing := sorted(set(range(ids[-1])) - set(ids)):
        odd = next(k for k in ids if k > missing[0])
        raise ValueError(
            f"class ids count from 0, but the masks of {train} hold {odd} (as {holders[odd]}) and not {missing[0]}: "
            f"repair them, or {CLASSES_HINT}; without these on_bad=skip cannot know which values are wrong{besides}"
        )
    return [f"class {k}" for k in ids]


def _values_of_masks(masks: Sequence[str]) -> tuple[dict[int, str], list[str]]:
    """The values that masks hold, each with the first file that holds it; and a sentence for each unreadable mask."""
    found: dict[int, str] = {}
    bad: list[str] = []
    for path in masks:
        try:
            found = dict.fromkeys(np.unique(np.asarray(read_mask(path))).tolist(), path) | found
        except Exception as error:
            bad.append(why(path, error))
    return found, bad
