"""How an iteration ended: what the iterative solvers and the recovery give back beside their answer."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Report:
    """How an iteration ended.

    Attributes:
        converged: whether every tensor of the batch met the tolerance.
        iterations: how many there were.
        residuals: (iterations + 1, ...), the relative residual of each tensor of the batch from the start on.
    """

    converged: bool | Tensor  # tensors in torch.compile and vmap
    iterations: int | Tensor
    residuals: Tensor = field(repr=False)

    def __str__(self) -> str:
        verdict = "converged" if self.converged else "not converged"
        plural = "" if self.iterations == 1 else "s"
        worst = self.residuals[-1].max()
        return f"{verdict} after {self.iterations} iteration{plural}, relative residual {worst:.1e}"


@dataclass(frozen=True, kw_only=True)
class Solution(Report):
    """A tensor and how the iteration that found it ended.

    >>> import torch
    >>> print(Solution(x=torch.zeros(2, 2, 3), converged=True, iterations=1, residuals=torch.tensor([1.0, 1e-7])))
    converged after 1 iteration, relative residual 1.0e-07
    """

    x: Tensor = field(repr=False)


def warn_unless_converged(report: Report, name: str, tol: float, advice: str, stacklevel: int) -> None:
    """One sentence to the user who might not look."""
    if report.converged is False:
        worst = report.residuals[-1].max()
        warnings.warn(
            f"{name} stopped after {report.iterations} iterations with a relative residual of {worst:.1e}, above the "
            f"tolerance {tol:.0e}; {advice}",
            RuntimeWarning,
            stacklevel=stacklevel + 1,
        )


def check_limits(tol: float, max_iterations: int) -> None:
    """A positive tolerance and at least one iteration."""
    if not tol > 0:
        raise ValueError(f"tol is positive, got {tol}")
    if max_iterations < 1:
        raise ValueError(f"max_iterations is at least 1, got {max_iterations}")
