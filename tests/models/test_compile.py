"""torch.compile without a graph break and torch.export with dynamic batch, for every preset and option."""

import pytest
import torch

import tcpvit
from tcpvit.models import ViTConfig, model_config

OPTIONS = [
    {},
    {"attention": "joint"},
    {"activation_domain": "spatial"},
    {"coupling": "mix:rotation+shuffle"},
    {"coupling": "low_rank:2+partial:0.25", "attention": "joint"},
    {"coupling": "two_factor+norm", "attention": "joint"},
    {"coupling": "shared+mix:rotation", "attention": "joint", "patch_embed": "sub_patch", "tube": 4},
    {"transform": "learned", "activation_domain": "spatial"},
    {"transform": tcpvit.algebra.data_driven(torch.rand(20, 3))},
    {"patch_embed": "shared", "global_pool": "avg"},
    {"patch_embed": "t_linear", "num_classes": 0},
    {"tube": 6, "num_heads": 2},
    {"drop_rate": 0.1, "attn_drop_rate": 0.1, "drop_path_rate": 0.2},
]
CASES = [("tcp_vit_cifar", options) for options in OPTIONS]
VITS = [name for name in tcpvit.list_models("*_vit_*") if isinstance(model_config(name), ViTConfig)]
CASES += [(name, {}) for name in VITS if name != "tcp_vit_cifar"]
CASES += [("tcp_deit_tiny", {"img_size": 32})]


def build(name, options):
    model = tcpvit.create_model(name, **{"depth": 1, **options})
    return model, torch.randn(2, model.config.in_chans, *model.config.image_shape)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_compiles_as_one_graph_forward_and_backward(name, options):
    torch.compiler.reset()
    model, images = build(name, options)
    model.train()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    compiled(images).sum().backward()
    model.eval()
    torch.testing.assert_close(compiled(images), model(images), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_exports_with_dynamic_batch(name, options):
    model, images = build(name, options)
    model.eval()
    program = torch.export.export(model, (images,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    more = torch.cat([images, images + 1, images - 1])
    torch.testing.assert_close(program.module()(more), model(more), atol=1e-5, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS[:4])
def test_inductor_computes_the_same(options):
    torch.compiler.reset()
    model, images = build("tcp_vit_cifar", options)
    compiled = torch.compile(model, fullgraph=True)
    torch.testing.assert_close(compiled(images), model(images), atol=1e-5, rtol=1e-4)
