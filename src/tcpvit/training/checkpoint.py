"""Checkpoints: tensors and JSON in one safetensors file, written so that a kill at any moment leaves a good one.

A file is written under a temporary name, flushed to the disk and renamed; its metadata hold a SHA-256 of everything in
it. Reading one executes nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

SUFFIX = ".safetensors"
TEMPORARY = ".tmp"

Content = tuple[dict[str, Tensor], dict[str, Any]]


class WriteError(OSError):
    """A file could not be written; what stood there before is untouched."""


def write_atomically(path: Path, content: bytes) -> None:
    """Replace `path` by `content`, whole or not at all, also when the machine stops."""
    temporary = path.with_name(f".{path.name}{TEMPORARY}")
    try:
        temporary.unlink(missing_ok=True)
        with temporary.open("xb") as file:  # made by us: what others put there, as a link, is not written through
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise WriteError(error.errno, f"{path} could not be written ({error.strerror})") from error
    _sync_folder(path.parent)


def write_checkpoint(path: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Write tensors and a JSON-ready state, with their checksum."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(state)
    write_atomically(path, save(tensors, {"state": text, "sha256": _digest(tensors, text)}))


def read_checkpoint(path: Path) -> Content:
    """What `write_checkpoint` wrote; a damaged file is a ValueError."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged ({error})") from error
    text = metadata.get("state", "")
    if metadata.get("sha256") != _digest(tensors, text):
        raise ValueError(f"{path} is damaged (its checksum is wrong)")
    return tensors, json.loads(text)


def checkpoint_path(folder: Path, step: int) -> Path:
    """The file of a step; names sort as the steps do.

    >>> checkpoint_path(Path("checkpoints"), 120).name
    'step-00000120.safetensors'
    """
    return folder / f"step-{step:08d}{SUFFIX}"


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    return sorted(folder.glob(f"step-*{SUFFIX}"))


def read_latest(folder: Path, say: Callable[[str], None]) -> Content | None:
    """The newest checkpoint that is whole; damaged ones are named through `say` and set aside as `*.damaged`."""
    for path in reversed(list_checkpoints(folder)):
        try:
            return read_checkpoint(path)
        except ValueError as error:
            path.rename(path.with_name(f"{path.name}.damaged"))
            say(f"{error} and set aside; {'taking the one before' if list_checkpoints(folder) else 'none is left'}")
    return None


def prune(folder: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints."""
    for path in list_checkpoints(folder)[:-keep]:
        path.unlink(missing_ok=True)


def _digest(tensors: Mapping[str, Tensor], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _sync_folder(folder: Path) -> None:
    """Make a rename last through a power cut, where the system can."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
