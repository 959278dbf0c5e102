"""A repair for torchvision beside a CPU build of torch.

The torchvision wheel of the package index links CUDA libraries. Where those are missing its operators do not load, and
`import torchvision` fails ("operator torchvision::nms does not exist"), and with it timm, torchmetrics and the image
models of transformers. Two operators are asked for while it is imported; declaring them is enough to use its models,
transforms and data sets. Box operators such as `nms` itself stay unavailable, and torchvision says so when called.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import torch

_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_kept: list[torch.library.Library] = []  # a library's operators live as long as it does


def repair_torchvision() -> bool:
    """Make `import torchvision` possible; call it before importing torchvision, timm, transformers or torchmetrics.

    Does nothing on a healthy install, where torchvision is absent, or the second time. Returns whether it repaired.

    >>> repaired = repair_torchvision()
    """
    if _kept or "torchvision" in sys.modules:
        return False
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None or _operators_load(Path(spec.origin).parent):
        return False
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            library.define(name + _SIGNATURE)
    _kept.append(library)
    return True


def _operators_load(folder: Path) -> bool:
    """Whether torchvision's own `_C` library loads, as it will try itself."""
    try:
        for path in [*folder.glob("_C*.so"), *folder.glob("_C*.pyd"), *folder.glob("_C*.dylib")]:
            torch.ops.load_library(path)
    except OSError:
        return False
    return hasattr(torch.ops.torchvision, "nms")
