"""FLOPs: prediction equal to the measurement by component, for every option; and the traps of the counter."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from vit_configs import CONFIGS

from tcpvit.analysis import EncoderShape, Work, count_flops, count_parameters, predict_flops
from tcpvit.compat import repair_torchvision
from tcpvit.layers.kernels import ops
from tcpvit.models import VisionTransformer, create_model, model_config


@pytest.fixture
def unfused(monkeypatch):
    """Without our own attention kernel, so that the counter sees the matrix products one by one."""
    monkeypatch.setattr(ops, "can_use_attention", lambda *_: False)


def matrix_products(config, image_size=None) -> dict[str, int]:
    return {name: work.matrix for name, work in predict_flops(config, image_size).items() if work.matrix}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_prediction_is_the_measurement(config, unfused):
    assert count_flops(VisionTransformer(config)).components == matrix_products(config)


@pytest.mark.parametrize("name", ["std_vit_pet_backbone", "tcp_vit_pet_backbone", "tcp_vit_tiny_patch16_224"])
def test_prediction_is_the_measurement_for_presets(name, unfused):
    assert count_flops(create_model(name)).components == matrix_products(model_config(name))


@pytest.mark.parametrize("name", ["std_vit_cifar", "tcp_vit_cifar"])
def test_another_image_size_and_a_batch(name):
    model = create_model(name)
    assert count_flops(model, image_size=(64, 16)).components == matrix_products(model.config, (64, 16))
    assert count_flops(model, image_size=48) == sum(matrix_products(model.config, 48).values())
    assert count_flops(model, batch=7) == 7 * count_flops(model)
    assert count_flops(model, torch.zeros(7, 3, 32, 32)) == 7 * count_flops(model)


@pytest.mark.parametrize("name", ["std_vit_cifar", "tcp_vit_cifar"])
def test_a_dry_run_counts_what_a_real_one_does(name, unfused):
    model = create_model(name)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(torch.randn(2, 3, 32, 32))
    assert count_flops(model, batch=2) == counter.get_total_flops()


@pytest.mark.parametrize(
    ("name", "options"), [("std_vit_cifar", {}), ("tcp_vit_cifar", {}), ("tcp_vit_cifar", {"attention": "joint"})]
)
def test_our_own_kernel_counts_as_the_products_it_stands_for(name, options):
    model = create_model(name, **options)
    assert count_flops(model, batch=2).components["attention"] == 2 * predict_flops(model.config)["attention"].products


def test_the_trap_that_the_unfused_kernel_avoids():
    """Left to itself the counter sees no attention on a CPU; if it learns to, the forced kernel can go."""
    model = create_model("std_vit_cifar", depth=1, embed_dim=1200, num_heads=2)  # too wide for our kernels
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, 3, 32, 32))
    missing = count_flops(model) - counter.get_total_flops()
    assert missing == predict_flops(model.config)["attention"].products


@pytest.mark.parametrize(("kind", "tube"), [("std", 1), ("tcp", 3)])
def test_the_blocks_follow_the_formula_with_the_class_token(kind, tube):
    """Eq. tcp_flops with N + 1 tokens, 2 for each multiply-add, is what the blocks of a model cost."""
    config = model_config(f"{kind}_vit_cifar")
    work = predict_flops(config)
    blocks = sum(work[name].products for name in ("qkv", "attention", "proj", "fc1", "fc2"))
    shape = EncoderShape(d=48 // tube, tube=tube, heads=4, mlp_ratio=4, depth=4, tokens=65)
    assert blocks == 4 * shape.layer_flops("tcp")


def test_slices_compute_c_times_as_many_softmax_entries():
    std, tcp, joint = (
        predict_flops(model_config(name, **options))["attention"].softmax
        for name, options in [("std_vit_cifar", {}), ("tcp_vit_cifar", {}), ("tcp_vit_cifar", {"attention": "joint"})]
    )
    assert std == 4 * 5 * 4 * 65**2
    assert tcp == 3 * std
    assert joint == std


def test_work_that_is_no_matrix_product():
    config = model_config("tcp_vit_cifar", activation_domain="spatial")
    work = predict_flops(config)
    assert work["norms"] == Work(norm=7 * 4 * 2 * 65 * 48)
    assert work["final_norm"] == Work(norm=7 * 48)  # of the class token: the head reads no other
    assert work["activation"] == Work(activation=5 * 4 * 65 * 192, transform=4 * 2 * (2 * 3 * 65 * 192))
    assert work["transform"] == Work(transform=2 * 3 * 48)
    assert work["patch_embed"] == Work(transform=2 * 3 * 64 * 48)
    assert (work["norms"] + work["activation"]).total == work["norms"].norm + sum(
        (work["activation"].activation, work["activation"].transform)
    )


class Foreign(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 4, stride=4)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.plain = torch.eye(16)  # neither parameter nor buffer

    def forward(self, images):
        return self.encoder(self.stem(images).flatten(2).mT) @ self.plain


@pytest.mark.parametrize("training", [True, False])
def test_a_model_of_somebody_else(training):
    """In eval mode torch runs its encoder layer as one opaque kernel, of which the counter sees nothing."""
    model = Foreign().train(training)
    count = count_flops(model, torch.zeros(1, 3, 16, 16))
    N, D = 16, 16
    layer = 2 * N * D * (4 * D + 2 * 32) + 4 * N * N * D
    assert count.components == {"stem": 2 * N * D * 48, "encoder": 2 * layer, "itself": 2 * N * D * D}
    assert torch.backends.mha.get_fastpath_enabled()
    assert model.training is training


def test_a_timm_model_says_its_own_input():
    model = nn.Conv2d(3, 4, 2)
    model.pretrained_cfg = {"input_size": (3, 5, 5)}
    assert count_flops(model) == 2 * 16 * 4 * 12
    assert count_flops(model, image_size=3) == 2 * 4 * 4 * 12


def test_a_timm_model_may_be_built_for_other_images_than_its_weights():
    repair_torchvision()
    timm = pytest.importorskip("timm")
    model = timm.create_model("vit_tiny_patch16_224", img_size=64, in_chans=4, depth=1)
    assert count_flops(model) == count_flops(model, torch.zeros(1, 4, 64, 64))


def test_the_input_has_the_precision_of_the_model():
    assert count_flops(create_model("tcp_vit_cifar").double()) == count_flops(create_model("tcp_vit_cifar"))
    assert count_flops(create_model("tcp_vit_cifar").bfloat16()) == count_flops(create_model("tcp_vit_cifar"))


def test_an_unknown_input_is_asked_for():
    with pytest.raises(ValueError, match="the input of a Linear is not known; pass inputs"):
        count_flops(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="batch is at least 1"):
        count_flops(create_model("tcp_vit_cifar"), batch=0)


def test_counting_leaves_the_model_alone():
    model = create_model("tcp_vit_cifar", transform="learned").eval()
    images = torch.randn(2, 3, 32, 32)
    before = model(images)
    weights = {name: id(p) for name, p in model.named_parameters()}
    count_flops(model)
    assert {name: id(p) for name, p in model.named_parameters()} == weights
    assert torch.equal(model(images), before)


def test_the_vit_of_torchvision_costs_what_std_vit_does():
    repair_torchvision()
    transformer = pytest.importorskip("torchvision").models.VisionTransformer
    theirs = transformer(32, 4, num_layers=4, num_heads=4, hidden_dim=48, mlp_dim=192, num_classes=10)
    ours = create_model("std_vit_cifar")
    assert count_parameters(theirs) == count_parameters(ours) == 119_194
    for model in (theirs.eval(), theirs.train()):
        assert count_flops(model, torch.zeros(1, 3, 32, 32)) == count_flops(ours) == 17_917_632


def test_a_module_that_stands_in_two_places_keeps_its_weights():
    shared = nn.Linear(4, 4)
    model = nn.ModuleDict({"first": shared, "second": nn.Sequential(shared)})
    model.forward = lambda x: model["second"](model["first"](x))
    weight = shared.weight
    assert count_flops(model, torch.zeros(1, 4)) == 2 * 2 * 4 * 4
    assert shared.weight is weight
