"""Transformers built on the tensor cosine product: 1/C of the parameters, exact algebra."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tcpvit import algebra
    from tcpvit.models import create_model, from_pretrained, list_models, save_pretrained
    from tcpvit.tensorize import TensorizeConfig, tensorize_, to_dense_

__version__ = "0.3.0"

__all__ = [
    "TensorizeConfig",
    "__version__",
    "algebra",
    "create_model",
    "from_pretrained",
    "list_models",
    "save_pretrained",
    "tensorize_",
    "to_dense_",
]

# Loaded when first asked for, so that `import tcpvit` and `tcpvit --help` wait for nothing, not even torch.
_LAZY = {
    "TensorizeConfig": "tcpvit.tensorize",
    "algebra": "tcpvit.algebra",
    "create_model": "tcpvit.models",
    "from_pretrained": "tcpvit.models",
    "list_models": "tcpvit.models",
    "save_pretrained": "tcpvit.models",
    "tensorize_": "tcpvit.tensorize",
    "to_dense_": "tcpvit.tensorize",
}

# Rooms that register what they can save and load: these two names know every format.
_FORMATS = {"from_pretrained": "tcpvit.tensorize", "save_pretrained": "tcpvit.tensorize"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'tcpvit' has no attribute {name!r}")
    if name in _FORMATS:
        importlib.import_module(_FORMATS[name])
    module = importlib.import_module(_LAZY[name])
    return module if _LAZY[name] == f"tcpvit.{name}" else getattr(module, name)


def __dir__() -> list[str]:
    return __all__
