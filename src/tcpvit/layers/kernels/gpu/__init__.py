"""Triton kernels for NVIDIA GPUs, behind the operators of `ops.py`; one file for each subject.

They are correct under Triton's interpreter (`TRITON_INTERPRET=1`) and compile for sm_80 and sm_90, which the tests
check on a CPU. No GPU has timed them yet: `python -m benchmarks.gpu` does. Sizes are padded to tiles of 16 at least,
the smallest that tensor cores multiply.
"""

from __future__ import annotations

import functools
import importlib.util

import torch
from torch import Tensor

from tcpvit.algebra.cache import constant_in_graphs
from tcpvit.layers.kernels.build import operators_refused, switched_on

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_WIDTH = 64  # of a head or of a slice in the fused FFN: the tile of one program
MAX_PRODUCT = 256  # d_in and d_out of a slice; beyond, cuBLAS has enough to do


def can_use_gpu(x: Tensor) -> bool:
    """True if Triton's kernels take numbers of this kind where they are; the sizes are for the caller to check."""
    return x.device.type == "cuda" and x.dtype in DTYPES and not operators_refused() and is_installed()


@constant_in_graphs
def is_installed() -> bool:
    """Whether Triton is there and kernels are not switched off (`TCPVIT_KERNELS=0`)."""
    return switched_on() and _has_triton()


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def tile(size: int, most: int = MAX_WIDTH) -> int:
    """The size of a tile for so many numbers: a power of two, at least 16.

    >>> [tile(size) for size in (3, 16, 25, 64, 200)]
    [16, 16, 32, 64, 64]
    """
    return min(most, max(16, 1 << (size - 1).bit_length()))


def precision(x: Tensor) -> str:
    """How tensor cores multiply float32: as torch's own products do, TF32 only if the user has allowed it."""
    return "tf32" if x.dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32 else "ieee"
