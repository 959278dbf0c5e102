"""What every function of the algebra asks of its input, said in one sentence each."""

from __future__ import annotations

import torch
from torch import Tensor

LinAlgError = torch.linalg.LinAlgError


def check_tensor(A: Tensor, name: str = "A", *, tube_ndim: int = 1, square: bool = False) -> None:
    """A floating-point tensor (..., m, n, C), with m = n if `square`."""
    if not isinstance(A, Tensor):
        raise ValueError(f"{name} should be a torch tensor, got {type(A).__name__}; use torch.as_tensor")
    if tube_ndim < 1:
        raise ValueError(f"tube_ndim counts the tube modes and is at least 1, got {tube_ndim}")
    if not (A.is_floating_point() or A.is_complex()):
        raise ValueError(f"{name} should hold floating-point numbers, got {A.dtype}; convert it with {name}.float()")
    if A.ndim < 2 + tube_ndim:
        modes = ", ".join(["m", "n", *_tube_names(tube_ndim)])
        raise ValueError(f"{name} should have shape (..., {modes}), got {tuple(A.shape)}")
    if square and A.shape[-2 - tube_ndim] != A.shape[-1 - tube_ndim]:
        m, n = matrix_shape(A, tube_ndim)
        raise ValueError(f"{name} should have square slices, got {m}×{n} slices in shape {tuple(A.shape)}")


def check_same_tube(A: Tensor, B: Tensor, name: str = "B", *, tube_ndim: int = 1) -> None:
    """Both tensors have the same tube shape, dtype and device."""
    if A.shape[-tube_ndim:] != B.shape[-tube_ndim:]:
        raise ValueError(
            f"the tubes differ: A has shape {tuple(A.shape)}, {name} {tuple(B.shape)}; their last {tube_ndim} "
            f"dimension(s) should be equal"
        )
    if A.dtype != B.dtype:
        raise ValueError(f"the dtypes differ: A is {A.dtype}, {name} is {B.dtype}; convert one of them")
    if A.device != B.device:
        raise ValueError(f"the devices differ: A is on {A.device}, {name} on {B.device}; move one of them")


def check_batches(A: Tensor, B: Tensor, name: str = "B", *, tube_ndim: int = 1) -> None:
    """The batch dimensions of both tensors broadcast."""
    batch_a, batch_b = A.shape[: A.ndim - tube_ndim - 2], B.shape[: B.ndim - tube_ndim - 2]
    if batch_a == batch_b:
        return
    try:
        torch.broadcast_shapes(batch_a, batch_b)
    except RuntimeError:
        raise ValueError(
            f"the batch dimensions {tuple(batch_a)} of A and {tuple(batch_b)} of {name} do not broadcast: "
            f"A has shape {tuple(A.shape)}, {name} {tuple(B.shape)}"
        ) from None


def check_finite(A: Tensor, name: str = "A") -> None:
    """No NaN and no infinity: LAPACK would hang or return nonsense."""
    if has_values(A) and not torch.isfinite(A).all():
        raise ValueError(
            f"{name} of shape {tuple(A.shape)} holds NaN or infinity; a factorisation needs finite numbers"
        )


def has_values(A: Tensor) -> bool:
    """False where numbers cannot be looked at: on a meta device, in a trace, in `torch.func`, with fake tensors.

    >>> has_values(torch.ones(2)), has_values(torch.ones(2, device="meta"))
    (True, False)
    """
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or A.is_meta or hasattr(A, "fake_mode"):
        return False
    return torch._C._functorch.peek_interpreter_stack() is None


def check_precision(A: Tensor, name: str = "A") -> None:
    """float32, float64 or their complex kin: factorisations do not exist in half precision."""
    if A.dtype in (torch.float16, torch.bfloat16):
        raise ValueError(f"{name} is {A.dtype}, in which only products are computed; convert it with {name}.float()")


def matrix_shape(A: Tensor, tube_ndim: int = 1) -> tuple[int, int]:
    """(m, n) of the slices of (..., m, n, C…).

    >>> matrix_shape(torch.zeros(7, 4, 5, 3))
    (4, 5)
    """
    return A.shape[-2 - tube_ndim], A.shape[-1 - tube_ndim]


def _tube_names(tube_ndim: int) -> list[str]:
    return ["C"] if tube_ndim == 1 else [f"C{i + 1}" for i in range(tube_ndim)]
