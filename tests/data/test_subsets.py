from __future__ import annotations

import hashlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tcpvit.data.subsets import draw, fraction_sizes


@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=60),
    cut=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    seed=st.integers(0, 10),
    stratified=st.booleans(),
)
def test_draws_are_disjoint_sorted_and_of_the_sizes_asked_for(labels, cut, seed, stratified):
    total = len(labels)
    first = int(cut[0] * total)
    sizes = [first, int(cut[1] * (total - first))]
    labels = torch.tensor(labels)
    parts = draw(total, sizes, seed=seed, labels=labels if stratified else None)
    assert [len(part) for part in parts] == sizes
    together = torch.cat(parts).tolist()
    assert len(set(together)) == len(together)
    assert all(0 <= row < total for row in together)
    assert all(part.tolist() == sorted(part.tolist()) for part in parts)
    if stratified:
        share = torch.bincount(labels, minlength=5) * sizes[0] / total
        assert ((torch.bincount(labels[parts[0]], minlength=5) - share).abs() < 1).all()


def test_the_same_seed_is_the_same_subset_everywhere():
    """The paper's subset of 50,000 by seed 0, as any machine draws it."""
    labels = torch.arange(50_000) % 10
    rows = draw(50_000, [10_000], seed=0, labels=labels)[0]
    digest = hashlib.sha256(rows.numpy().astype("<i8").tobytes()).hexdigest()
    assert digest == "186bb76a4a886dd80c9d1b9947054f03566c3bc0e5301185fa816c5058a5cf98"


@pytest.mark.parametrize("sizes", [[7], [3, 4], [-1]])
def test_too_many_are_refused(sizes):
    with pytest.raises(ValueError, match="different images out of 6"):
        draw(6, sizes, seed=0)


@pytest.mark.parametrize(
    ("total", "fraction", "sizes"), [(7349, 0.2, (5879, 1470)), (10, 0.2, (8, 2)), (2, 0.9, (1, 1))]
)
def test_fractions(total, fraction, sizes):
    assert fraction_sizes(total, fraction) == sizes


@pytest.mark.parametrize(("total", "fraction"), [(10, 0.0), (10, 1.0), (1, 0.5)])
def test_fractions_that_leave_nothing(total, fraction):
    with pytest.raises(ValueError, match="fraction between 0 and 1"):
        fraction_sizes(total, fraction)
