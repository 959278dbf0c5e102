"""How much memory there is, and what would not fit into it: refused in one sentence before anything is allocated."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup/memory.max")  # what a container may use, on Linux


class TooLarge(ValueError):
    """Something that would not fit into the memory of this machine."""


def machine_memory() -> int | None:
    """Bytes that this process may use at most; None where the system does not say."""
    found: list[int] = []
    with suppress(AttributeError, OSError, ValueError):
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with suppress(OSError, ValueError):
        found.append(int(CGROUP.read_text()))
    return min(found, default=None)


def check_memory(needed: float, what: str, advice: str, *, available: int | None = None, where: str = "") -> None:
    """Raise if `needed` bytes are more than there are: on this machine, or `where` has `available` ones.

    >>> check_memory(3.5e12, "this model", "take fewer blocks", available=24 * 2**30, where="cuda:0")
    Traceback (most recent call last):
    tcpvit.memory.TooLarge: this model would need about 3.2 TiB, cuda:0 has 24 GiB; take fewer blocks
    """
    available = machine_memory() if available is None else available
    if available is not None and needed > available:
        there = f"{where or 'this machine'} has {size_in_words(available)}"
        raise TooLarge(f"{what} would need about {size_in_words(needed)}, {there}; {advice}")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed: on a GPU, or on the CPU, where torch says so in words only.

    >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory")), is_out_of_memory(RuntimeError())
    (True, False)
    """
    words = ("can't allocate memory", "not enough memory", "out of memory")
    return isinstance(error, MemoryError) or any(word in str(error) for word in words)


def size_in_words(size: float) -> str:
    """Bytes in the unit that fits.

    >>> size_in_words(3 * 2**30), size_in_words(1500), size_in_words(2.5e30)
    ('3 GiB', '1.5 KiB', '2.1e+06 YiB')
    """
    units = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:.2g} {units[0]}" if size < 100 or size >= 1e6 else f"{size:.0f} {units[0]}"
