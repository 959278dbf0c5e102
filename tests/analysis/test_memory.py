"""Memory: by hand for small nets, and dry runs equal to real ones for our models."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tcpvit.analysis import count_memory
from tcpvit.models import create_model


def test_a_net_by_hand():
    """Backward needs the input of each linear map (the images are not counted), of GELU, and Tanh's output."""
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3), nn.Tanh())
    memory = count_memory(model, torch.zeros(5, 4))
    parameters = 4 * 8 + 8 + 8 * 3 + 3
    assert memory.weights == memory.gradients == 4 * parameters
    assert memory.moments == 8 * parameters
    assert memory.activations == 4 * 5 * (8 + 8 + 3)
    assert memory.total == 4 * (4 * parameters + 5 * 19)


def test_frozen_weights_have_no_gradient():
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3))
    model[0].requires_grad_(False)
    memory = count_memory(model, torch.zeros(5, 4))
    assert memory.gradients == 4 * 27
    assert memory.moments == 8 * 27
    assert memory.activations == 4 * 5 * 8


def test_buffers_and_precision_count():
    model = nn.Sequential(nn.BatchNorm1d(4)).double()
    assert count_memory(model, torch.zeros(2, 4, dtype=torch.float64)).weights == 8 * (4 + 4 + 4 + 4 + 1)


def test_moments_are_those_of_adamw():
    model = create_model("tcp_vit_cifar")
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(2, 3, 32, 32)).sum().backward()
    optimizer.step()
    kept = [state[name].nbytes for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    memory = count_memory(model)
    assert memory.moments == sum(kept)
    assert memory.gradients == sum(p.grad.nbytes for p in model.parameters())


@pytest.mark.parametrize("name", ["std_vit_cifar", "tcp_vit_cifar"])
def test_a_dry_run_saves_what_a_real_one_does(name):
    model, saved = create_model(name).train(), []

    def pack(tensor):
        saved.append(tensor)
        return tensor

    images = torch.randn(3, 3, 32, 32)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        output = model(images)
    known = {t.untyped_storage().data_ptr() for t in [*model.parameters(), *model.buffers(), images]}
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in saved}
    assert output.requires_grad
    assert count_memory(model, batch=3).activations == sum(n for at, n in storages.items() if at not in known)


def test_activations_grow_with_the_batch_and_the_image():
    model = create_model("tcp_vit_cifar").eval()
    one, four = (count_memory(model, batch=batch).activations for batch in (1, 4))
    assert four == 4 * one
    assert count_memory(model, image_size=64).activations > 3 * one
    assert not model.training


def test_modes_are_put_back_as_they_were():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout()).train()
    model[1].eval()
    count_memory(model, torch.zeros(1, 2))
    assert [m.training for m in model.modules()] == [True, True, False]
