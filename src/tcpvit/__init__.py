"""Transformers built on the tensor cosine product: 1/C of the parameters, exact algebra."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tcpvit import algebra

if TYPE_CHECKING:
    from tcpvit.models import create_model, from_pretrained, list_models, save_pretrained

__version__ = "0.1.0"

__all__ = ["__version__", "algebra", "create_model", "from_pretrained", "list_models", "save_pretrained"]

# Loaded when first asked for, so that `import tcpvit` costs little more than `import torch`.
_LAZY = {
    "create_model": "tcpvit.models",
    "from_pretrained": "tcpvit.models",
    "list_models": "tcpvit.models",
    "save_pretrained": "tcpvit.models",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'tcpvit' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return __all__
