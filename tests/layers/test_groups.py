"""Parameter groups: every parameter in one group, with the right decay and rate."""

import math

import pytest
import torch

import tcpvit
from tcpvit.layers.groups import parameter_groups, slice_weight_tubes, undecayed_names


@pytest.mark.parametrize("name", ["std_vit_cifar", "tcp_vit_cifar"])
def test_every_parameter_is_in_one_group(name):
    model = tcpvit.create_model(name)
    groups = parameter_groups(model, 0.1, 0.05, "full")
    names = [n for group in groups for n in group["names"]]
    assert sorted(names) == sorted(n for n, _ in model.named_parameters())
    torch.optim.AdamW(groups)


def test_matrices_decay_and_nothing_else():
    options = {"coupling": ("mix", "low_rank:2", "partial:0.25"), "transform": "learned", "embed_dim": 96}
    model = tcpvit.create_model("tcp_vit_cifar", **options)
    decayed = {n for n, _ in model.named_parameters()} - undecayed_names(model)
    endings = {n.split(".")[-1] for n in decayed}
    assert endings == {"weight_hat", "u_hat", "v_hat", "dense_hat", "weight"}  # the last: the head
    assert not any("norm" in n or "embed.pos" in n or "transform" in n for n in decayed)
    assert model.no_weight_decay() == undecayed_names(model)


@pytest.mark.parametrize(("rule", "factor"), [("none", 1), ("sqrt", math.sqrt(3)), ("full", 3), (2.5, 2.5)])
def test_slice_weights_learn_faster_by_the_rule(rule, factor):
    model = tcpvit.create_model("tcp_vit_cifar")
    rates = {n: g["lr"] for g in parameter_groups(model, 0.1, 0.0, rule) for n in g["names"]}
    assert rates["blocks.0.attn.qkv.weight_hat"] == pytest.approx(0.1 * factor)
    assert rates["head.weight"] == rates["blocks.0.attn.qkv.bias_hat"] == rates["embed.pos_embed"] == pytest.approx(0.1)


def test_a_standard_vit_has_no_slice_weights():
    assert not slice_weight_tubes(tcpvit.create_model("std_vit_cifar"))


def test_frozen_parameters_are_left_out_and_unknown_rules_refused():
    model = tcpvit.create_model("tcp_vit_cifar")
    model.head.requires_grad_(False)
    assert not any("head.weight" in g["names"] for g in parameter_groups(model, 0.1, 0.0))
    with pytest.raises(ValueError, match="slice_lr_scale"):
        parameter_groups(model, 0.1, 0.0, "cubic")
