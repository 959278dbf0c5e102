"""The processes of a run: one, or those that torchrun started together (torch.distributed, gloo and NCCL).

Each process computes its share of every batch. Process 0 alone reads and writes the run folder and shows progress; what
all must decide alike is exchanged first. With a single process nothing here does anything.
"""

from __future__ import annotations

import atexit
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from tcpvit.training.checkpoint import Content

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """The rank of this process among all processes of the run."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0  # on this machine
    launched: bool = False  # by torchrun, which starts the same command again when a process is lost

    @property
    def is_main(self) -> bool:
        """Whether this is process 0, which reads, writes and shows progress."""
        return self.rank == 0

    def assign(self, device: torch.device) -> torch.device:
        """The device of this process: several processes on a machine have a GPU each."""
        if self.size == 1 or device.type == "cpu":
            return device
        if str(device) != "cuda":
            raise ValueError(f"torchrun gives each process its own GPU; take device=cuda or device=cpu, got {device}")
        if self.local_rank >= torch.cuda.device_count():
            raise ValueError(
                f"process {self.local_rank} of this machine finds {torch.cuda.device_count()} GPUs; start one process "
                f"for each GPU with --nproc-per-node=gpu, or take device=cpu"
            )
        torch.cuda.set_device(self.local_rank)
        return torch.device("cuda", self.local_rank)

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def max(self, number: int) -> int:
        """The largest number of all processes."""
        if self.size == 1:
            return number
        box = torch.tensor(number)  # on the CPU: no wait for a GPU
        dist.all_reduce(box, dist.ReduceOp.MAX)
        return int(box)

    def barrier(self) -> None:
        """Wait until all processes are here."""
        self.max(0)

    def broadcast_object(self, make: Callable[[], T]) -> T:
        """What `make` returns in process 0, for all; the others do not call it."""
        if self.size == 1:
            return make()
        box: list[T | None] = [make() if self.is_main else None]
        dist.broadcast_object_list(box, device=torch.device("cpu"))
        return box[0]  # type: ignore[return-value]

    @torch.no_grad()
    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Give the values of process 0 to all, in place."""
        if self.size > 1:
            for tensor in tensors:
                dist.broadcast(tensor, src=0)

    def broadcast_checkpoint(self, content: Content | None) -> Content | None:
        """The checkpoint that process 0 read, for all."""
        tensors, state = content or ({}, {})
        kinds = self.broadcast_object(lambda: [(name, t.shape, t.dtype) for name, t in tensors.items()])
        if not kinds:
            return None
        if not self.is_main:
            tensors = {name: torch.empty(shape, dtype=dtype) for name, shape, dtype in kinds}
        self.broadcast(tensors.values())
        return tensors, self.broadcast_object(lambda: state)

    @contextmanager
    def local_main_first(self) -> Iterator[None]:
        """The first process of each machine runs the block before the others, to download and unpack for them."""
        if self.local_rank:
            self.barrier()
        yield
        if not self.local_rank:
            self.barrier()


@contextmanager
def process_group() -> Iterator[World]:
    """The processes that torchrun started together, or this one alone."""
    if not (dist.is_available() and dist.is_torchelastic_launched()):
        yield World()
        return
    rank, size, local_rank = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    world = World(rank, size, local_rank, launched=True)
    if size > 1 and not dist.is_initialized():  # once, for all runs of this process
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            dist.init_process_group(backend, store=_store(rank, size), rank=rank, world_size=size)
        else:
            dist.init_process_group(backend)
        atexit.register(_destroy)
    try:
        yield world
    except Exception:
        atexit.unregister(_destroy)  # the others may be waiting for a sum that will never come
        raise
    world.barrier()


def _store(rank: int, size: int) -> dist.Store:
    """Torchrun's store, under a prefix that no earlier attempt has used.

    Torchrun keeps one store for all restarts, with the addresses of processes that are gone (pytorch issue 135712), and
    its number of restarts differs between machines. So each process asks with a random name of its own, and process 0
    answers with the prefix: no old answer has that name.
    """
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    mine = uuid.uuid4().hex
    if rank:
        store.set(f"tcpvit/{rank}", mine)
        prefix = store.get(mine).decode()
        store.set(f"{prefix}/{rank}", "here")
        return dist.PrefixStore(prefix, store)
    missing = set(range(1, size))
    while missing:
        for other in missing:
            store.set(store.get(f"tcpvit/{other}").decode(), mine)
        time.sleep(0.01)
        missing = {other for other in missing if not store.check([f"{mine}/{other}"])}
    return dist.PrefixStore(mine, store)


def _destroy() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def is_main() -> bool:
    """Whether this process prints; True without torchrun."""
    return not dist.is_available() or not dist.is_torchelastic_launched() or os.environ["RANK"] == "0"
