"""CIFAR's pickles without pickle's danger: only arrays, strings, numbers and containers can be built."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

_RECONSTRUCT = np.empty(0).__reduce__()[0]  # numpy's own name for it moved between versions
_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _ALLOWED:
            return _ALLOWED[module, name]
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def load_arrays(path: Path) -> dict[bytes, Any]:
    """The dictionary in a pickle of Python 2, refusing a file that would run anything but numpy's array constructor."""
    with path.open("rb") as file:
        try:
            content = _ArraysOnly(file, encoding="bytes").load()
        except OSError:
            raise
        except Exception as error:  # a doctored or damaged pickle can fail in any way
            raise ValueError(f"{path} is not a pickle of arrays and was not read: {error}; download it again") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, expected the dictionary of a CIFAR batch")
    return content
