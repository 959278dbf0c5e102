"""Compiles a kernel once into the user's cache, and says so in one line; without a compiler there is no kernel.

Beside each library lies its SHA-256: one that a full disk or a power cut has damaged would crash the process that loads
it, so it is built again. Messages go to the logger "tcpvit".
`TCPVIT_KERNELS=0` switches all kernels off, `TCPVIT_CACHE` moves the cache, and `TCPVIT_KERNEL_FLAGS` adds flags for
the compiler (`make sanitize` builds with the address and undefined-behaviour sanitizers).
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor

from tcpvit.algebra.cache import constant_in_graphs
from tcpvit.files import temporary_folder, write_atomically

SOURCES = Path(__file__).parent
LIMIT = 300.0  # seconds for the compiler; some are needed
# torch's own names for what the processor can do, with the compiler's flags for it
FLAGS = {
    "AVX512": ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx2", "-mfma", "-mf16c"],
    "AVX2": ["-mavx2", "-mfma", "-mf16c"],
}
# the precisions that kernels take, by the names of their functions
DTYPES = {torch.float32: "float32", torch.float64: "float64", torch.bfloat16: "bfloat16"}
# torch 2.6 cannot tell.
_is_exporting = getattr(torch.compiler, "is_exporting", lambda: False)


def operators_refused() -> bool:
    """True where kernels cannot be used: an exported or traced program should run without this library, and
    `torch.func` (grad, vmap, jvp) takes no operators of other libraries.
    """
    if torch.jit.is_tracing():  # torch.jit.trace, and torch.onnx.export(dynamo=False)
        return True
    if torch.compiler.is_compiling():
        return bool(_is_exporting())
    return torch._C._functorch.peek_interpreter_stack() is not None


@constant_in_graphs
def is_built(name: str) -> bool:
    """True if the kernel could be built (it is, if it was not yet)."""
    return load_kernel(name) is not None


def refuse_second_derivatives(*_: object) -> NoReturn:
    """The derivative of an operator's backward."""
    raise RuntimeError(
        "our operators have first derivatives only: for second ones set TCPVIT_KERNELS=0, and compute attention with "
        "torch.nn.attention.sdpa_kernel(SDPBackend.MATH)"
    )


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """The precision in which a kernel computes."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def call(name: str, direction: str, dtype: torch.dtype, *tensors: Tensor | None, shape: ctypes.Structure) -> None:
    """Run `tcpvit_DIRECTION_DTYPE` of a kernel on contiguous tensors or None, with torch's number of threads."""
    library = load_kernel(name)
    if library is None:
        raise RuntimeError(f"the kernel {name!r} is not built here; ask is_built() first")
    pointers = [None if t is None else ctypes.c_void_p(t.data_ptr()) for t in tensors]
    getattr(library, f"tcpvit_{direction}_{DTYPES[dtype]}")(*pointers, ctypes.byref(shape), torch.get_num_threads())


@functools.cache
def load_kernel(name: str) -> ctypes.CDLL | None:
    """The library made of NAME.cpp, or None where it cannot be had."""
    compiler, folder = find_compiler(), cache_folder()
    if not kernels_enabled() or compiler is None or folder is None:
        return None
    source, flags = SOURCES / f"{name}.cpp", compile_flags()
    library = folder / f"{name}-{_fingerprint(source, compiler, flags)}.so"
    try:
        if not is_intact(library):
            _log.warning("building the CPU kernel %r, once, some seconds …", name)
            compile_library(source, library, compiler, flags)
        return ctypes.CDLL(str(library))
    except subprocess.TimeoutExpired:
        _gave_up.append(name)
        _log.warning(
            "the compiler %s did not end within %g seconds and was stopped; plain torch is used instead of our kernels "
            "(TCPVIT_KERNELS=0 does not try to build them)",
            compiler,
            LIMIT,
        )
    except (OSError, subprocess.SubprocessError):
        pass
    return None


_log = logging.getLogger("tcpvit")
_gave_up: list[str] = []  # kernels whose compiler did not end


def kernels_enabled() -> bool:
    """Whether kernels are used on the CPU, as far as that is known before they are built."""
    on_linux = switched_on() and sys.platform == "linux"
    return on_linux and not _gave_up and find_compiler() is not None and cache_folder() is not None


def switched_on() -> bool:
    """Whether the user wants kernels, on a CPU or a GPU."""
    return os.environ.get("TCPVIT_KERNELS", "1") != "0"


def find_compiler() -> str | None:
    """The C++ compiler of this machine."""
    return os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")


def cache_folder() -> Path | None:
    """Where built kernels are kept; None for a user without a home, who can set TCPVIT_CACHE."""
    if given := os.environ.get("TCPVIT_CACHE"):
        return Path(given) / "kernels"
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        return None
    return base / "tcpvit" / "kernels"


def is_intact(library: Path) -> bool:
    """Whether the library is there as it was built."""
    try:
        return _checksum_file(library).read_text() == _checksum(library)
    except (OSError, UnicodeDecodeError):
        return False


def compile_flags() -> list[str]:
    """Optimised for this processor, against torch's headers and its OpenMP."""
    capability = torch.backends.cpu.get_cpu_capability()
    vectors = FLAGS.get(capability, [])
    define = (
        [f"-DCPU_CAPABILITY={capability}", f"-DCPU_CAPABILITY_{capability}"]
        if vectors
        else ["-DCPU_CAPABILITY=DEFAULT"]
    )
    torch_folder = Path(torch.__file__).parent
    include = [f"-I{torch_folder / 'include'}"]
    link = [f"-L{torch_folder / 'lib'}", f"-Wl,-rpath,{torch_folder / 'lib'}", "-ltorch_cpu", "-lc10"]
    optimise = ["-O3", "-std=c++20", "-fPIC", "-shared", "-fopenmp", "-fno-math-errno"]
    extra = os.environ.get("TCPVIT_KERNEL_FLAGS", "").split()
    return [*optimise, *vectors, *define, *include, *link, *extra]


def compile_library(source: Path, library: Path, compiler: str, flags: list[str]) -> None:
    """Compile under a temporary name, then rename: two processes that build at once do no harm."""
    library.parent.mkdir(parents=True, exist_ok=True)
    with temporary_folder(library.parent, ".building") as folder:
        made = folder / library.name
        _run_compiler([compiler, str(source), "-o", str(made), *flags])
        checksum = _checksum(made)
        made.replace(library)
        write_atomically(_checksum_file(library), checksum.encode())


def _run_compiler(command: list[str]) -> None:
    """Run a compiler; if it takes too long, it is ended with all the processes that it has started."""
    none = subprocess.DEVNULL
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}  # a sanitizer's, say
    process = subprocess.Popen(command, stdin=none, stdout=none, stderr=none, start_new_session=True, env=environment)
    try:
        code = process.wait(timeout=LIMIT)
    except BaseException:  # Ctrl-C too, which does not reach another session
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    if code:
        raise subprocess.CalledProcessError(code, command)


def _checksum(library: Path) -> str:
    return hashlib.sha256(library.read_bytes()).hexdigest()


def _checksum_file(library: Path) -> Path:
    return library.with_suffix(".sha256")


def _fingerprint(source: Path, compiler: str, flags: list[str]) -> str:
    """Another source, header, compiler, torch or processor is another library."""
    headers = [header.read_text() for header in sorted(source.parent.glob("*.h"))]
    parts = [source.read_text(), *headers, compiler, torch.__version__, *flags]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
