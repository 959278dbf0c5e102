"""Converted models are models: they train, export, compile, run under autocast and on several processes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from tcpvit.compat import repair_torchvision
from tcpvit.tensorize import tensorize_, to_dense_

repair_torchvision()
IMAGES, LABELS = torch.randn(8, 3, 32, 32), torch.arange(8) % 4


def vit(init="project", depth=1):
    import timm

    model = timm.create_model(
        "vit_tiny_patch16_224", num_classes=4, img_size=32, depth=depth, embed_dim=48, num_heads=4
    )
    tensorize_(model, tube=3, init=init, example=False)
    return model


@pytest.mark.parametrize("init", ["project", "fresh"])
def test_adamw_learns_eight_images(init):
    model = vit(init)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(25):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(IMAGES), LABELS)
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1
    assert all(p.grad is not None for p in model.parameters())


def test_gradients_are_those_of_the_dense_model_projected():
    """The slices' gradient is the projection of the dense weights' gradient."""
    model = vit().double()
    nn.functional.cross_entropy(model(IMAGES.double()), LABELS).backward()
    layer = model.blocks[0].mlp.fc1
    found, transform = layer.weight_hat.grad, layer.transform.matrices()
    to_dense_(model)
    model.zero_grad()
    nn.functional.cross_entropy(model(IMAGES.double()), LABELS).backward()
    dense = model.blocks[0].mlp.fc1.weight.grad.view(-1, 3, 16, 3)  # (o, p, i, q)
    torch.testing.assert_close(found, torch.einsum("kp,opiq,kq->kio", transform[0], dense, transform[0]))


def test_export_with_any_batch():
    model = vit().eval()
    program = torch.export.export(model, (IMAGES,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    torch.testing.assert_close(program.module()(IMAGES[:3]), model(IMAGES[:3]), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("build", [vit, lambda: encoder()], ids=["timm", "torch"])
def test_compiles_as_one_graph_forward_and_backward(build):
    torch.compiler.reset()
    model = build()
    x = IMAGES if model.__class__.__name__ == "VisionTransformer" else torch.randn(2, 5, 24)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    compiled(x).sum().backward()
    found = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model(x).sum().backward()
    for ours, p in zip(found, model.parameters(), strict=True):
        torch.testing.assert_close(ours, p.grad, atol=1e-4, rtol=1e-3)


def encoder():
    layer = nn.TransformerEncoderLayer(24, 2, 48, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    tensorize_(model, tube=3)
    return model


@pytest.mark.parametrize("build", [vit, encoder], ids=["timm", "torch"])
def test_autocast(build):
    model = build()
    x = IMAGES if build is vit else torch.randn(2, 5, 24)
    exact = model(x)
    with torch.autocast("cpu", torch.bfloat16):
        y = model(x)
        y.float().square().sum().backward()
    torch.testing.assert_close(y.float(), exact, atol=0.03 * exact.abs().max().item(), rtol=0)
    assert all(p.grad.dtype == torch.float32 for p in model.parameters())


def test_a_converted_layer_gives_what_a_dense_one_does_under_autocast():
    linear = nn.Linear(12, 12)
    model = nn.Sequential(nn.Linear(12, 12))
    tensorize_(model, tube=3)
    with torch.autocast("cpu", torch.bfloat16):
        assert model(torch.randn(2, 12)).dtype == linear(torch.randn(2, 12)).dtype == torch.bfloat16


PROGRAM = """
import gc, torch, torch.distributed as dist
from torch import nn
from tcpvit.tensorize import tensorize_
dist.init_process_group("gloo")
torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(24, 2, 48, dropout=0.0, batch_first=True)
model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
tensorize_(model, tube=3, arrange="none")
x = torch.randn(4, 5, 24)
model(x).square().mean().backward()
expected = [p.grad.clone() for p in model.parameters()]
model.zero_grad()
spread = nn.parallel.DistributedDataParallel(model)
rank = dist.get_rank()
spread(x[2 * rank : 2 * rank + 2]).square().mean().backward()
for p, grad in zip(model.parameters(), expected, strict=True):
    torch.testing.assert_close(p.grad, grad)
dist.barrier()
del spread  # it holds the group: threads of a group that outlives the interpreter end the process with an abort
gc.collect()
dist.destroy_process_group()
"""


def test_two_processes_have_the_gradients_of_one(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend=c10d"]
    command += ["--rdzv-endpoint=localhost:0", str(program)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
