"""What the registry knows of a published set; each set's module fills one in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tcpvit.data.files import FileCheck, Resource
from tcpvit.data.image_set import Splits

Split = Literal["official", "paper"]


@dataclass(frozen=True)
class Source:
    """A published set: what it is, where its files come from, and how they are found, checked and read."""

    name: str
    about: str
    home: str  # the folder under the data root that its files are unpacked into
    resources: tuple[Resource, ...]
    default_split: Split
    find: Callable[[Path], Path | None]  # the set's folder under a data root
    check: Callable[[Path], list[FileCheck]]
    load: Callable[..., Splits]
    is_needed: Callable[[str], bool] = lambda member: True  # which members of its archives are unpacked
    optional: tuple[Resource, ...] = ()  # fetched when asked for
