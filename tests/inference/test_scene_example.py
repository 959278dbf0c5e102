"""examples/scene_to_map.py from start to end, for one epoch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib")
EXAMPLE = Path(__file__).parents[2] / "examples" / "scene_to_map.py"


def test_the_example_makes_maps_and_figures(tmp_path):
    done = subprocess.run(
        [sys.executable, EXAMPLE, tmp_path / "out", "1"], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "0.0 % of 538 test windows contain a training pixel" in done.stdout
    assert np.load(tmp_path / "out" / "classes.npy").shape == (64, 64)
    for name in ("classes.png", "classes_confidence.png", "classes.hdr", "classes.img", "maps.png", "importance.png"):
        assert (tmp_path / "out" / name).stat().st_size > 100
