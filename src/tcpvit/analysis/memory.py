"""Memory of a training step with AdamW: weights, gradients, moments, and what backward needs of forward."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tcpvit.analysis.dry_run import ImageSize, dry_run, example_images


@dataclass(frozen=True)
class Memory:
    """Bytes, each kind by itself."""

    weights: int
    gradients: int
    moments: int  # AdamW keeps two for each parameter it trains
    activations: int

    @property
    def total(self) -> int:
        """Everything together."""
        return self.weights + self.gradients + self.moments + self.activations


def count_memory(
    model: nn.Module,
    inputs: Tensor | tuple[Tensor, ...] | dict[str, Tensor] | None = None,
    *,
    image_size: ImageSize | None = None,
    batch: int = 1,
) -> Memory:
    """Memory of a training step on a batch. Nothing is computed, only shapes are followed.

    Activations are the tensors that autograd saves for backward, with the attention kernel that would run; a
    storage that several tensors share counts once; weights and inputs are not among them. Buffers count as weights.

    >>> memory = count_memory(nn.Sequential(nn.Linear(4, 3), nn.Tanh()), torch.zeros(5, 4))
    >>> memory.weights, memory.moments, memory.activations       # 15 numbers, 30, and the output of Tanh: 5·3
    (60, 120, 60)
    """
    if inputs is None:
        inputs = example_images(model, image_size, batch)
    trained = sum(_bytes(p) for p in model.parameters() if p.requires_grad)
    return Memory(
        weights=sum(_bytes(t) for t in [*model.parameters(), *model.buffers()]),
        gradients=trained,
        moments=2 * trained,
        activations=_saved_bytes(model, inputs),
    )


def _saved_bytes(model: nn.Module, inputs: Tensor | tuple[Tensor, ...] | dict[str, Tensor]) -> int:
    saved: list[Tensor] = []  # kept alive, so that no two storages have the same address

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with _training(model), torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        _, before = dry_run(model, inputs)
    known = {tensor.untyped_storage()._cdata for tensor in before}
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in saved}
    return sum(size for address, size in storages.items() if address not in known)


@contextmanager
def _training(model: nn.Module) -> Iterator[None]:
    """Training mode, and every module back in its own mode afterwards."""
    modes = {module: module.training for module in model.modules()}
    model.train()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
