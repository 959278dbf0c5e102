"""Fine-tuning: a model starts from trained weights, also at another image size and for other classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tcpvit.files import expand_user
from tcpvit.layers.embed import TokenEmbedding
from tcpvit.models.pretrained import Pretrained, from_pretrained
from tcpvit.models.zoo import pretrained_folder
from tcpvit.overrides import flat
from tcpvit.training.folder import RunFolder

HEADS = ("head", "head_dist")
# What a model may have other than the weights that it starts from.
FREE_OPTIONS = ("img_size", "num_classes", "global_pool", "drop_rate", "attn_drop_rate", "drop_path_rate")


def start_from(model: nn.Module, name: str, pretrained: bool | str) -> None:
    """Load trained weights into a preset: those of the package (True), or of a run or saved model (its folder).

    Positions are resampled to the model's image size; a head for another number of classes stays as it was drawn.
    """
    folder = pretrained_folder(name) if isinstance(pretrained, bool) else _weights_of(pretrained)
    trained = from_pretrained(folder)
    _check_architecture(model, trained, name, folder)
    model.load_state_dict(_fitting_weights(model, trained))


def _weights_of(pretrained: str) -> Path:
    folder = expand_user(pretrained)
    if not folder.is_dir():
        raise ValueError(
            f"model.pretrained is true, or the folder of a run or of a saved model; there is no folder {pretrained!r}"
        )
    return folder / "best" if RunFolder(folder).exists else folder


def _check_architecture(model: Any, trained: Any, name: str, folder: Path) -> None:
    """The two differ in nothing but what fine-tuning may change, or the error says how to make them alike."""
    if not isinstance(trained, Pretrained) or type(trained) is not type(model):
        raise ValueError(
            f"{folder} holds a {type(trained).__name__}, whose weights do not fit {name}; name its preset with "
            f"--model, as `tcpvit models` lists them"
        )
    wanted, found = flat(model.config.to_dict()), flat(trained.config.to_dict())
    unlike = {k: v for k, v in found.items() if v != wanted.get(k) and k.rpartition(".")[2] not in FREE_OPTIONS}
    if "wavelengths" in unlike:
        raise ValueError(
            f"the weights of {folder} are for {trained.config.in_chans} bands at other wavelengths than these; "
            f"take a scene of the same sensor, or train without them"
        )
    if unlike:
        changes = " ".join(f"--set 'model.options.{key}={json.dumps(value)}'" for key, value in unlike.items())
        raise ValueError(
            f"the weights of {folder} are those of another model than {name} as this recipe has it; name its preset "
            f"with --model, or add {changes}"
        )


@torch.no_grad()
def _fitting_weights(model: nn.Module, trained: nn.Module) -> dict[str, Tensor]:
    weights = trained.state_dict()
    for place, module in model.named_modules():
        if isinstance(module, TokenEmbedding):
            learned = trained.get_submodule(place)
            assert isinstance(learned, TokenEmbedding)
            weights[f"{place}.pos_embed"] = learned.positions(module.grid)
    for key, drawn in model.state_dict().items():
        if key.split(".")[-2] in HEADS and weights[key].shape != drawn.shape:
            weights[key] = drawn
    return weights
