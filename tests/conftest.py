"""What every test stands on: one thread, the same random numbers each time, and time for hypothesis."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from small_runs import SMALL, make_set

from tcpvit.data import Splits
from tcpvit.training import Recipe

# test_gpu.py runs it in a process of its own: it gives the operators other kernels.
collect_ignore = [] if os.environ.get("TRITON_INTERPRET") else ["layers/kernels/interpreted_gpu.py"]

REPOSITORY = Path(__file__).parents[1]

settings.register_profile("tcpvit", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("tcpvit")
torch.set_num_threads(1)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background of a shell; what the tests start inherits it
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _same_random_numbers():
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _same_terminal(monkeypatch):
    """A display that a test asks for is drawn, whatever the terminal of whoever runs the tests can do."""
    monkeypatch.setenv("TERM", "xterm")


@pytest.fixture
def recipe() -> Recipe:
    """The small run, of 2 epochs of 3 steps."""
    return Recipe.from_dict(SMALL)


@pytest.fixture
def splits() -> Splits:
    """Made images for runs that load none."""
    return Splits("made", make_set(40, 0), make_set(20, 1), make_set(20, 2))


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
