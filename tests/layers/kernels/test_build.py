"""Building: once, with one line of notice; without a compiler or by request not at all, and nobody is the wiser."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tcpvit.layers.kernels import build
from tcpvit.layers.kernels.build import is_built

PROGRAM = """
import torch, tcpvit
from tcpvit.layers.kernels.build import is_built
torch.manual_seed(0)
model = tcpvit.create_model("tcp_vit_cifar", depth=1)
print(is_built("ffn_half"), model(torch.randn(1, 3, 32, 32)).sum().item())
"""


OURS = library._name if (library := build.load_kernel("layer_norm")) else None


def run(tmp_path, **environment):
    environment = {**os.environ, "TCPVIT_CACHE": str(tmp_path), **environment}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    built, value = done.stdout.split()
    return built == "True", float(value), done.stderr


@pytest.mark.skipif(not is_built("ffn_half"), reason="no compiler here")
def test_each_kernel_is_built_once_with_one_line_of_notice(tmp_path):
    built, value, notice = run(tmp_path)
    assert built
    assert [line.startswith("building the CPU kernel") for line in notice.splitlines()] == [
        True
    ] * 3  # both halves, and the last norm
    again = run(tmp_path)
    assert again == (True, value, "")
    off, same, silence = run(tmp_path, TCPVIT_KERNELS="0")
    assert (off, silence) == (False, "")
    assert same == pytest.approx(value, abs=1e-5)


@pytest.mark.parametrize("environment", [{"PATH": "", "CXX": ""}, {"CXX": "false"}, {"TCPVIT_CACHE": "/dev/null/x"}])
def test_silent_fallback(tmp_path, environment):
    built, _, stderr = run(tmp_path, **environment)
    assert not built
    assert "Traceback" not in stderr
    assert "error" not in stderr.lower()


def is_running(process: int) -> bool:
    state = Path(f"/proc/{process}/stat")
    return state.exists() and state.read_text().split()[2] != "Z"


def program(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """Kernels are loaded anew, from an empty cache."""
    monkeypatch.setenv("TCPVIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "_gave_up", [])
    build.load_kernel.cache_clear()
    yield tmp_path / "cache" / "kernels"
    build.load_kernel.cache_clear()


@pytest.mark.skipif(not is_built("layer_norm"), reason="no compiler here")
@pytest.mark.parametrize("damage", ["truncated", "overwritten", "no checksum"])
def test_a_damaged_library_is_built_again(tmp_path, monkeypatch, caplog, own_cache, damage):
    """If it were loaded as it is, this process would end by SIGBUS."""
    built = build.load_kernel.__wrapped__
    whole = Path(OURS).read_bytes()
    monkeypatch.setenv("CXX", program(tmp_path / "copy", f'#!/bin/sh\ncp "{OURS}" "$3"\n'))
    assert built("layer_norm") is not None
    (library,) = own_cache.glob("*.so")
    library.with_suffix(".old").hardlink_to(library)  # stays mapped
    library.unlink()
    if damage == "no checksum":
        library.write_bytes(whole)
        library.with_suffix(".sha256").unlink()
    else:
        library.write_bytes(whole[: len(whole) // 3] if damage == "truncated" else b"\0" * len(whole))
    assert built("layer_norm") is not None
    assert library.read_bytes() == whole
    assert built("layer_norm") is not None
    assert sum("building the CPU kernel" in record.getMessage() for record in caplog.records) == 2
    assert sorted(path.suffix for path in own_cache.iterdir()) == [".old", ".sha256", ".so"]


@pytest.mark.skipif(sys.platform != "linux", reason="kernels are for Linux")
def test_a_compiler_that_never_ends_is_stopped_with_all_its_processes(tmp_path, monkeypatch, caplog, own_cache):
    pid = tmp_path / "pid"
    monkeypatch.setenv("CXX", program(tmp_path / "endless", f"#!/bin/sh\nsleep 600 &\necho $! > {pid}\nwait\n"))
    monkeypatch.setattr(build, "LIMIT", 1.0)
    begin = time.monotonic()
    assert build.load_kernel("attention") is None
    assert build.load_kernel("tubes") is None  # is not tried any more
    assert not build.kernels_enabled()
    assert time.monotonic() - begin < 20
    told = [record.getMessage() for record in caplog.records if "did not end within 1 seconds" in record.getMessage()]
    assert len(told) == 1
    assert "plain torch is used" in told[0]
    while is_running(int(pid.read_text())):  # SIGKILL takes a moment
        assert time.monotonic() - begin < 20
        time.sleep(0.01)
    assert list(own_cache.iterdir()) == []


@pytest.mark.skipif(os.name == "nt", reason="users of POSIX")
def test_a_user_without_a_home_has_no_kernels_and_no_traceback(monkeypatch):
    def nobody(uid):
        raise KeyError(uid)

    for name in ("HOME", "TCPVIT_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", nobody)
    build.load_kernel.cache_clear()
    assert build.cache_folder() is None
    assert build.load_kernel("attention") is None
    build.load_kernel.cache_clear()
