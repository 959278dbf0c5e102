"""Which features share a tube: the order in which a projection to c-products loses least.

A projection keeps the diagonal blocks of a weight in the hat basis. Where hidden features may stand in any order, as
between the two layers of an MLP, the order decides which features form a tube, and with it how much is kept: of a tube
with the features r_0, r_1, ... it is Σ_k ‖Σ_p Φ[k,p] x_k[r_p]‖², where x_k[r] is what feature r has in slice k of the
weights. The best order is a hard problem. We climb from the one that is there, so that nothing is ever lost: the
positions of all tubes in turn are filled anew by a linear assignment, then each tube takes its best order.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[Any]

LARGEST_TUBE_TO_SORT = 4  # C! orders are tried
SWEEPS = 2  # the first wins nearly all there is
STEP = 0.02  # of the range of gains, by which bids rise at least
ROUNDING = 1e-6  # relative differences of energy that mean nothing
ROUNDS = 100  # of bids; the few tubes that are left then take the features that are left


def hat_features(matrix: Tensor, phi: Tensor) -> Tensor:
    """The F rows of a weight with each slice of their columns (tube fastest) apart: (F, d·C) -> (F, C, d)."""
    return torch.einsum("kq,fiq->fki", phi, matrix.unflatten(1, (-1, len(phi))))


def energy(features: Tensor, phi: Tensor, order: Tensor) -> float:
    """What a projection keeps of ‖W‖² if feature `order[s]` stands in place s."""
    return _hat_tubes(features, phi, order.view(-1, len(phi))).square().sum(dtype=torch.float64).item()


def assign(features: Tensor, phi: Tensor, blocks: Tensor) -> tuple[Tensor, float]:
    """An order of the features in which a projection keeps at least as much as in the one that is there; what it wins.

    `blocks` (F,) labels the places; a feature stays in a place of its own label, as within a head.

    >>> phi = torch.tensor([[1.0, 1.0], [1.0, -1.0]]) / 2**0.5
    >>> features = hat_features(torch.randn(16, 4, generator=torch.Generator().manual_seed(0)), phi)
    >>> order, gain = assign(features, phi, torch.zeros(16))
    >>> gain > 0.1 * energy(features, phi, torch.arange(16))
    True
    """
    tube = len(phi)
    members = torch.arange(len(blocks)).view(-1, tube)  # (F/C, C): which feature stands where
    places = blocks.view(-1, tube)
    kept = start = energy(features, phi, members)
    for _ in range(SWEEPS):
        _fill(features, phi, members, places)
        if tube <= LARGEST_TUBE_TO_SORT:
            members = _sort(features, phi, members, places)
        before, kept = kept, energy(features, phi, members)
        if kept <= before * (1 + 1e-4):
            break
    return (members.flatten(), kept - start) if kept > start else (torch.arange(len(blocks)), 0.0)


def _hat_tubes(features: Tensor, phi: Tensor, members: Tensor) -> Tensor:
    """The sums of which a projection keeps the squares: (F/C, C, d)."""
    hats = features.new_zeros(len(members), *features.shape[1:])
    for p in range(len(phi)):
        hats.addcmul_(phi[:, p, None], features[members[:, p]])
    return hats


def _fill(features: Tensor, phi: Tensor, members: Tensor, places: Tensor) -> None:
    """Give the features at each position of the tubes to the tubes anew, each label for itself, if that keeps more."""
    hats = _hat_tubes(features, phi, members)
    for position in range(1, len(phi)):  # a tube is known by its first feature
        own = phi[:, position, None] * features[members[:, position]]
        hats -= own
        gain = hats.flatten(1) @ own.flatten(1).mT  # (tube, feature)
        chosen = torch.from_numpy(solve_assignment(gain.numpy(), places[:, position].numpy()))
        if gain.gather(1, chosen[:, None]).sum() > gain.trace():
            members[:, position] = members[chosen, position]
            own = own[chosen]
        hats += own


def _sort(features: Tensor, phi: Tensor, members: Tensor, places: Tensor) -> Tensor:
    """Put the features of each tube into the order that keeps most, without leaving their labels.

    A tube read backwards often keeps as much. Every second tube takes the last of such orders, so that features which
    stood at the same position, and could not meet, can meet in the next sweep.
    """
    own = [features[column] for column in members.T]  # a (tube, slice, d) for each position
    products = torch.stack([torch.stack([(a * b).sum(-1) for b in own], -1) for a in own], -1)  # (tube, slice, C, C)
    best, kept = members, torch.einsum("kp,kq,tkpq->t", phi, phi, products)
    more = torch.tensor([1 + ROUNDING, 1 - ROUNDING]).repeat(len(kept))[: len(kept)]
    for order in itertools.permutations(range(len(phi))):
        mixing = phi[:, torch.tensor(order).argsort()]
        found = torch.einsum("kp,kq,tkpq->t", mixing, mixing, products)
        better = (places[:, order] == places).all(1) & (found > more * kept)
        best, kept = torch.where(better[:, None], members[:, order], best), torch.where(better, found, kept)
    return best


def solve_assignment(gain: Array, labels: Array) -> Array:
    """Which column each row gets, of its own label and each column once, for nearly the largest sum of gains.

    Bertsekas' auction: the rows without a column bid for the one that is worth most to them, its price taken off, and
    the highest bid gets it.

    >>> solve_assignment(np.array([[1.0, 9.0], [2.0, 3.0]]), np.zeros(2))
    array([1, 0])
    """
    size, step = len(gain), STEP * np.ptp(gain)
    gain = np.where(labels[:, None] == labels, gain, -np.inf)
    owner, chosen, prices = np.full(size, -1), np.full(size, -1), np.zeros(size, gain.dtype)
    for _ in range(ROUNDS):
        free = np.flatnonzero(chosen < 0)
        if not free.size:
            break
        worth, bidder = gain[free] - prices, np.arange(free.size)
        column = worth.argmax(1)
        first = worth[bidder, column]
        worth[bidder, column] = -np.inf
        second = worth.max(1)
        raised = np.where(np.isinf(second), 0.0, first - second) + step
        highest, rising = np.full(size, -1), raised.argsort(kind="stable")
        highest[column[rising]] = rising  # the last one stays
        sold = np.flatnonzero(highest >= 0)
        winner = highest[sold]
        outbid = owner[sold]
        chosen[outbid[outbid >= 0]] = -1
        owner[sold], chosen[free[winner]] = free[winner], sold
        prices[sold] += raised[winner]
    free, left = np.flatnonzero(chosen < 0), np.flatnonzero(owner < 0)
    chosen[free[labels[free].argsort(kind="stable")]] = left[labels[left].argsort(kind="stable")]
    return chosen
