"""FLOPs of a built model by component, measured by torch's counter: 2 for each multiply-add of a matrix product."""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tcpvit.analysis.count import Count
from tcpvit.analysis.dry_run import ImageSize, dry_run, example_images
from tcpvit.analysis.parameters import decoder_component
from tcpvit.models.segmenter import Segmenter
from tcpvit.models.vit import VisionTransformer


def count_flops(
    model: nn.Module,
    inputs: Tensor | tuple[Tensor, ...] | dict[str, Tensor] | None = None,
    *,
    image_size: ImageSize | None = None,
    batch: int = 1,
) -> Count:
    """FLOPs of one forward pass: an int with `.components`. Nothing is computed, only shapes are followed.

    Matrix products and convolutions count, 2 for each multiply-add; softmax, norms and activations do not
    (`predict_flops` has them). `inputs` may be left out for models of this library,
    timm, torchvision and transformers.

    >>> from tcpvit.models import create_model
    >>> count = count_flops(create_model("tcp_vit_cifar"))
    >>> count, count.components["qkv"]
    (8056800, 1198080)
    >>> count_flops(nn.Linear(4, 3), torch.zeros(5, 4))
    120
    """
    if inputs is None:
        inputs = example_images(model, image_size, batch)
    counter = FlopCounterMode(display=False)
    # The counter knows no fused attention of torch's on a CPU; unfused it is two matrix products, which it counts.
    # Our own attention operator has told it what it costs.
    with torch.no_grad(), counter, sdpa_kernel(SDPBackend.MATH):
        dry_run(model, inputs)
    component = _component if isinstance(model, VisionTransformer | Segmenter) else _top_level
    counts: Counter[str] = Counter()
    for path, flops in _own_flops(counter).items():
        counts[component(path)] += flops
    return Count.of({name: n for name, n in counts.items() if n})


def _own_flops(counter: FlopCounterMode) -> dict[str, int]:
    """FLOPs of each module without those of the modules in it; paths are relative to the model."""
    totals = {name: sum(ops.values()) for name, ops in counter.get_flop_counts().items() if name != "Global"}
    own = dict(totals)
    for name, flops in totals.items():
        parent = name
        while "." in parent:
            parent = parent.rpartition(".")[0]
            if parent in own:
                own[parent] -= flops
                break
    return {name.partition(".")[2]: flops for name, flops in own.items()}


def _component(path: str) -> str:
    """The component of a module of `VisionTransformer`, or of a `Segmenter` with one."""
    parts = path.removeprefix("backbone.").split(".")
    if parts[0] == "decoder":
        return decoder_component(parts[1:])
    if parts[0] == "blocks":
        return {"attn": "attention", "mlp": "activation"}.get(parts[-1], parts[-1])
    return parts[0] or "transform"  # what the model does itself is to leave the hat domain


def _top_level(path: str) -> str:
    return path.split(".")[0] or "itself"
