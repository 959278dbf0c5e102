"""Triton's kernels without a GPU: in its interpreter against the reference, compiled for two GPUs, chosen on CUDA."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch._subclasses import FakeTensorMode

from tcpvit.layers.attention import attend
from tcpvit.layers.kernels import gpu, halves, ops, product
from tcpvit.layers.linear import slice_linear

triton = pytest.importorskip("triton", reason="the kernels for a GPU need the extra gpu")
SHARED_MEMORY = 99 * 1024  # bytes that a block has on every GPU from sm_80 on; that of sm_86 is the smallest


def test_kernels_are_right_in_the_interpreter():
    cases = Path(__file__).with_name("interpreted_gpu.py")
    environment = os.environ | {"TRITON_INTERPRET": "1", "TCPVIT_KERNELS": "0", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(cases)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]  # 5 if there were no tests


def kernels():
    """Every kernel with the sizes of its tiles, narrow and wide."""
    from tcpvit.layers.kernels.gpu import attention, ffn
    from tcpvit.layers.kernels.gpu import product as products

    found = {}
    for width in (16, 64):
        D = {"PRECISION": "ieee", "ROWS": products.ROWS, "D_IN": width, "D_OUT": width}
        found["product", width] = products._product_kernel, D | {"HAS_BIAS": True}
        found["outer", width] = products._outer_kernel, D | {"CHUNK": products.CHUNK}
        W = {"PRECISION": "ieee", "WIDTH": width, "D": width}
        found["attention", width] = attention._forward_kernel, W | {"TOKENS": attention.TOKENS}
        few = attention.backward_tokens(width)
        found["attention backward", width] = attention._backward_kernel, W | {"TOKENS": few}
        F = {"PRECISION": "ieee", "WIDTH": width, "ROWS": ffn.ROWS, "HIDDEN": ffn.HIDDEN}
        found["ffn", width] = ffn._forward_kernel, F
        found["ffn input", width] = ffn._input_kernel, F
        found["ffn weights", width] = ffn._weights_kernel, F | {"CHUNK": ffn.CHUNK}
    return found


def argument_type(name, constants, dtype):
    if name in constants:
        return "constexpr"
    if name.endswith("_ptr"):
        sums = ("lse_ptr", "part_ptr", "d_w1_ptr", "d_b1_ptr", "d_w2_ptr")
        return "*fp32" if name in sums else f"*{dtype}"
    return "fp32" if name in ("scale", "eps") else "i32"


def compiled(name, width, dtype, architecture):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel, constants = kernels()[name, width]
    signature = {arg: argument_type(arg, constants, dtype) for arg in kernel.arg_names}
    options = {"num_stages": 2} if name.startswith("attention") else {}
    return triton.compile(
        ASTSource(kernel, signature, constants), target=GPUTarget("cuda", architecture, 32), options=options
    )


NAMES = ["product", "outer", "attention", "attention backward", "ffn", "ffn input", "ffn weights"]


@pytest.mark.parametrize("architecture", [80, 90])
@pytest.mark.parametrize("name", NAMES)
def test_kernels_compile_ahead_of_time(name, architecture, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    made = compiled(name, 16, "bf16", architecture)
    assert made.asm["cubin"][:4] == b"\x7fELF"
    assert f"sm_{architecture}" in made.asm["ptx"]
    assert made.metadata.shared <= SHARED_MEMORY


@pytest.mark.slow
@pytest.mark.parametrize("architecture", [80, 90])
@pytest.mark.parametrize("name", NAMES)
def test_the_widest_tiles_in_single_precision_fit_every_gpu(name, architecture, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    assert compiled(name, 64, "fp32", architecture).metadata.shared <= SHARED_MEMORY


def test_kernels_are_chosen_on_cuda_alone(monkeypatch):
    monkeypatch.setattr(gpu, "switched_on", lambda: True)
    with FakeTensorMode():
        qkv = torch.empty(3, 2, 65, 3 * 16, device="cuda")
        assert ops.can_use_attention(qkv, 4, False)
        assert not ops.can_use_attention(qkv.double(), 4, False)
        assert not ops.can_use_attention(torch.empty(3, 2, 65, 3 * 65, device="cuda"), 1, False)
        x, weight = torch.empty(3, 70, 16, device="cuda"), torch.empty(3, 16, 48, device="cuda")
        assert product.can_use_product(x, weight)
        assert not product.can_use_product(x, weight.half())
        assert not product.can_use_product(x.cpu(), weight.cpu())
        assert not product.can_use_product(x, torch.empty(3, 16, 257, device="cuda"))
        assert halves.can_use_half("ffn_half", x, weight)
        assert not halves.can_use_half("attention_half", x, weight)
        assert not halves.can_use_half("ffn_half", x.double(), weight.double())
        assert attend(qkv, 4).shape == (3, 2, 65, 16)
        assert slice_linear(x, weight).shape == (3, 70, 48)
        monkeypatch.setattr(gpu, "switched_on", lambda: False)
        assert not ops.can_use_attention(qkv, 4, False)
        assert not product.can_use_product(x, weight)
        assert not halves.can_use_half("ffn_half", x, weight)


def test_the_product_has_the_manners_of_an_operator():
    sizes = [(2, 3, 4), (2, 4, 5), (2, 1, 5)]
    inputs = [torch.randn(*size, dtype=torch.float64, requires_grad=True) for size in sizes]
    torch.library.opcheck(product.slice_product, inputs)
    assert torch.autograd.gradcheck(product.slice_product, inputs)
