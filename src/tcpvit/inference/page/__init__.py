"""The explorer: one HTML file that runs a TCP-ViT in a browser and shows what its slices do.

The files beside this one are the page: `page.html` with a place for each of the others, `style.css`, the scripts in the
order of `SCRIPTS` and the built-in images. Weights and sizes go into it as base64 and JSON, so it needs no server.
"""

from __future__ import annotations

import base64
import html
import json
from pathlib import Path
from typing import Any

from torch import Tensor

from tcpvit.analysis import count_flops, count_parameters
from tcpvit.inference.loading import LoadedModel, load_model
from tcpvit.layers.norm import EPS
from tcpvit.models import list_pretrained
from tcpvit.models.vit import VisionTransformer

FILES = Path(__file__).parent
SCRIPTS = ("model.js", "image.js", "views.js", "page.js", "start.js")
LARGEST = 4_000_000  # parameters: a page beyond them is neither small nor quick
COUPLINGS = {"norm", "shared"}


def build_page(loaded: LoadedModel, twin: LoadedModel | None = None) -> str:
    """The explorer of a TCP classifier of colour images; `twin` is a standard ViT to show beside it."""
    about = loaded.preparation()
    networks = [_described(loaded, "tcp"), *([_described(twin, "std")] if twin else [])]
    if twin is not None and _task(twin) != _task(loaded):
        raise ValueError(
            f"{twin.name} and {loaded.name} are shown side by side only if they were trained for the same task: image "
            "size, classes and normalisation"
        )
    data = {
        "title": loaded.name,
        "classes": [str(name) for name in about["classes"]],
        "mean": list(about["mean"]),
        "std": list(about["std"]),
        "fit": loaded.fit,
        "networks": [network for network, _ in networks],
        "images": {path.stem: _data_url(path) for path in sorted((FILES / "images").glob("*.png"))},
    }
    parts = {
        "title": html.escape(loaded.name),
        "style": _read("style.css"),
        "data": json.dumps(data, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c"),
        "weights": "\n".join(
            f'<script type="application/octet-stream" class="weights">{base64.b64encode(weights).decode()}</script>'
            for _, weights in networks
        ),
        "script": "\n".join(map(_read, SCRIPTS)),
    }
    page = _read("page.html")
    for name, text in parts.items():
        page = page.replace(f"<!-- {name} -->", text)
    return page


def find_twin(loaded: LoadedModel) -> LoadedModel | None:
    """The standard ViT of the zoo that was trained for the same task, if there is one."""
    names = [name for name in list_pretrained("std_*") if name.split("_")[1:3] == loaded.name.split("_")[1:3]]
    for twin in map(load_model, names):
        if isinstance(twin.model, VisionTransformer) and _task(twin) == _task(loaded):
            return twin
    return None


def _task(loaded: LoadedModel) -> tuple[Any, ...]:
    about = loaded.preparation()
    return tuple(tuple(about[name]) for name in ("classes", "image_shape", "mean", "std"))


def _described(loaded: LoadedModel, kind: str) -> tuple[dict[str, Any], bytes]:
    """What the script has to know of a model, and its weights."""
    model = _checked(loaded, kind)
    config = model.config
    tensors = _tensors(model)
    described = {
        "name": loaded.name,
        "kind": kind,
        "side": config.image_shape[0],
        "patch": config.patch_shape[0],
        "depth": config.depth,
        "heads": config.num_heads,
        "tube": config.tube_length,
        "d": config.d,
        "joint": config.attention == "joint" and kind == "tcp",
        "jointNorm": config.slice_coupling.norm,
        "spatial": config.activation_domain == "spatial",
        "pool": model.global_pool,
        "eps": EPS,
        "parameters": int(count_parameters(model)),
        "flops": int(count_flops(model)),
        "facts": loaded.facts,
        "tensors": [[name, list(tensor.shape)] for name, tensor in tensors.items()],
    }
    if model.transform is not None:
        matrix, inverse = model.transform.matrices()
        described |= {"transform": matrix.flatten().tolist(), "inverse": inverse.flatten().tolist()}
    weights = b"".join(tensor.detach().cpu().float().contiguous().numpy().tobytes() for tensor in tensors.values())
    return described, weights


def _checked(loaded: LoadedModel, kind: str) -> VisionTransformer:
    """A model that the script can compute, or an error that says why not."""
    model, wanted = loaded.model, "TCP-ViT" if kind == "tcp" else "standard ViT"
    if not isinstance(model, VisionTransformer) or model.config.kind != kind or not model.num_classes:
        raise ValueError(f"{loaded.name} is no {wanted} that classifies images, which is what the explorer shows here")
    config = model.config
    problems = {
        "is for volumes": config.ndim != 2,
        "is for images of other than three channels": config.in_chans != 3 or config.kept is not None,
        "has a tube that is not the three channels": kind == "tcp" and config.tube_length != 3,
        "has images or patches that are not square": len({*config.image_shape}) + len({*config.patch_shape}) > 2,
        "has a distillation token": config.distilled,
        "has a convolutional stem": bool(config.stem) or config.embedding == "conv",
        "has no class token": not config.class_token,
        "has no positions": not config.positions,
        "has a gated FFN": config.gated,
        f"embeds its patches by {config.embedding}": kind == "tcp" and config.embedding in ("linear", "sub_patch"),
        f"couples its slices by {'+'.join(config.coupling)}": not set(config.coupling) <= COUPLINGS,
        f"has more than {LARGEST:,} parameters": count_parameters(model) > LARGEST,
    }
    for problem, there in problems.items():
        if there:
            raise ValueError(f"the explorer does not show {loaded.name}: it {problem}")
    return model


def _tensors(model: VisionTransformer) -> dict[str, Tensor]:
    """The weights by the script's names, each with its slices first: (C, in, out), (C, out)."""
    tube, found = model.config.tube_length, {}
    embed: Any = model.patch_embed
    if getattr(embed, "kind", "") == "shared":
        found["embed.weight"] = embed.weight.expand(tube, -1, -1)
    elif getattr(embed, "kind", "") != "none":
        found |= _of_layer("embed", embed.proj, tube)
    tokens: Any = model.embed
    found["cls"] = tokens.cls_token.reshape(-1, model.config.d).expand(tube, -1)
    found["pos"] = tokens.pos_embed.reshape(-1, *tokens.pos_embed.shape[-2:]).expand(tube, -1, -1)
    block: Any
    for i, block in enumerate(model.blocks):
        layers = {"qkv": block.attn.qkv, "proj": block.attn.proj, "fc1": block.mlp.fc1, "fc2": block.mlp.fc2}
        for name, layer in {"norm1": block.norm1, "norm2": block.norm2, **layers}.items():
            found |= _of_layer(f"{i}.{name}", layer, tube)
    head: Any = model.head
    return {**found, **_of_layer("norm", model.norm, tube), "head.weight": head.weight.mT, "head.bias": head.bias}


def _of_layer(name: str, layer: Any, tube: int) -> dict[str, Tensor]:
    """Weight and bias of a layer or norm, a slice for each even where all share one."""
    if hasattr(layer, "weight_hat"):
        weight, bias = layer.weight_hat, layer.bias_hat
        found = {f"{name}.weight": weight.expand(tube, -1, -1)}
        return found if bias is None else {**found, f"{name}.bias": bias.expand(tube, -1, -1)}
    weight = layer.weight.mT if layer.weight.ndim == 2 else layer.weight
    found = {f"{name}.weight": weight}
    return found if layer.bias is None else {**found, f"{name}.bias": layer.bias}


def _read(name: str) -> str:
    return (FILES / name).read_text(encoding="utf-8")


def _data_url(path: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()
