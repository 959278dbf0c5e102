"""What the files of a set hold, by their heads: one pass over all of them before any is decoded."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tcpvit.data.decode import COLOUR_ONLY, Bands, Layout, read_layout
from tcpvit.data.images import why
from tcpvit.errors import printable
from tcpvit.progress import Progress


@dataclass(frozen=True)
class Survey:
    """The files of each kind (bands and type of value), and a sentence for each that is no image."""

    kinds: dict[str, list[tuple[str, Layout]]]  # the kind with most files first
    bad: list[str]

    @property
    def total(self) -> int:
        """Files that were looked at."""
        return len(self.bad) + sum(map(len, self.kinds.values()))

    @property
    def most_common(self) -> Layout:
        """The layout of most of the files."""
        return next(iter(self.kinds.values()))[0][1]

    def say_differ(self) -> str:
        """That files of one set are of several kinds, with one file of each of two."""
        (kind, files), (other, others) = list(self.kinds.items())[:2]
        return printable(
            f"all images of a set have the same bands and values, but {files[0][0]} has {kind} (one of "
            f"{len(files):,}) and {others[0][0]} {other} (one of {len(others):,}); convert them, read all as colour of "
            f"8 bits with {COLOUR_ONLY}, or leave out the fewer ones with on_bad=skip (--set data.options.on_bad=skip)"
        )

    def describe(self) -> dict[str, str]:
        """Bands, values and sizes, for people."""
        sizes = sorted({(each.width, each.height) for files in self.kinds.values() for _, each in files})
        kinds = ", ".join(f"{kind} in {len(files):,} files" for kind, files in self.kinds.items())
        if not sizes:
            return {}
        (width, height), (widest, highest) = (
            tuple(choose(side) for side in zip(*sizes, strict=True)) for choose in (min, max)
        )
        shown = f"{width}×{height}" if len(sizes) == 1 else f"width {width} to {widest}, height {height} to {highest}"
        return {"pixels": kinds, "sizes": shown}


def survey_files(files: Sequence[str], bands: Bands, progress: Progress | None = None) -> Survey:
    """Look into the head of each file."""
    kinds: dict[str, list[tuple[str, Layout]]] = {}
    bad: list[str] = []
    with ThreadPoolExecutor(min(32, os.cpu_count() or 1)) as pool:
        looked = pool.map(lambda file: _look(file, bands), files)
        tracked = (progress or Progress()).track(looked, "looking at the files", len(files))
        for file, found in zip(files, tracked, strict=True):
            if isinstance(found, str):
                bad.append(found)
            else:
                kinds.setdefault(found.kind, []).append((file, found))
    return Survey(dict(sorted(kinds.items(), key=lambda item: -len(item[1]))), bad)


def _look(file: str, bands: Bands) -> Layout | str:
    try:
        return read_layout(file, bands)
    except Exception as error:
        return why(file, error)
