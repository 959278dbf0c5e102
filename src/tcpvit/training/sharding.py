"""One model on many processes: a copy on each (DDP), or its parameters, gradients and moments in shards (FSDP2).

Checkpoints and saved models hold full tensors, so they depend neither on the strategy nor on the number of
processes that wrote them: see docs/scaling.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from tcpvit.training.distributed import World


def sync_batch_norm(model: nn.Module, world: World, device: torch.device) -> nn.Module:
    """Let BatchNorm see the full batch, where torch can: on GPUs. On CPUs each process normalises its own share."""
    if world.size > 1 and device.type == "cuda":
        return nn.SyncBatchNorm.convert_sync_batchnorm(model)
    return model


def parallelise(model: nn.Module, strategy: str, world: World, device: torch.device) -> nn.Module:
    """The model to call in training: its backward exchanges gradients. FSDP shards `model` itself, in place."""
    if world.size == 1:
        return model
    if strategy == "fsdp":
        world.broadcast([*model.parameters(), *model.buffers()])
        return shard(model, world, device)
    ids = [device.index] if device.type == "cuda" else None
    return nn.parallel.DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True)


def shard(model: nn.Module, world: World, device: torch.device) -> nn.Module:
    """Shard the parameters of each block, and the others together; a block is complete only while it computes."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard

    options: dict[str, Any] = {
        "mesh": init_device_mesh(device.type, (world.size,)),
        "reshard_after_forward": True,
        "shard_placement_fn": lambda parameter: Shard(shard_dim(parameter.shape, world.size)),
    }
    for name, module in list(model.named_modules()):
        if name.rpartition(".")[0].split(".")[-1] == "blocks":
            fully_shard(module, **options)
    fully_shard(model, **options)
    return model


def shard_dim(shape: Iterable[int], size: int) -> int:
    """Along which dimension a tensor is cut: the longest that `size` divides, else the first.

    A slice-wise weight is (C, d, d'): cut along C, as is usual, most processes would hold nothing of it.

    >>> shard_dim((3, 64, 192), 8), shard_dim((10,), 4)
    (2, 0)
    """
    lengths = {dim: length for dim, length in enumerate(shape) if length % size == 0}
    return max(lengths, key=lengths.__getitem__, default=0)


def gradient_sync(model: nn.Module, enabled: bool) -> AbstractContextManager[Any]:
    """Whether a backward pass inside exchanges gradients, or only accumulates them until one that does."""
    if isinstance(model, nn.parallel.DistributedDataParallel) and not enabled:
        return model.no_sync()
    set_sync: Any = getattr(model, "set_requires_gradient_sync", None)  # of FSDP
    if set_sync is not None:
        set_sync(enabled)
    return nullcontext()


def forward_any(model: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    """`model(images)`, also for an empty batch: blank images take its place, so that this process takes part.

    There are two, since a BatchNorm that follows a mean over the image cannot learn from one.
    """
    if len(images):
        return model(images)
    return model(images.new_zeros(2, *images.shape[1:]))[:0]


def is_sharded(model: nn.Module) -> bool:
    """Whether FSDP holds its parameters."""
    return any(hasattr(p, "full_tensor") for p in model.parameters())


def full_tensor(tensor: Tensor) -> Tensor:
    """The tensor without shards; all processes must ask for it together."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def gather_full(tensors: Mapping[str, Tensor], world: World) -> dict[str, Tensor]:
    """The full tensors on the CPU of process 0, one after the other; nothing elsewhere."""
    found = {}
    for name, tensor in tensors.items():
        full = full_tensor(tensor.detach())
        if world.is_main:
            found[name] = full.cpu()
    return found


def shard_like(tensors: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Full tensors, sharded as the parameters of `model` are; names are `<parameter>` or `<parameter>.<moment>`."""
    sharded: dict[str, Any] = {name: p for name, p in model.named_parameters() if hasattr(p, "full_tensor")}
    if not sharded:
        return dict(tensors)
    from torch.distributed.tensor import distribute_tensor

    def lay_out(name: str, tensor: Tensor) -> Tensor:
        like = sharded.get(name, sharded.get(name.rpartition(".")[0]))
        if like is None or like.shape != tensor.shape:
            return tensor
        return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements)

    return {name: lay_out(name, tensor) for name, tensor in tensors.items()}
