"""Checkpoints to resume from, and models for `from_pretrained`; a kill at any moment leaves a good one.

A checkpoint is one safetensors file of tensors and JSON, written atomically, with a SHA-256 of everything in it.
Reading one executes nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from tcpvit.files import write_atomically, write_json
from tcpvit.models.pretrained import WEIGHTS, Pretrained, can_save, save_pretrained
from tcpvit.training.preprocessing import PREPROCESSING

SUFFIX = ".safetensors"
Content = tuple[dict[str, Tensor], dict[str, Any]]


def write_checkpoint(path: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Write tensors and a JSON-ready state, with their checksum."""
    tensors = _each_in_its_memory(tensors)
    text = json.dumps(state)
    path.parent.mkdir(exist_ok=True)  # it may have been removed since the run began
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
    try:
        return tensors, json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error})") from error


def checkpoint_path(folder: Path, step: int) -> Path:
    """The file of a step; names sort as the steps do.

    >>> checkpoint_path(Path("checkpoints"), 120).name
    'step-00000120.safetensors'
    """
    return folder / f"step-{step:08d}{SUFFIX}"


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    return sorted(path for path in folder.glob(f"step-*{SUFFIX}") if path.is_file())


def read_latest(folder: Path, warn: Callable[[str], None]) -> Content | None:
    """The newest intact checkpoint; damaged ones are reported through `warn` and renamed to `*.damaged`."""
    for path in reversed(list_checkpoints(folder)):
        try:
            return read_checkpoint(path)
        except ValueError as error:
            path.rename(path.with_name(f"{path.name}.damaged"))
            rest = "using the previous one" if list_checkpoints(folder) else "no other is left"
            warn(f"{error} and renamed to *.damaged; {rest}")
    return None


def prune(folder: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints."""
    for path in list_checkpoints(folder)[:-keep]:
        path.unlink(missing_ok=True)


def save_model(model: nn.Module, folder: Path, preprocessing: dict[str, Any] | None = None) -> None:
    """Write the model into `folder`, each file atomically; of a model of another library, the weights alone."""
    folder.mkdir(parents=True, exist_ok=True)
    if preprocessing is not None:
        write_json(folder / PREPROCESSING, preprocessing)
    if isinstance(model, Pretrained) and can_save(model):
        model._save_pretrained(folder)  # without the model card
    elif can_save(model):
        save_pretrained(model, folder)
    else:
        write_atomically(folder / WEIGHTS, save(_each_in_its_memory(model.state_dict())))


def _each_in_its_memory(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """On the CPU, none in the memory of another: safetensors refuses that, so tied weights are written twice."""
    found, taken = {}, set()
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        place = tensor.untyped_storage().data_ptr()
        found[name] = tensor.clone() if place in taken else tensor
        taken.add(place)
    return found


def _digest(tensors: Mapping[str, Tensor], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
