"""Where the real data are, for the tests that look at them."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _no_data_by_accident(monkeypatch, tmp_path):
    """Tests look into the folders they name, not into the user's cache."""
    monkeypatch.setenv("TCPVIT_DATA", str(tmp_path / "empty"))


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of TCPVIT_TEST_DATA, else ../shared/data beside the repository."""
    place = Path(os.environ.get("TCPVIT_TEST_DATA") or REPOSITORY.parent / "shared" / "data")
    if not place.is_dir():
        pytest.skip("no real data: set TCPVIT_TEST_DATA to their folder")
    return place


@pytest.fixture(scope="session")
def real_cifar10(real_data, tmp_path_factory) -> Path:
    """A data root with both releases of the real CIFAR-10."""
    script = real_data / "cifar10" / "unpack_cifar10.py"
    if not script.is_file():
        pytest.skip(f"no real CIFAR-10: {script} is missing")
    root = tmp_path_factory.mktemp("cifar10")
    subprocess.run([sys.executable, script, "--out", root, "--pickle"], check=True, stdout=subprocess.DEVNULL)
    return root


@pytest.fixture(scope="session")
def real_pets(real_data, tmp_path_factory) -> Path:
    """A data root with the real Oxford-IIIT Pet at 128×128."""
    archive = real_data / "oxford_pet_128.tar.gz"
    if not archive.is_file():
        pytest.skip(f"no real Oxford-IIIT Pet: {archive} is missing")
    root = tmp_path_factory.mktemp("pets")
    with tarfile.open(archive) as tar:
        tar.extractall(root, filter="data")
    return root
