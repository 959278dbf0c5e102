"""Reordering features: the network stays the same function, and a projection never keeps less."""

from __future__ import annotations

import copy
import itertools
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from torch import nn

from tcpvit.algebra import get_transform
from tcpvit.compat import repair_torchvision
from tcpvit.layers import TubalLinear
from tcpvit.tensorize import TensorizeConfig, tensorize_
from tcpvit.tensorize.arrange import NOT_CALLED, NOT_FREE, REORDERED, TOO_WIDE, arrange_
from tcpvit.tensorize.assign import STEP, assign, energy, hat_features, solve_assignment
from tcpvit.tensorize.find import find_sites

repair_torchvision()


def kept_by_projection(matrix, tube):
    linear = nn.Linear(*matrix.shape[::-1], bias=False)
    linear.weight.data = matrix
    return TubalLinear.from_dense(linear, tube)[0].weight_hat.square().sum().item()


@settings(max_examples=25)
@given(st.integers(2, 4), st.integers(1, 4), st.integers(1, 5), st.integers(0, 9))
def test_energy_is_what_the_projection_keeps(tube, d_out, d_in, seed):
    torch.manual_seed(seed)
    phi = get_transform("dct", tube).matrix.float()
    first, second = torch.randn(d_out * tube, d_in * tube), torch.randn(d_in * tube, d_out * tube)
    order = torch.randperm(d_out * tube)
    features = torch.cat([hat_features(first, phi), hat_features(second.mT, phi)], -1)
    expected = kept_by_projection(first[order], tube) + kept_by_projection(second[:, order], tube)
    assert energy(features, phi, order) == pytest.approx(expected, rel=1e-4)


@settings(max_examples=25)
@given(st.integers(2, 5), st.integers(1, 6), st.sampled_from([1, 2]), st.integers(0, 9))
def test_an_assignment_is_an_order_that_never_keeps_less(tube, tubes, blocks, seed):
    torch.manual_seed(seed)
    features = tube * tubes
    phi = get_transform("dct", tube).matrix.float()
    grams, labels = hat_features(torch.randn(features, 2 * tube), phi), torch.arange(features) * blocks // features
    order, gain = assign(grams, phi, labels)
    assert order.sort().values.tolist() == list(range(features))
    assert torch.equal(labels[order], labels)
    won = energy(grams, phi, order) - energy(grams, phi, torch.arange(features))
    assert gain >= 0
    assert won == pytest.approx(gain, abs=1e-5)


def test_an_assignment_comes_near_the_best_order():
    phi, best, found = get_transform("dct", 2).matrix.float(), 0.0, 0.0
    for seed in range(3):
        torch.manual_seed(seed)
        grams = hat_features(torch.randn(6, 4), phi)
        best += max(energy(grams, phi, torch.tensor(order)) for order in itertools.permutations(range(6)))
        found += energy(grams, phi, assign(grams, phi, torch.zeros(6))[0])
    assert found > 0.9 * best


def test_a_hidden_c_product_is_found_again():
    """An MLP whose hidden features were shuffled: most of what the shuffle lost comes back."""
    first, second = TubalLinear(12, 24, 3).to_dense(), TubalLinear(24, 12, 3).to_dense()
    order = torch.randperm(24)
    mlp = nn.ModuleDict({"fc1": first, "fc2": second})
    first.weight.data, second.weight.data = first.weight.data[order], second.weight.data[:, order]

    class Mlp(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.fc2 = mlp["fc1"], mlp["fc2"]

        def forward(self, x):
            return self.fc2(torch.relu(self.fc1(x)))

    report = tensorize_(nn.Sequential(Mlp()), tube=3)
    assert report.energy > report.energy_unarranged + 0.2


def timm_model(name, **options):
    import timm

    return timm.create_model(name, num_classes=6, **options), torch.randn(2, 3, 32, 32)


def hugging_face(name, **options):
    import transformers

    config = getattr(transformers, f"{name}Config")(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48, image_size=32, **options
    )
    return getattr(transformers, f"{name}Model")(config), torch.randn(2, 3, 32, 32)


def encoder():
    layer = nn.TransformerEncoderLayer(24, 2, 48, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.randn(2, 5, 24)


def torchvision_vit():
    import torchvision

    model = torchvision.models.vision_transformer.VisionTransformer(32, 16, 2, 2, 24, 48, num_classes=6)
    return model, torch.randn(2, 3, 32, 32)


def gpt2_mlp():
    from transformers import GPT2Config
    from transformers.models.gpt2.modeling_gpt2 import GPT2MLP

    return nn.Sequential(GPT2MLP(48, GPT2Config(n_embd=24))), torch.randn(2, 5, 24)


SMALL = {"img_size": 32, "depth": 2, "embed_dim": 24, "num_heads": 2}
MODELS = {
    "timm vit": (lambda: timm_model("vit_tiny_patch16_224", **SMALL), 6),
    "timm deit distilled": (lambda: timm_model("deit_tiny_distilled_patch16_224", **SMALL), 6),
    "timm deit3": (lambda: timm_model("deit3_small_patch16_224", **SMALL), 6),
    "timm eva02, with rotations": (lambda: timm_model("eva02_tiny_patch14_224", **{**SMALL, "img_size": 28}), 0),
    "transformers vit": (lambda: hugging_face("ViT"), 6),
    "transformers gpt2, weights (in, out)": (gpt2_mlp, 1),
    "torch encoder": (encoder, 6),
    "torchvision vit": (torchvision_vit, 6),
}


@pytest.mark.parametrize("arrange", ["inside", "all"])
@pytest.mark.parametrize("name", MODELS)
def test_the_reordered_network_is_the_same_function(name, arrange):
    build, least = MODELS[name]
    model, x = build()
    if "eva02" in name:
        x = x[..., :28, :28]
    shake(model)
    model.double().eval()
    config = TensorizeConfig(tube=3, arrange=arrange)
    before, weights = model(x.double()), copy.deepcopy(model.state_dict())
    gain, notes = arrange_(model, find_sites(model, config), config)
    after = model(x.double())
    for y, z in zip(tensors(before), tensors(after), strict=True):
        torch.testing.assert_close(y, z, atol=1e-9, rtol=1e-9)
    assert gain > 0 or least == 0
    if least:
        moved = least + (arrange == "all" and name.startswith("timm"))
        assert notes == (REORDERED.format(moved),)
        assert any(not torch.equal(weights[key], tensor) for key, tensor in model.state_dict().items())


@pytest.mark.parametrize("arrange", ["inside", "all"])
def test_the_report_says_what_reordering_won(arrange):
    model, _ = timm_model("vit_tiny_patch16_224", **SMALL)
    twin = copy.deepcopy(model)
    plain = tensorize_(twin, tube=3, arrange="none")
    report = tensorize_(model, tube=3, arrange=arrange)
    assert report.energy > plain.energy
    assert report.energy_unarranged == pytest.approx(plain.energy, abs=1e-5)
    assert plain.arrange_gain == 0


def test_what_would_change_the_function_is_left():
    class Odd(nn.Module):
        """It has the names, but the middle knows its features."""

        def __init__(self):
            super().__init__()
            self.fc1, self.fc2 = nn.Linear(6, 12), nn.Linear(12, 6)

        def forward(self, x):
            return self.fc2(self.fc1(x).cumsum(-1))

    model = nn.Sequential(Odd())
    weights = copy.deepcopy(model.state_dict())
    config = TensorizeConfig(tube=3)
    assert arrange_(model, find_sites(model, config), config) == (0.0, (NOT_FREE.format(1),))
    for key, tensor in model.state_dict().items():
        assert torch.equal(tensor, weights[key])


def test_what_is_too_wide_is_left_and_said(monkeypatch):
    monkeypatch.setattr("tcpvit.tensorize.arrange.LARGEST", 8**2)
    model, _ = encoder()  # heads of 24 features in all, and MLPs of 48
    assert tensorize_(model, tube=3, example=False).notes == (REORDERED.format(4), TOO_WIDE.format(2))


class Mlp(nn.Module):
    def __init__(self, fc1=None):
        super().__init__()
        self.fc1, self.act, self.fc2 = fc1 or nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 6)

    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)))


class Sum(nn.Module):
    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x):
        return self.first(x) + self.second(x)


class Wrapped(nn.Module):
    """A model that does not say what it takes."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


def roformer():
    from transformers import RoFormerConfig, RoFormerModel

    sizes = {"vocab_size": 30, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = RoFormerConfig(**sizes, intermediate_size=48, max_position_embeddings=16)
    return RoFormerModel(config), torch.randint(1, 30, (2, 9))


ROTATED = {
    "timm rope": (lambda: timm_model("vit_small_patch16_rope_224", **SMALL), 4),
    "timm dinov3": (lambda: timm_model("vit_small_patch16_dinov3", **SMALL), 4),
    "timm perception encoder": (lambda: timm_model("vit_pe_core_tiny_patch16_384", **SMALL), 5),
    "transformers roformer": (roformer, 4),
}


@pytest.mark.parametrize("name", ROTATED)
def test_queries_that_are_rotated_stay_and_the_rest_moves(name):
    build, least = ROTATED[name]
    model, x = build()
    strengthen(model)
    assert moved(model, x) == least


def test_rotations_are_left_where_no_example_is_known_and_seen_where_there_is_one():
    model, x = timm_model("vit_small_patch16_rope_224", **SMALL)
    strengthen(model)
    assert moved(Wrapped(copy.deepcopy(model)), x) == 2  # the MLPs
    assert moved(Wrapped(model), x, example=x.double()) == 4


def test_one_token_shows_no_rotation_and_queries_stay():
    model, x = roformer()
    strengthen(model)
    assert moved(model, x, example={"input_ids": x[:1, :1]}) == 4


def test_a_layer_of_two_mlps_stays_and_an_mlp_in_two_places_moves():
    mlp = Mlp()
    assert moved(Sum(mlp, Mlp(mlp.fc1)), torch.randn(2, 6)) == 0
    assert moved(Sum(mlp, mlp), torch.randn(2, 6)) == 1


@pytest.mark.parametrize("layer", ["fc1", "act", "fc2"])
def test_what_a_hook_sees_stays(layer):
    model = nn.Sequential(Mlp(), Mlp())
    part = getattr(model[0], layer)
    if layer == "fc2":
        part.register_forward_pre_hook(lambda module, args: (without_the_first(args[0]),))
    else:
        part.register_forward_hook(lambda module, args, output: without_the_first(output))
    assert moved(model, torch.randn(5, 6)) == 1


def without_the_first(x):
    return torch.cat([torch.zeros_like(x[..., :7]), x[..., 7:]], -1)


def test_hooks_see_nothing_of_the_check():
    model, _ = timm_model("vit_tiny_patch16_224", **SMALL)
    calls, config = [], TensorizeConfig(tube=3)
    for module in (model, *model.blocks, *(block.attn for block in model.blocks)):
        module.register_forward_hook(lambda *_: calls.append(1))
    assert arrange_(model, find_sites(model, config), config)[0] > 0
    assert calls == []


def test_without_scipy_the_weights_are_the_same(monkeypatch):
    model, _ = encoder()
    twin = copy.deepcopy(model)
    tensorize_(model, tube=3)
    monkeypatch.setitem(sys.modules, "scipy", None)  # an import of it fails now
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    assert tensorize_(twin, tube=3).arrange_gain > 0
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, twin.state_dict()[name])


@settings(max_examples=25)
@given(st.integers(1, 30), st.integers(1, 3), st.integers(0, 9))
def test_the_auction_is_near_the_best_assignment_of_scipy(size, labels, seed):
    generator = np.random.default_rng(seed)
    gain, label = generator.normal(size=(size, size)), generator.integers(0, labels, size)
    rows, found = np.arange(size), solve_assignment(gain, label)
    assert sorted(found) == list(range(size))
    assert (label[found] == label).all()
    best = linear_sum_assignment(np.where(label[:, None] == label, gain, -1e9), maximize=True)[1]
    assert gain[rows, found].sum() >= gain[rows, best].sum() - size * STEP * np.ptp(gain) - 1e-9


def test_a_module_that_cannot_be_called_is_left_and_said():
    class Fussy(Mlp):
        def forward(self, x, scale=None):
            return super().forward(x * scale["of x"])

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.mlp = Fussy()

        def forward(self, x):
            return self.mlp(x, {"of x": 2.0})

    model, x = Outer(), torch.randn(2, 6)
    assert tensorize_(copy.deepcopy(model), tube=3).notes[0] == NOT_CALLED.format(1)
    assert tensorize_(model, tube=3, example=x).notes == (REORDERED.format(1),)


def test_an_example_that_the_model_does_not_take_is_an_error_and_changes_nothing():
    model = nn.Sequential(Mlp())
    weights = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match="the model does not take the example: mat1 and mat2"):
        tensorize_(model, tube=3, example=torch.zeros(1, 7))
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())


def shake(model):
    """Give every parameter a value of its own: zeros and ones hide mistakes."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))


def strengthen(model):
    """Shake, and let every block count: layer scales that are small hide mistakes too."""
    shake(model)
    for name, parameter in model.named_parameters():
        if "gamma" in name:
            nn.init.ones_(parameter)


@torch.no_grad()
def moved(model, x, example=None):
    """Reorder a model, which has to stay the same function: in how many spaces features moved."""
    model.double().eval()
    x = x.double() if x.is_floating_point() else x
    config = TensorizeConfig(tube=3)
    before = model(x)
    _, notes = arrange_(model, find_sites(model, config), config, example)
    for y, z in zip(tensors(before), tensors(model(x)), strict=True):
        torch.testing.assert_close(y, z, atol=1e-9, rtol=1e-9)
    return next((n for n in range(1, 100) if REORDERED.format(n) in notes), 0)


def tensors(output):
    if isinstance(output, torch.Tensor):
        return [output]
    values = output.values() if hasattr(output, "values") else output
    return [value for value in values if isinstance(value, torch.Tensor)]
