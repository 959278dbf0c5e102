"""How arguments arrive: NumPy arrays become tensors, and autocast ends where precision matters."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")


def takes_arrays(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator: arguments that are NumPy arrays become tensors of the same memory.

    >>> takes_arrays(torch.trace)(np.eye(3))
    tensor(3., dtype=torch.float64)
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return _call_with(as_tensor, function, args, kwargs)

    return call


def in_full_precision(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator: takes arrays, and computes in float32 at least where autocast would round to half precision.

    As in torch's own linear algebra under autocast, half-precision tensors become float32 there.

    >>> with torch.autocast("cpu", torch.bfloat16):
    ...     in_full_precision(torch.mm)(torch.ones(2, 2), torch.ones(2, 2)).dtype
    torch.float32
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        kind = next((A.device.type for A in (*args, *kwargs.values()) if isinstance(A, Tensor)), "cpu")
        if not (torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)):
            return _call_with(as_tensor, function, args, kwargs)
        with torch.autocast(kind, enabled=False):
            return _call_with(_widened, function, args, kwargs)

    return call


def differentiable(function: type[torch.autograd.Function]) -> type[torch.autograd.Function]:
    """`function` with its `tangent` as `jvp`, but for torch.compile, which refuses functions that have one."""
    return function if torch.compiler.is_compiling() else _with_jvp(function)


@functools.cache
def _with_jvp(function: type[torch.autograd.Function]) -> type[torch.autograd.Function]:
    return type(function.__name__, (function,), {"jvp": staticmethod(function.tangent)})  # type: ignore[attr-defined]


@contextmanager
def lazy_conjugates() -> Iterator[None]:
    """Inside an operator of our own: torch.compile calls it in a mode in which `X.mH` forgets to conjugate."""
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in (torch._C.DispatchKey.Conjugate, torch._C.DispatchKey.Negative):
        excluded = excluded.remove(key)
    with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded):
        yield


def as_tensor(value: Any) -> Any:
    """A NumPy array as a tensor, anything else as it is."""
    if not isinstance(value, np.ndarray):
        return value
    shareable = value.flags.writeable and all(stride >= 0 for stride in value.strides)
    return torch.from_numpy(value if shareable else value.copy())


def _call_with(convert: Callable[[Any], Any], function: Callable[..., R], args: Any, kwargs: Any) -> R:
    return function(*map(convert, args), **{name: convert(value) for name, value in kwargs.items()})


def _widened(value: Any) -> Any:
    value = as_tensor(value)
    half = isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16)
    return value.float() if half else value
