"""Parameters: the paper's numbers to the unit, and prediction equal to count for every option."""

from __future__ import annotations

import pickle

import pytest
from torch import nn
from vit_configs import CONFIGS

from tcpvit.analysis import count_parameters, predict_parameters
from tcpvit.analysis.report import BLOCK, EMBEDDING, ENCODER
from tcpvit.models import VisionTransformer, create_model, list_models, model_config

# FACTS.md, section 2: classification. Blocks are per block.
CIFAR = {
    "std_vit_cifar": {
        "patch_embed": 2352,
        "cls_token": 48,
        "pos_embed": 3120,
        "qkv": 7056,
        "proj": 2352,
        "fc1": 9408,
        "fc2": 9264,
        "norms": 192,
        "final_norm": 96,
        "head": 490,
    },
    "tcp_vit_cifar": {
        "patch_embed": 0,
        "cls_token": 48,
        "pos_embed": 3120,
        "qkv": 3 * 816,
        "proj": 3 * 272,
        "fc1": 3 * 1088,
        "fc2": 3 * 1040,
        "norms": 3 * 64,
        "final_norm": 96,
        "head": 490,
    },
}


@pytest.mark.parametrize(("name", "components"), CIFAR.items())
def test_the_classifiers_of_the_paper_by_component(name, components):
    count = count_parameters(create_model(name))
    for component, parameters in components.items():
        assert count.sum(component) == parameters * (4 if component in BLOCK else 1), component
    assert sum(count.components.values()) == count


@pytest.mark.parametrize(
    ("name", "total", "block", "blocks", "encoder"),
    [("std_vit_cifar", 119_194, 28_272, 113_088, 113_184), ("tcp_vit_cifar", 43_114, 9_840, 39_360, 39_456)],
)
def test_the_classifiers_of_the_paper(name, total, block, blocks, encoder):
    for count in (count_parameters(create_model(name)), predict_parameters(model_config(name))):
        assert count == total
        assert count.sum(*BLOCK) == blocks == 4 * block
        assert count.sum(*ENCODER) == encoder


def test_both_ratios_that_the_paper_mixes_up():
    std, tcp = (count_parameters(create_model(f"{kind}_vit_cifar")) for kind in ("std", "tcp"))
    assert tcp.sum(*ENCODER) / std.sum(*ENCODER) == pytest.approx(0.349, abs=5e-4)
    assert tcp / std == pytest.approx(0.362, abs=5e-4)


@pytest.mark.parametrize(
    ("name", "total", "encoder", "embedding", "patch_embed", "block"),
    [
        ("std_vit_pet_backbone", 1_275_072, 1_188_480, 86_592, 37_056, 297_024),
        ("tcp_vit_pet_backbone", 455_680, 402_048, 53_632, 4_096, 3 * 33_472),
    ],
)
def test_the_pet_backbones_of_the_paper(name, total, encoder, embedding, patch_embed, block):
    for count in (count_parameters(create_model(name)), predict_parameters(model_config(name))):
        assert count == total
        assert count.sum(*ENCODER) == encoder
        assert count.sum(*EMBEDDING) == embedding
        assert count.sum("patch_embed") == patch_embed
        assert count.sum("cls_token") == 192
        assert count.sum("pos_embed") == 49_344
        assert count.sum(*BLOCK) == 4 * block


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_prediction_is_the_count(config):
    counted = count_parameters(VisionTransformer(config))
    predicted = predict_parameters(config)
    assert counted == predicted
    assert counted.components == {name: n for name, n in predicted.components.items() if n}


@pytest.mark.parametrize("name", list_models("*_tiny_*") + list_models("*_small_*"))
def test_prediction_is_the_count_for_large_presets(name):
    assert predict_parameters(model_config(name)) == count_parameters(create_model(name))


def test_a_model_of_somebody_else_by_top_level_module():
    model = nn.ModuleDict({"encoder": nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), "head": nn.Linear(2, 1)})
    model.register_parameter("scale", nn.Parameter(model["head"].weight.detach()))
    count = count_parameters(model)
    assert count == 4 * 3 + 3 + 3 * 2 + 2 + 2 + 1 + 2
    assert count.components == {"scale": 2, "encoder": 23, "head": 3}


def test_a_shared_parameter_counts_once():
    layer = nn.Linear(4, 4)
    assert count_parameters(nn.Sequential(layer, layer)) == 20


def test_a_count_survives_a_pickle():
    count = pickle.loads(pickle.dumps(count_parameters(nn.Sequential(nn.Linear(4, 3)))))
    assert (count, count.components) == (15, {"0": 15})
