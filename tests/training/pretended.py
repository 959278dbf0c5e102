"""A device without float64, as Apple's GPUs are, pretended on the CPU.

Autograd knows no device that this build of torch has not, except "meta": that name is taken. What is "there" holds its
numbers on the CPU, says that it is on "meta", and raises, as MPS does, where a float64 tensor would be made there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("meta")


class There(torch.Tensor):
    """A tensor on the pretended device."""

    here: torch.Tensor  # its numbers

    @staticmethod
    def __new__(cls, here: torch.Tensor) -> There:
        if here.dtype == torch.float64:
            raise TypeError("the pretended device has no float64")
        layout = {"strides": here.stride(), "storage_offset": here.storage_offset(), "dtype": here.dtype}
        return cls._make_wrapper_subclass(cls, here.shape, **layout, device=DEVICE)

    def __init__(self, here: torch.Tensor):
        self.here = here

    def __repr__(self) -> str:
        return f"There({self.here})"

    def tolist(self) -> Any:
        return self.here.tolist()

    @classmethod
    def __torch_dispatch__(cls, op, types, args=(), kwargs=None):
        return run(op, args, kwargs or {})


class Pretending(TorchDispatchMode):
    """Sends what makes tensors on the device there too."""

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        return run(op, args, kwargs or {})


class Taking(TorchFunctionMode):
    """Lets `torch.tensor`, which asks no dispatcher, make its tensor on the CPU and take it there."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is torch.tensor and kwargs.get("device") == DEVICE:
            return torch.tensor(*args, **{**kwargs, "device": "cpu"}).to(DEVICE)
        return function(*args, **kwargs)


def run(op: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The operator on the CPU; its results are on the device that it names, or on that of what it takes."""
    leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    given = {id(leaf.here): leaf for leaf in leaves if isinstance(leaf, There)}
    assert all(isinstance(leaf, There) or leaf.device != DEVICE for leaf in leaves), op
    device = kwargs.get("device")
    to_there = bool(given) if device is None else device.type == DEVICE.type
    if device is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    args, kwargs = tree_map(lambda x: x.here if isinstance(x, There) else x, (args, kwargs))
    found = op(*args, **kwargs)

    def take_there(x: Any) -> Any:
        if not (to_there and isinstance(x, torch.Tensor)):
            return x
        return given[id(x)] if id(x) in given else There(x)  # what was changed in place stays the tensor that it was

    return tree_map(take_there, found)


@contextmanager
def pretended() -> Iterator[torch.device]:
    """The device, while the block lasts."""
    with Pretending(), Taking():
        yield DEVICE
