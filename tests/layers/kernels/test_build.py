"""Building: once, with one line of notice; without a compiler or by request not at all, and nobody is the wiser."""

import os
import subprocess
import sys

import pytest

from tcpvit.layers.kernels.build import is_built

PROGRAM = """
import torch, tcpvit
from tcpvit.layers.kernels.build import is_built
torch.manual_seed(0)
model = tcpvit.create_model("tcp_vit_cifar", depth=1)
print(is_built("attention"), model(torch.randn(1, 3, 32, 32)).sum().item())
"""


def run(tmp_path, **environment):
    environment = {**os.environ, "TCPVIT_CACHE": str(tmp_path), **environment}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    built, value = done.stdout.split()
    return built == "True", float(value), done.stderr


@pytest.mark.skipif(not is_built("attention"), reason="no compiler here")
def test_each_kernel_is_built_once_with_one_line_of_notice(tmp_path):
    built, value, notice = run(tmp_path)
    assert built
    assert [line.startswith("tcpvit: building the CPU kernel") for line in notice.splitlines()] == [True, True]
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
