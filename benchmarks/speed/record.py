"""The JSON file of a benchmark: machine, versions, command and commit, then what was measured, piece by piece."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from benchmarks.speed.bound import Bound
from benchmarks.speed.clock import Measurement
from benchmarks.speed.components import Components
from benchmarks.speed.growth import Growth
from benchmarks.speed.memory import Footprint
from benchmarks.speed.mkl import is_fast
from tcpvit.files import write_atomically

PARTS: dict[str, type] = {
    "time": Measurement,
    "memory": Footprint,
    "growth": Growth,
    "components": Components,
    "bound": Bound,
}
PACKAGES = ("tcpvit", "torch", "timm", "vit-pytorch", "transformers")
BFLOAT16_FLAGS = ("avx512_bf16", "amx_bf16", "avx_ne_convert", "bf16")  # of x86 and ARM


@dataclass
class Record:
    """What was measured so far. `pieces` names what is done, `planned` all there is to do."""

    facts: dict[str, Any]
    planned: list[str]
    pieces: list[str] = field(default_factory=list)
    time: list[Measurement] = field(default_factory=list)
    memory: list[Footprint] = field(default_factory=list)
    growth: list[Growth] = field(default_factory=list)
    components: list[Components] = field(default_factory=list)
    bound: list[Bound] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Nothing is left to do."""
        return set(self.planned) <= set(self.pieces)

    def add(self, piece: str, part: str, found: Sequence[Any]) -> None:
        """Keep what a piece found."""
        getattr(self, part).extend(found)
        self.pieces.append(piece)

    def continues(self, other: Record) -> bool:
        """True if the other is an interrupted run of the same plan by the same code on the same machine."""
        same = ("command", "commit", "machine", "versions")
        return not self.is_complete and self.planned == other.planned and _chosen(self, same) == _chosen(other, same)

    def to_json(self) -> str:
        """As it is written."""
        return json.dumps(asdict(self), indent=1, ensure_ascii=False)

    def save(self, path: Path) -> None:
        """Write it in one go: an interruption leaves the file before or after, never half of it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, (self.to_json() + "\n").encode())

    @classmethod
    def load(cls, path: Path) -> Record:
        """From a file that `save` wrote."""
        try:
            given = json.loads(path.read_text(encoding="utf-8"))
            parts: dict[str, Any] = {part: [kind(**row) for row in given.pop(part, [])] for part, kind in PARTS.items()}
            return cls(**given, **parts)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path} is no record of this benchmark ({error}); name another file or delete it"
            ) from None


def _chosen(record: Record, keys: Sequence[str]) -> list[Any]:
    return [record.facts.get(key) for key in keys]


def facts(command: str) -> dict[str, Any]:
    """Where, when and with what a benchmark runs."""
    return {
        "command": command,
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _commit(),
        "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,  # of the minute before
        "machine": _machine(),
        "versions": {"Python": platform.python_version(), **{p: v for p in PACKAGES if (v := _version(p))}},
    }


def _machine() -> dict[str, Any]:
    info = Path("/proc/cpuinfo")
    cpu = info.read_text() if info.exists() else ""
    name = re.search(r"^model name\s*: (.*)$", cpu, flags=re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*: (.*)$", cpu, flags=re.MULTILINE)
    return {
        "processor": name[1].strip() if name else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "bfloat16": [flag for flag in BFLOAT16_FLAGS if flags and flag in flags[1].split()],
        "system": platform.system(),
        "fast MKL": is_fast(),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of this code, with a + if the package was changed since; None outside a repository.

    Other files do not count: the record itself is one of them, and an interrupted run should find itself again.
    """
    git = ["git", "-C", str(Path(__file__).parents[2])]
    try:
        commit, changes = (
            subprocess.run([*git, *words], capture_output=True, text=True, check=True).stdout.strip()
            for words in (("rev-parse", "--short=10", "HEAD"), ("status", "--porcelain", "--", "."))
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit + "+" if changes else commit
