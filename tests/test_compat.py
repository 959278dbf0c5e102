"""The repair of torchvision, each case in an interpreter of its own: operators are registered once per process."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPAIR = "from tcpvit.compat import repair_torchvision as repair\n"
# What torchvision does when it is imported, and what fails if its operators were not loaded.
ASKS_FOR_OPERATORS = """
import torch
for name in ("nms", "qnms"):
    torch.library.register_fake(f"torchvision::{name}")(lambda dets, scores, iou_threshold: dets)
"""


def python(code: str, *path: Path) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A path with a torchvision whose compiled library cannot be loaded."""
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text(ASKS_FOR_OPERATORS)
    (tmp_path / "torchvision" / "_C.so").write_bytes(b"no library")
    return tmp_path


def test_a_broken_torchvision_fails_without_the_repair(broken):
    assert "operator torchvision::nms does not exist" in python("import torchvision", broken).stderr


def test_a_broken_torchvision_is_repaired_once(broken):
    done = python(
        REPAIR + "print(repair(), repair())\nimport torchvision; print(repair(), torchvision.__file__)", broken
    )
    assert done.stdout.split()[:3] == ["True", "False", "False"], done.stderr
    assert str(broken) in done.stdout


def test_a_healthy_torchvision_is_left_alone(broken):
    (broken / "torchvision" / "_C.so").unlink()
    signature = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
    operators = f"""
import torch
library = torch.library.Library("torchvision", "DEF")
library.define("nms{signature}")
library.define("qnms{signature}")
"""
    done = python(operators + REPAIR + "print(repair())\nimport torchvision; print(repair())", broken)
    assert done.stdout.split() == ["False", "False"], done.stderr


def test_an_absent_torchvision_is_no_error():
    hidden = "import importlib.util\nimportlib.util.find_spec = lambda name: None\n"
    done = python(REPAIR + hidden + "print(repair())")
    assert done.stdout.split() == ["False"], done.stderr


@pytest.mark.skipif(importlib.util.find_spec("torchvision") is None, reason="torchvision is not installed")
def test_the_installed_torchvision_works():
    code = """
import torch
repair()
import torchvision
from torchvision.transforms import v2
print(torchvision.models.vit_b_16, tuple(v2.Resize((5, 7))(torch.zeros(3, 9, 9)).shape))
"""
    done = python(REPAIR + code)
    assert done.stdout.endswith("(3, 5, 7)\n"), done.stderr
