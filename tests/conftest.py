"""What every test stands on: one thread, the same random numbers each time, and time for hypothesis."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings

settings.register_profile("tcpvit", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("tcpvit")
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _same_random_numbers():
    torch.manual_seed(0)
