"""Tensors that are made once and kept: matrices, permutations and factors that depend on nothing but their key."""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from operator import index
from types import SimpleNamespace
from typing import Any, TypeVar

import torch

T = TypeVar("T")
MOST = 256  # results that one function keeps; the oldest goes first


def undisturbed(build: Callable[..., T], *args: Any) -> T:
    """`build(*args)`, free of the modes the caller is in (inference, torch.func, fake tensors, a default device).

    A tensor made in such a mode bears its mark, and would carry it into every later use. The modes belong to the
    caller's thread, so the tensor is made in another.

    >>> with torch.inference_mode():
    ...     torch.ones(2).is_inference(), undisturbed(torch.ones, 2).is_inference()
    (True, False)
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(build, *args).result()


def kept(build: Callable[..., T]) -> Callable[..., T]:
    """Decorator: call `build` once for each tuple of arguments, undisturbed, and keep the result.

    >>> ones = kept(torch.ones)
    >>> ones(3) is ones(3)
    True
    """
    results: dict[tuple[Any, ...], T] = {}
    shelf = SimpleNamespace()

    def make(*key: Any) -> T:
        if key not in results:
            if len(results) >= MOST:
                results.pop(next(iter(results)), None)
            results[key] = undisturbed(build, *key)
        return results[key]

    @torch.compiler.assume_constant_result  # torch.compile runs this while it traces, and finds the result on the shelf
    def put_on_shelf(*key: Any) -> str:
        name = str(key).replace(".", " ")
        setattr(shelf, name, make(*key))
        return name

    @functools.wraps(build)
    def get(*key: Any) -> T:
        if not torch.compiler.is_compiling():
            return make(*key)
        # index: where torch.compile sees sizes as symbols, it compiles anew for each tube length
        return getattr(shelf, put_on_shelf(*[index(part) if isinstance(part, int) else part for part in key]))

    return get
