"""What is converted, what is left and why, and that nothing else changes."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune, weight_norm

import tcpvit
from tcpvit.compat import repair_torchvision
from tcpvit.layers import TubalLinear
from tcpvit.progress import Progress
from tcpvit.tensorize import EncoderConfig, TensorizeConfig, materialize_, tensorize_, to_dense_
from tcpvit.tensorize.config import read_config

SAME = {"atol": 1e-6, "rtol": 1e-5}


class Net(nn.Module):
    """A network with names that people use."""

    def __init__(self, width=12, classes=6):
        super().__init__()
        self.num_classes = classes
        self.embed = nn.Embedding(10, width)
        self.attn = nn.Module()
        self.attn.num_heads = 2
        self.attn.qkv = nn.Linear(width, 3 * width)
        self.fc1 = nn.Linear(width, 2 * width)
        self.fc2 = nn.Linear(2 * width, width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        q, k, v = self.attn.qkv(x).chunk(3, -1)
        x = self.norm(x + torch.softmax(q @ k.mT, -1) @ v)
        return self.head(x + self.fc2(torch.relu(self.fc1(x))))


def test_heads_embeddings_and_norms_are_left():
    net = Net()
    report = tensorize_(net, tube=3)
    assert report.converted == ["attn.qkv", "fc1", "fc2"]
    assert report.skipped == {"head": "head (by its name)"}
    assert isinstance(net.embed, nn.Embedding)
    assert isinstance(net.norm, nn.LayerNorm)
    assert tensorize_(Net(), tube=3, heads=True).converted[-1] == "head"


@pytest.mark.parametrize(
    ("name", "reason"),
    [("classifier", "head (by its name)"), ("out", "head (gives 6 classes)"), ("blocks.0", None)],
)
def test_how_a_head_is_found(name, reason):
    net = nn.Module()
    net.num_classes = 6
    net.blocks = nn.ModuleList([nn.Linear(12, 6)])
    net.out, net.classifier = nn.Linear(12, 6), nn.Linear(12, 12)
    assert tensorize_(net, tube=3).skipped.get(name) == reason


def test_a_head_inside_a_numbered_block_is_a_head_of_attention():
    net = nn.Module()
    net.blocks = nn.ModuleList([nn.ModuleDict({"heads": nn.ModuleList([nn.Linear(12, 6)])})])
    assert tensorize_(net, tube=3).converted == ["blocks.0.heads.0"]


def test_parameters_follow_the_formula():
    net = Net()
    report = tensorize_(net, tube=3)
    for row in report.rows[:3]:
        weights = row.in_features * row.out_features
        assert (row.before, row.after) == (weights + row.out_features, weights // 3 + row.out_features)
    assert report.parameters_after == sum(p.numel() for p in net.parameters())
    assert report.parameters_before - report.parameters_after == sum(row.before - row.after for row in report.rows)


@pytest.mark.parametrize("init", ["project", "fresh"])
def test_there_and_back(init):
    net, x = Net(), torch.randn(2, 5, 12)
    names = list(net.state_dict())
    tensorize_(net, tube=3, init=init)
    y = net(x)
    assert to_dense_(net) is net
    assert list(net.state_dict()) == names
    assert not any(isinstance(m, TubalLinear) for m in net.modules())
    torch.testing.assert_close(net(x), y, **SAME)


def test_projection_is_the_nearest_and_says_how_near():
    net = Net()
    dense = net.fc1.weight.detach().clone()
    report = tensorize_(net, tube=3, arrange="none")
    row = next(row for row in report.rows if row.name == "fc1")
    assert row.error == pytest.approx(((dense - net.fc1.weight).norm() / dense.norm()).item(), rel=1e-5)
    again = tensorize_(to_dense_(net), tube=3, arrange="none")  # what is a c-product already is kept
    assert max(row.error for row in again.rows if row.done) < 1e-6
    assert again.energy == pytest.approx(1)


def test_a_width_the_tube_does_not_divide_is_named_or_an_error():
    net = nn.Sequential(nn.Linear(12, 10), nn.Linear(10, 12), nn.Linear(12, 12))
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(ValueError, match=r"tube 3 does not fit 0 \(output width 10 is no multiple of the tube 3\); 1"):
        tensorize_(net, tube=3, strict=True)
    assert all(torch.equal(net.state_dict()[name], tensor) for name, tensor in before.items())
    report = tensorize_(net, tube=3)
    assert report.converted == ["2"]
    assert report.skipped["1"] == "input width 10 is no multiple of the tube 3"


def test_a_tube_never_crosses_from_q_to_k():
    net = nn.ModuleDict(
        {"attn": nn.ModuleDict({"qkv": nn.Linear(12, 12), "kv": nn.Linear(12, 12), "x": nn.Linear(12, 12)})}
    )
    report = tensorize_(net, tube=6)
    assert report.skipped["attn.qkv"] == "its fused parts are 4 wide, which is no multiple of the tube 6"
    assert report.converted == ["attn.kv", "attn.x"]


def test_parts_that_alternate_by_heads_hold_the_tube_to_the_heads():
    levit, bloom = nn.Module(), nn.Module()
    levit.key_dim, levit.val_dim, levit.qkv = 4, 8, nn.ModuleDict({"linear": nn.Linear(12, 2 * 16)})
    bloom.num_heads, bloom.query_key_value = 4, nn.Linear(24, 72)
    net = nn.ModuleList([levit, bloom])
    assert tensorize_(net, tube=4).converted == ["0.qkv.linear"]
    bloom.query_key_value = nn.Linear(24, 72)
    assert tensorize_(net, tube=6).converted == ["1.query_key_value"]


def test_tubes_that_cross_heads_are_reported():
    notes = {tube: tensorize_(Net(), tube=tube).rows[0].notes for tube in (3, 4)}  # heads of 6
    assert "tubes cross heads" not in notes[3]
    assert "tubes cross heads" in notes[4]


def test_layers_are_chosen_by_name_size_and_function():
    assert tensorize_(Net(), tube=3, include=["fc*"]).converted == ["fc1", "fc2"]
    assert tensorize_(Net(), tube=3, include="fc*", exclude="*2").converted == ["fc1"]
    assert tensorize_(Net(), tube=3, min_features=13).converted == []
    report = tensorize_(Net(), tube=3, filter_fn=lambda module, name: module.out_features == 24)
    assert report.converted == ["fc1"]
    assert report.skipped["fc2"] == "refused by filter_fn"
    with pytest.raises(ValueError, match=r"include='fc3' matches no linear layer; did you mean 'fc2'"):
        tensorize_(Net(), tube=3, include=["fc3"])


def test_convolutions_by_option():
    def build():
        return nn.Sequential(nn.Conv2d(3, 12, 4, 4), nn.Conv2d(12, 12, 3, padding=1), nn.Conv2d(12, 6, 1))

    x = torch.randn(2, 3, 8, 8)
    assert tensorize_(build(), tube=3).rows == []
    assert tensorize_(build(), tube=3, convs="pointwise").converted == ["2"]
    assert tensorize_(build(), tube=3, convs="patch").converted == ["0"]
    net = build()
    report = tensorize_(net, tube=3, convs="all")
    y = net(x)
    assert report.converted == ["0", "2"]
    torch.testing.assert_close(to_dense_(net)(x), y, **SAME)
    assert tensorize_(build(), tube=2, convs="all").skipped == {"0": "input width 3 is no multiple of the tube 2"}


def test_tied_linear_layers_stay_tied():
    net = nn.Sequential(nn.Linear(12, 12), nn.Linear(12, 12))
    net[1].weight = net[0].weight
    report = tensorize_(net, tube=3)
    assert net[0].weight_hat is net[1].weight_hat
    assert "stays tied to 1" in report.rows[0].notes
    assert report.parameters_after == 12 * 12 // 3 + 24
    to_dense_(net)
    assert net[0].weight is net[1].weight


@pytest.mark.parametrize("tube", [1, 3])
def test_tied_linear_layers_with_a_rank_stay_tied(tube):
    net = nn.Sequential(nn.Linear(12, 12), nn.Linear(12, 12))
    net[1].weight = net[0].weight
    report = tensorize_(net, tube=tube, rank=2)
    assert "stays tied to 1" in report.rows[0].notes
    assert all(getattr(net[0], name) is getattr(net[1], name) for name in ("weight_hat", "v", "u"))
    assert report.parameters_after == (12 * 12 // 3 if tube == 3 else 0) + 2 * 24 + 24
    to_dense_(net)
    assert net[0].weight is net[1].weight


def test_what_is_tied_to_something_else_is_left():
    net = nn.ModuleDict({"words": nn.Embedding(12, 12), "out": nn.Linear(12, 12, bias=False)})
    net["out"].weight = net["words"].weight
    assert tensorize_(net, tube=3).skipped == {"out": "tied to words, which is not converted with it"}
    half = nn.Sequential(nn.Linear(12, 12), nn.Linear(12, 12))
    half[1].weight = half[0].weight
    assert tensorize_(half, tube=3, exclude=["1"]).skipped["0"] == "tied to 1, which is not converted with it"


def test_one_layer_in_two_places_stays_one():
    layer = nn.Linear(12, 12)
    net = nn.Sequential(layer, nn.ReLU(), layer)
    report = tensorize_(net, tube=3)
    assert net[0] is net[2]
    assert report.converted == ["0"]
    assert to_dense_(net)[0] is net[2]


class LoraLinear(nn.Module):
    """As peft wraps layers."""

    def __init__(self, base):
        super().__init__()
        self.base_layer = base
        self.lora_A = nn.ModuleDict({"default": nn.Linear(12, 3, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(3, 12, bias=False)})


class Loud(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class Coded(torch.Tensor):
    """As torchao holds quantised weights."""


def patched():
    layer = nn.Linear(12, 12)
    layer.forward = lambda x: x
    return layer


def coded():
    layer = nn.Linear(12, 12)
    layer.weight = nn.Parameter(torch.randn(12, 12).as_subclass(Coded))
    return layer


def quantised():
    return torch.ao.nn.quantized.dynamic.Linear(12, 12)


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (lambda: LoraLinear(nn.Linear(12, 12)), "is wrapped by LoRA"),
        (lambda: Loud(12, 12), "is a Loud with a forward of its own"),
        (lambda: weight_norm(nn.Linear(12, 12)), "has a computed weight"),
        (lambda: parametrizations.weight_norm(nn.Linear(12, 12)), "has a computed weight"),
        (lambda: parametrizations.spectral_norm(nn.Linear(12, 12)), "has a computed weight"),
        (lambda: prune.l1_unstructured(nn.Linear(12, 12), "weight", 0.5), "has a computed weight"),
        (lambda: nn.Linear(12, 12, device="meta"), "is on the meta device, without weights to project"),
        (lambda: TubalLinear(12, 12, 3), "is tensorised already"),
        (quantised, "is quantised; tensorise first"),
        (patched, "is a Linear with a forward of its own"),
        (coded, "holds a Coded of torch.float32; tensorise before quantising or sharding"),
    ],
)
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_layers_that_weights_cannot_be_taken_from(layer, reason):
    net = nn.Sequential(layer(), nn.Linear(12, 12))
    before = net[0]
    report = tensorize_(net, tube=3)
    assert net[0] is before
    assert report.rows[0].status.startswith(reason)
    assert (report.rows[0].in_features, report.rows[0].out_features) == (12, 12)
    assert report.converted == ["1"]
    assert tensorize_(net, tube=3).skipped["1"] == "is tensorised already"


def test_fresh_layers_can_be_made_on_the_meta_device():
    with torch.device("meta"):
        net = Net()
    assert tensorize_(net, tube=3, init="fresh").converted == ["attn.qkv", "fc1", "fc2"]
    assert net.fc1.weight_hat.is_meta


def test_the_layer_keeps_its_place():
    net = nn.Sequential(nn.Linear(12, 12).to(torch.bfloat16), nn.Linear(12, 12)).eval()
    net[0].weight.requires_grad_(False)
    net[1].train()
    biases = [layer.bias for layer in net]
    calls = []
    handle = net[1].register_forward_hook(lambda module, args, y: calls.append(type(module)))
    tensorize_(net, tube=3)
    assert net[0].weight_hat.dtype == torch.bfloat16
    assert [layer.weight_hat.requires_grad for layer in net] == [False, True]
    assert [layer.training for layer in net] == [False, True]
    assert all(layer.bias is bias for layer, bias in zip(net, biases, strict=True))
    net[1](torch.zeros(1, 12))
    assert calls == [TubalLinear]
    to_dense_(net)
    assert not net[0].weight.requires_grad
    net[1](torch.zeros(1, 12))
    handle.remove()
    net[1](torch.zeros(1, 12))
    assert calls == [TubalLinear, nn.Linear]


def test_a_bare_layer_cannot_be_replaced_in_place():
    with pytest.raises(ValueError, match="wrap it in a module"):
        tensorize_(nn.Linear(12, 12), tube=3)


def test_report_prints_and_goes_to_json():
    report = tensorize_(Net(), tube=3, example=torch.zeros(1, 5, 12))
    content = json.loads(report.to_json())
    assert content["layers"][0]["name"] == "attn.qkv"
    assert content["ratio"] == report.parameters_after / report.parameters_before
    assert content["config"]["transform"] == "dct"
    text = str(report)
    for words in ("attn.qkv", "head (by its name)", "whole model", "its FLOPs", "The projection keeps"):
        assert words in text


def test_flops_before_and_after():
    net = nn.Sequential(nn.Linear(48, 96))
    report = tensorize_(net, tube=3, example=torch.zeros(7, 48))
    assert report.flops_before == 2 * 7 * 48 * 96
    # slices, and a 3×3 transform at each end, which the bias goes through too
    assert report.flops_after == 2 * 7 * (48 * 96 // 3 + 3 * 48 + 3 * 96) + 2 * 3 * 96
    assert tensorize_(Net(), tube=3).flops_before is None  # nobody knows what it takes
    model = tcpvit.create_model("std_vit_cifar", depth=1)
    assert tensorize_(model, tube=3).flops_before > 0
    assert tensorize_(tcpvit.create_model("std_vit_cifar", depth=1), tube=3, example=False).flops_before is None


class Fussy(nn.Module):
    """It computes well, but not on tensors without data."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(12, 12)

    def forward(self, x):
        return self.layer(x) if x.sum().item() < 1e9 else x


def test_flops_that_cannot_be_counted_do_not_stop_a_conversion(capfd):
    report = tensorize_(Fussy(), tube=3, example=torch.zeros(1, 12))
    assert report.converted == ["layer"]
    assert report.flops_before is None
    assert "FLOPs were not counted (DataDependentOutputException" in report.notes[-1]
    assert capfd.readouterr().err == ""
    wrong = tensorize_(Net(), tube=3, init="fresh", example=torch.zeros(1, 7))
    assert "FLOPs were not counted (RuntimeError" in wrong.notes[-1]
    assert capfd.readouterr().err == ""
    assert "no example input is known" in tensorize_(Net(), tube=3).notes[-1]
    assert not any("FLOPs" in note for note in tensorize_(Net(), tube=3, example=False).notes)


def test_progress_is_told():
    told = []

    class Told(Progress):
        def track(self, items, description, total=None):
            told.append(description)
            return items

    tensorize_(Net(), tube=3, progress=Told())
    assert told == ["reordering features", "converting layers"]


def test_layers_that_are_faster_dense_are_noted_and_can_be_materialised():
    net = nn.Sequential(nn.Linear(48, 48), nn.Linear(48, 960), nn.Linear(960, 960), nn.MultiheadAttention(48, 4))
    report = tensorize_(net, tube=4)
    slow = [row.name for row in report.rows if "faster dense" in row.notes]
    assert slow == ["0", "1", "3.in_proj", "3.out_proj"]
    x = torch.randn(2, 48)
    y, attended = net[:3](x), net[3](x, x, x)[0]
    materialize_(net)
    assert [type(layer) for layer in net] == [nn.Linear, nn.Linear, TubalLinear, nn.MultiheadAttention]
    torch.testing.assert_close(net[:3](x), y, **SAME)
    torch.testing.assert_close(net[3](x, x, x)[0], attended, **SAME)


def test_the_table_of_models_that_are_ours_already():
    report = tensorize_(tcpvit.create_model("tcp_vit_cifar", depth=1), tube=3)
    assert report.converted == []
    assert set(report.skipped.values()) == {"is tensorised already", "head (the model's classifier)"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tube": 1}, "at least 2"),
        ({"tube": 3.0}, "whole number"),
        ({"init": "random"}, "init should be one of project, fresh"),
        ({"convs": "some"}, "convs should be one of none, pointwise, patch, all"),
        ({"transform": "cosine_kka"}, "orthogonal transforms only"),
        ({"transform": "data_driven"}, "needs its matrix"),
        ({"mode": "layers"}, "mode is one of drop_in, encoder, got 'layers'"),
        ({"attention": "joint"}, "attention is an option of EncoderConfig .mode='encoder'., which TensorizeConfig"),
        ({"mode": "encoder", "arrange": "all"}, "arrange is an option of TensorizeConfig"),
        ({"mode": "encoder", "strict": True}, "strict is an option of TensorizeConfig"),
        (
            {"config": TensorizeConfig(), "mode": "encoder"},
            "mode='encoder' takes a EncoderConfig, got a TensorizeConfig",
        ),
    ],
)
def test_errors(options, said):
    with pytest.raises(ValueError, match=said):
        tensorize_(Net(), **options)


def test_a_config_goes_to_json_and_back():
    config = TensorizeConfig(tube=4, transform="haar", include=["blocks.*"], convs="all")
    assert TensorizeConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    with pytest.raises(ValueError, match="'tubes' is no option of TensorizeConfig; did you mean 'tube'"):
        TensorizeConfig.from_dict({"tubes": 3})


@pytest.mark.parametrize("config", [TensorizeConfig(tube=4, include="a.*"), EncoderConfig(tube=2, norm="token")])
def test_files_say_of_which_method_a_config_is(config):
    assert read_config(json.loads(json.dumps(config.to_dict()))) == config


def test_configs_in_files_of_version_0_1_0_have_the_fields_of_both_methods():
    both = {"tube": 2, "transform": "haar", "init": "fresh", "include": [], "exclude": [], "min_features": 0}
    both |= {"heads": False, "convs": "none", "arrange": "inside", "strict": False}
    both |= {"attention": "joint", "activation_domain": "spatial", "norm": "token"}
    assert read_config({**both, "mode": "drop_in"}) == TensorizeConfig(2, "haar", "fresh")
    assert read_config({**both, "mode": "encoder"}) == EncoderConfig(2, "haar", "fresh", "joint", "spatial", "token")
    with pytest.raises(ValueError, match="'nrom' is no option of EncoderConfig; did you mean 'norm'"):
        read_config({"mode": "encoder", "nrom": "token"})


def test_other_transforms():
    matrix = torch.linalg.qr(torch.randn(3, 3)).Q
    for transform in ("haar", "learned", matrix, tcpvit.algebra.get_transform("haar", 3)):
        net, x = Net(), torch.randn(2, 5, 12)
        report = tensorize_(net, TensorizeConfig(tube=3, transform=transform))
        y = net(x)
        assert len(report.converted) == 3
        torch.testing.assert_close(to_dense_(net)(x), y, **SAME)
    tensorize_(Net(), tube=3, transform="cosine_kka", init="fresh")


def test_tubes_keep_within_grouped_queries_keys_and_values():
    repair_torchvision()
    from transformers import Phi3Config, Phi3Model

    sizes = {"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 3, "intermediate_size": 96}
    config = Phi3Config(**sizes, num_hidden_layers=1, vocab_size=50, pad_token_id=0, eos_token_id=1)
    report = tensorize_(Phi3Model(config), tube=32, init="fresh", example=False)
    assert "fused parts are 48 wide" in report.skipped["layers.0.self_attn.qkv_proj"]


def test_what_is_no_model():
    with pytest.raises(TypeError, match=r"takes an nn\.Module that is not scripted, got a str"):
        tensorize_("a name", tube=3)


def test_an_option_that_does_not_exist_names_the_nearest():
    with pytest.raises(ValueError, match="'tubes' is no option of TensorizeConfig; did you mean 'tube'"):
        tensorize_(nn.Linear(6, 6), tubes=3)
