"""A run that takes a fraction of a second and uses everything that could break a resumption."""

from __future__ import annotations

import pytest
import torch
from small_runs import SMALL, make_set

from tcpvit.data import Splits
from tcpvit.training import Recipe


@pytest.fixture(autouse=True)
def one_thread():
    """Sums are taken in the same order by every process."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def recipe() -> Recipe:
    """The small run, of 2 epochs of 3 steps."""
    return Recipe.from_dict(SMALL)


@pytest.fixture
def splits() -> Splits:
    """Made pictures for runs that load none."""
    return Splits("made", make_set(40, 0), make_set(20, 1), make_set(20, 2))
