"""One budget for all layers: each gets the form, slices and rank, that lowers the model's error most for its price."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from tcpvit.tensorize.fit import Problem, dense_of

Structure = Literal["best", "slices", "low_rank", "both"]  # "both": slices, with low rank beside them
TUBES = (2, 3, 4, 6, 8)
HALVINGS = 60


@dataclass(frozen=True)
class Form:
    """What may become of a layer: a tube (1: no slices) and a rank (0: none), its price and its error."""

    tube: int
    rank: int
    price: float  # parameters, or seconds
    error: float  # E‖y − ŷ‖², in the metric of the problem

    @property
    def is_dense(self) -> bool:
        """Whether the layer stays as it is."""
        return self.tube == 1 and self.rank == 0


def forms_of(problem: Problem, transforms: Mapping[int, Tensor], structure: Structure = "best") -> list[Form]:
    """The forms that a layer may take, with their parameters; `transforms` has the tubes that fit its widths.

    Errors of slices are those of the first round, without the steps that a metric takes: upper bounds of the fit's.
    """
    d_in, d_out = problem.best.shape
    dense, step = d_in * d_out, rank_step(d_in, d_out)

    def ranked(tube: int, price: int, target: Tensor) -> list[Form]:
        wins = problem.spectrum(target)
        left = torch.cat([wins.flip(0).cumsum(0).flip(0), wins.new_zeros(1)]).tolist()  # after each rank
        prices = {rank: price + rank * (d_in + d_out) for rank in range(step, len(left), step)}
        return [Form(tube, rank, p, problem.rest + left[rank]) for rank, p in prices.items() if p < dense]

    found = [Form(1, 0, dense, problem.rest)]
    if structure in ("best", "low_rank"):
        found += ranked(1, 0, problem.best)
    for tube, phi in transforms.items() if structure != "low_rank" else ():
        slices = problem.slices(tube, phi, problem.a @ problem.best, coupled=False)
        target, price = problem.best - dense_of(slices, phi), slices.numel()
        found.append(Form(tube, 0, price, problem.rest + problem.cost(target)))
        if structure != "slices":
            found += ranked(tube, price, target)
    return found


def can_be_smaller(d_in: int, d_out: int, tubes: Collection[int], structure: Structure = "best") -> bool:
    """Whether `forms_of` finds any form but the dense one.

    >>> can_be_smaller(25, 16, tubes=[], structure="slices"), can_be_smaller(25, 16, tubes=[])
    (False, True)
    """
    step = rank_step(d_in, d_out)
    has_rank = step <= min(d_in, d_out) and step * (d_in + d_out) < d_in * d_out
    return (structure in ("best", "low_rank") and has_rank) or (structure != "low_rank" and bool(tubes))


def rank_step(d_in: int, d_out: int) -> int:
    """Ranks are multiples of this: of wide layers as processors like it, of narrow ones as the budget does."""
    return 8 if min(d_in, d_out) >= 128 else 1


def deal(layers: Sequence[Sequence[Form]], budget: float) -> list[Form]:
    """One form for each layer: the least Σ error at a total price within the budget.

    A price λ for each unit of the budget makes the layers independent; the smallest λ that fits is found by halving,
    and what is left over is spent where it wins most.

    >>> cheap_or_good = [Form(1, 1, 10, 5.0), Form(1, 2, 20, 1.0)]
    >>> [form.price for form in deal([cheap_or_good, [Form(1, 1, 10, 9.0), Form(1, 2, 20, 1.0)]], budget=30)]
    [10, 20]
    """
    least = sum(min(form.price for form in forms) for forms in layers)
    if least > budget:
        raise ValueError(f"the smallest forms of the layers take {least:.4g} of a budget of {budget:.4g}; raise keep=")

    def chosen(price: float) -> list[Form]:
        return [min(forms, key=lambda form: (form.error + price * form.price, form.price)) for forms in layers]

    low, high = 0.0, 1.0
    while sum(form.price for form in chosen(high)) > budget:
        high *= 4
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if sum(form.price for form in chosen(middle)) <= budget else (middle, high)
    return spend_rest(chosen(high), layers, budget)


def spend_rest(forms: list[Form], layers: Sequence[Sequence[Form]], budget: float) -> list[Form]:
    """Larger forms as long as the budget allows one."""
    left = budget - sum(form.price for form in forms)
    while True:
        better = [
            ((form.error - other.error) / (other.price - form.price), i, other)
            for i, (form, others) in enumerate(zip(forms, layers, strict=True))
            for other in others
            if form.price < other.price <= form.price + left and other.error < form.error
        ]
        if not better:
            return forms
        _, i, other = max(better, key=lambda entry: entry[0])
        left -= other.price - forms[i].price
        forms[i] = other
