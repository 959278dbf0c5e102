"""Caches of what depends on nothing but a key: constant tensors, and plans for tensors of a shape, dtype and device."""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from operator import index
from types import SimpleNamespace
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

T = TypeVar("T")
MAX_RESULTS = 256  # of one function; the oldest goes first
PLAIN = {Tensor, torch.nn.Parameter}  # whose sizes are numbers; those of fake tensors may be symbols


def outside_torch_modes(build: Callable[..., T], *args: Any) -> T:
    """`build(*args)`, free of the modes the caller is in (inference, torch.func, fake tensors, a default device).

    A tensor made in such a mode bears its mark, and would carry it into every later use. The modes belong to the
    caller's thread, so the tensor is made in another.

    >>> with torch.inference_mode():
    ...     torch.ones(2).is_inference(), outside_torch_modes(torch.ones, 2).is_inference()
    (True, False)
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(build, *args).result()


def in_fake_mode(result: T) -> T:
    """The tensors of a result as fake ones where the caller is in a FakeTensorMode, which takes no others."""
    if torch.compiler.is_compiling():
        return result
    mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
    return result if mode is None else tree_map_only(torch.Tensor, mode.from_tensor, result)


def constant_in_graphs(function: Callable[..., T]) -> Callable[..., T]:
    """Decorator: what torch.compile calls while it traces, and whose result it takes as a constant.

    As `torch.compiler.assume_constant_result`, without importing all of torch._dynamo, which takes as long as torch.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def cached_tensors(build: Callable[..., T]) -> Callable[..., T]:
    """Decorator: call `build` once for each tuple of arguments, outside of torch's modes, and cache the result.

    >>> ones = cached_tensors(torch.ones)
    >>> ones(3) is ones(3)
    True
    """
    results: dict[tuple[Any, ...], T] = {}
    constants = SimpleNamespace()  # where torch.compile finds the results as attributes

    def make(*key: Any) -> T:
        return results[key] if key in results else _keep(results, key, outside_torch_modes(build, *key))

    @constant_in_graphs
    def store_constant(*key: Any) -> str:
        name = str(key).replace(".", " ")
        setattr(constants, name, make(*key))
        return name

    @functools.wraps(build)
    def get(*key: Any) -> T:
        if not torch.compiler.is_compiling():
            return in_fake_mode(make(*key))
        # index: where torch.compile sees sizes as symbols, it compiles anew for each tube length
        return getattr(constants, store_constant(*[index(part) if isinstance(part, int) else part for part in key]))

    return get


def planned(build: Callable[..., T]) -> Callable[..., T]:
    """Decorator: call `build(transform, *tensors, tube_ndim=)`, which looks at no number, once for each kind of input.

    The kind is the name of the transform and the shape, dtype and device of each tensor. For transforms that are no
    names, tensors that are not plain and code that is traced, `build` is called every time.

    >>> shapes = planned(lambda transform, A, tube_ndim: [A.shape])
    >>> shapes("dct", torch.ones(2), tube_ndim=1) is shapes("dct", torch.zeros(2), tube_ndim=1)
    True
    """
    plans: dict[tuple[Any, ...], T] = {}

    @functools.wraps(build)
    def get(transform: Any, *tensors: Tensor, tube_ndim: int) -> T:
        if torch.compiler.is_compiling() or not (type(transform) is str and PLAIN.issuperset(map(type, tensors))):
            return build(transform, *tensors, tube_ndim=tube_ndim)
        if torch.jit.is_tracing():  # where sizes are tensors
            return build(transform, *tensors, tube_ndim=tube_ndim)
        key = (transform, tube_ndim, *[part for A in tensors for part in (A.shape, A.dtype, A.device)])
        plan = plans.get(key)
        return _keep(plans, key, build(transform, *tensors, tube_ndim=tube_ndim)) if plan is None else plan

    return get


def _keep(results: dict[tuple[Any, ...], T], key: tuple[Any, ...], result: T) -> T:
    if len(results) >= MAX_RESULTS:
        results.pop(next(iter(results)), None)
    results[key] = result
    return result
