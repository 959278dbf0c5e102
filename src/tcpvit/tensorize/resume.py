"""What a calibration has done so far, in a folder: one that was stopped goes on with it."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as save_bytes
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from tcpvit.files import read_json, write_atomically, write_json
from tcpvit.models.pretrained import read_weights
from tcpvit.tensorize.budget import Form
from tcpvit.tensorize.config import TensorizeConfig
from tcpvit.tensorize.fit import Fit

INDEX = "calibration.json"
TENSORS = ("slices", "v", "u", "bias")  # of a fit


class Done:
    """The forms of all layers and the fits of some, by name; also in a folder, if there is one.

    What lies there of another model, other data or other settings is not used.
    """

    def __init__(self, folder: Path | None, model: nn.Module, batches: Sequence[Any], config: TensorizeConfig):
        self.folder, self.parts = folder, 0
        self.forms: dict[str, Form] = {}
        self.fits: dict[str, Fit] = {}
        if folder is not None:
            self.key = fingerprint(config.to_dict(), model.state_dict(), batches)
            self._read(folder)

    def _read(self, folder: Path) -> None:
        content = read_json(folder / INDEX) if (folder / INDEX).is_file() else {}
        if content.get("key") != self.key:
            return
        self.forms = {name: Form(**form) for name, form in content["forms"].items()}
        for part in content["parts"]:
            tensors = read_weights(self._part())
            for name, numbers in part.items():
                stored: dict[str, Any] = {key: tensors.get(f"{name}/{key}") for key in TENSORS}
                self.fits[name] = Fit(**numbers, **stored)
            self.parts += 1

    def deal(self, forms: Mapping[str, Form]) -> None:
        """The forms are known."""
        self.forms = dict(forms)
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._write([])

    def add(self, fits: Mapping[str, Fit]) -> None:
        """Layers are fitted."""
        self.fits |= fits
        if self.folder is None:
            return
        tensors = {f"{name}/{key}": getattr(fit, key) for name, fit in fits.items() for key in TENSORS}
        found = {key: tensor.contiguous() for key, tensor in tensors.items() if tensor is not None}
        write_atomically(self._part(), save_bytes(found))
        numbers = {name: {"tube": fit.tube, "error": fit.error, "ridge": fit.ridge} for name, fit in fits.items()}
        self._write([*read_json(self.folder / INDEX)["parts"], numbers])
        self.parts += 1

    def forget(self) -> None:
        """The calibration is complete: the folder has no more use."""
        if self.folder is not None:
            for path in [self.folder / INDEX, *self.folder.glob("part-*.safetensors")]:
                path.unlink()
            with contextlib.suppress(OSError):  # it holds files of others
                self.folder.rmdir()

    def _part(self) -> Path:
        assert self.folder is not None
        return self.folder / f"part-{self.parts}.safetensors"

    def _write(self, parts: list[Any]) -> None:
        assert self.folder is not None
        forms = {name: asdict(form) for name, form in self.forms.items()}
        write_json(self.folder / INDEX, {"key": self.key, "forms": forms, "parts": parts})


def fingerprint(settings: dict[str, Any], weights: Mapping[str, Tensor], batches: Iterable[Any]) -> str:
    """The same for the same model, data and settings."""
    found = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for leaf in tree_leaves([dict(weights), *batches]):
        if isinstance(leaf, Tensor):
            found.update(f"{leaf.dtype} {tuple(leaf.shape)}".encode())
            found.update(leaf.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        else:
            found.update(repr(leaf).encode())
    return found.hexdigest()
