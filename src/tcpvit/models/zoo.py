"""The zoo: trained weights that come with the package, found by the name of their preset.

`zoo/NAME/` is a folder of `save_pretrained` with preprocessing.json, the recipe of its training and a card. It is
written by experiments/zoo.py from a run of a study, never by hand.
"""

from __future__ import annotations

import fnmatch
import re
from pathlib import Path

from tcpvit.errors import did_you_mean
from tcpvit.files import read_text
from tcpvit.models.pretrained import CONFIG

ZOO = Path(__file__).parent / "zoo"
RECIPE, CARD = "recipe.yaml", "README.md"


def list_pretrained(pattern: str = "*") -> list[str]:
    """Names of the presets whose trained weights come with the package."""
    return sorted(fnmatch.filter((folder.parent.name for folder in ZOO.glob(f"*/{CONFIG}")), pattern))


def pretrained_folder(name: str) -> Path:
    """Where the trained weights of a preset lie."""
    if name not in list_pretrained():
        raise ValueError(
            f"no trained weights of {name!r} come with the package{did_you_mean(name, list_pretrained())}; "
            f"train it with `tcpvit train`"
        )
    return ZOO / name


def card_facts(name: str) -> dict[str, str]:
    """What the card of a preset says was measured, row by row.

    >>> card_facts("tcp_vit_cifar_plus")["parameters"]
    '43,930'
    """
    _, _, facts = read_text(pretrained_folder(name) / CARD).partition("<!-- facts -->")
    rows = re.findall(r"^\| ([^|]*\S) +\| ([^|]*\S) +\|$", facts.partition("<!-- /facts -->")[0], flags=re.MULTILINE)
    return {key: value for key, value in rows if not key.startswith("---")}
