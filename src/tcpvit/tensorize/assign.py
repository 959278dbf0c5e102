"""Which features share a tube: the order in which a projection to c-products loses least.

A projection keeps the diagonal blocks of a weight in the hat basis. Where hidden features may stand in any order, as
between the two layers of an MLP, the order decides which features form a tube, and with it how much is kept: of a tube
with the features r_0, r_1, ... it is Σ_k Σ_pq Φ[k,p] Φ[k,q] G_k[r_p, r_q], where G_k are the Gram matrices of the
features in slice k. The best order is a hard problem. We climb from the one that is there, so that nothing is ever
lost: the positions of all tubes in turn are filled anew by a linear assignment, then each tube takes its best order.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

LARGEST_TUBE_TO_SORT = 4  # C! orders are tried
SWEEPS = 2  # the first wins nearly all there is


def gram(matrix: Tensor, phi: Tensor) -> Tensor:
    """The Gram matrices (C, F, F) of the F rows of a weight, each slice of its columns (tube fastest) apart."""
    tube = phi.shape[0]
    slices = torch.einsum("kq,fiq->kfi", phi, matrix.reshape(matrix.shape[0], -1, tube))
    return slices @ slices.mT


def energy(grams: Tensor, phi: Tensor, order: Tensor) -> float:
    """What a projection keeps of ‖W‖² if feature `order[s]` stands in place s."""
    return _tube_energies(grams, phi, order.view(-1, phi.shape[0])).sum().item()


def assign(grams: Tensor, phi: Tensor, blocks: Tensor) -> Tensor:
    """An order of the features in which a projection keeps at least as much as in the one that is there.

    `blocks` (F,) labels the places; a feature stays in a place of its own label, as within a head.

    >>> phi = torch.tensor([[1.0, 1.0], [1.0, -1.0]]) / 2**0.5
    >>> grams = gram(torch.randn(16, 4, generator=torch.Generator().manual_seed(0)), phi)
    >>> order = assign(grams, phi, torch.zeros(16))
    >>> energy(grams, phi, order) > 1.1 * energy(grams, phi, torch.arange(16))
    True
    """
    tube = phi.shape[0]
    members = torch.arange(len(blocks)).view(-1, tube)  # (F/C, C): which feature stands where
    places = blocks.view(-1, tube)
    kept = energy(grams, phi, members)
    for _ in range(SWEEPS):
        for position in range(tube):
            _fill(grams, phi, members, places, position)
        if tube <= LARGEST_TUBE_TO_SORT:
            members = _sort(grams, phi, members, places)
        before, kept = kept, energy(grams, phi, members)
        if kept <= before * (1 + 1e-4):
            break
    return members.flatten()


def _fill(grams: Tensor, phi: Tensor, members: Tensor, places: Tensor, position: int) -> None:
    """Give the features at one position of the tubes to the tubes anew, each label for itself, in the best way."""
    from scipy.optimize import linear_sum_assignment

    others = [p for p in range(phi.shape[0]) if p != position]
    for label in places[:, position].unique():
        tubes = (places[:, position] == label).nonzero()[:, 0]
        features = members[tubes, position]
        gain = torch.zeros(len(tubes), len(features))  # (tube, feature)
        for k in range(phi.shape[0]):
            company = torch.stack([phi[k, p] * grams[k][members[tubes, p]] for p in others]).sum(0)  # (tube, F)
            gain += phi[k, position] * company[:, features]
        _, chosen = linear_sum_assignment(gain.numpy(), maximize=True)
        members[tubes, position] = features[torch.from_numpy(chosen)]


def _sort(grams: Tensor, phi: Tensor, members: Tensor, places: Tensor) -> Tensor:
    """Put the features of each tube into the order that keeps most, without leaving their labels."""
    best, kept = members, _tube_energies(grams, phi, members)
    for order in itertools.permutations(range(phi.shape[0])):
        tried = members[:, order]
        allowed = (places[:, order] == places).all(1)
        found = _tube_energies(grams, phi, tried)
        better = allowed & (found > kept)
        best, kept = torch.where(better[:, None], tried, best), torch.where(better, found, kept)
    return best


def _tube_energies(grams: Tensor, phi: Tensor, members: Tensor) -> Tensor:
    """What each tube keeps: (F/C,)."""
    within = grams[:, members[:, :, None], members[:, None, :]].double()  # (slice, tube, C, C)
    return torch.einsum("kp,kq,ktpq->t", phi.double(), phi.double(), within)
