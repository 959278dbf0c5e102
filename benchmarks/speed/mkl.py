"""MKL as it is on Intel: on other processors it takes slow paths, which flatters whoever does without it.

It asks one function whether the processor is Intel's. A library of that one function, loaded first, says that it is.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SAYS_INTEL = "int mkl_serv_intel_cpu_true(void) { return 1; }\n"
LIBRARY = "libmkl_as_on_intel.so"
PRELOAD = "LD_PRELOAD"


def is_fast() -> bool:
    """Whether such a library was loaded into this process first."""
    told = getattr(ctypes.CDLL(None), "mkl_serv_intel_cpu_true", None)
    return bool(told and told())


def use_fast(words: list[str]) -> None:
    """Start `python -m benchmarks.models` again with that library, unless this is the process with it."""
    if is_fast():
        return
    before = os.environ.get(PRELOAD, "")
    if LIBRARY in before:
        raise SystemExit(f"{before} is asked for by {PRELOAD} and could not be loaded")
    folder = Path(tempfile.mkdtemp())  # of our own, as what lies in it is loaded
    source, library = folder / "says_intel.c", folder / LIBRARY
    source.write_text(SAYS_INTEL)
    subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    environment = {**os.environ, PRELOAD: f"{library} {before}".strip()}
    os.execve(sys.executable, [sys.executable, "-m", "benchmarks.models", *words], environment)
