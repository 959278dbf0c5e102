"""Segmenters: the paper's components, and prediction equal to count and measurement for every option of a decoder."""

from __future__ import annotations

import json

import pytest

from tcpvit import cli
from tcpvit.analysis import count_flops, count_parameters, predict_flops, predict_parameters
from tcpvit.analysis.report import DECODER, EMBEDDING, ENCODER
from tcpvit.layers.kernels import ops
from tcpvit.models import DecoderConfig, Segmenter, SegmenterConfig, ViTConfig, create_model, model_config

STD = ViTConfig("std", img_size=16, patch_size=4, num_classes=0, depth=1)
TCP = ViTConfig("tcp", img_size=(16, 24), patch_size=8, embed_dim=48, num_classes=0, depth=1)
CONFIGS = {
    "std": SegmenterConfig(STD),
    "std, few stages": SegmenterConfig(STD, DecoderConfig(channels=(6,)), num_classes=7),
    "std, many stages": SegmenterConfig(STD, DecoderConfig(channels=(6, 6, 6, 6, 6))),
    "tcp": SegmenterConfig(TCP, DecoderConfig("tcp", channels=(9, 6, 6))),
    "tcp mix": SegmenterConfig(TCP, DecoderConfig("tcp", channels=(9, 6), coupling=("mix", "shuffle"))),
    "tcp low_rank": SegmenterConfig(TCP, DecoderConfig("tcp", channels=(9, 6), coupling=("low_rank:2", "mix"))),
    "tcp partial": SegmenterConfig(TCP, DecoderConfig("tcp", channels=(9, 6), coupling=("partial:0.4", "low_rank:1"))),
    "tcp spatial": SegmenterConfig(TCP, DecoderConfig("tcp", channels=(9, 6, 6), activation_domain="spatial")),
    "tcp learned": SegmenterConfig(TCP, DecoderConfig("tcp", channels=(9, 6, 6), transform="learned")),
    "tcp decoder of a std backbone": SegmenterConfig(STD, DecoderConfig("tcp", channels=(8, 4), tube=4)),
}


@pytest.fixture
def unfused(monkeypatch):
    """Without our own attention kernel, so that the counter sees the matrix products one by one."""
    monkeypatch.setattr(ops, "can_use_attention", lambda *_: False)


def test_the_papers_table():
    expected = {"std_vit_pet": (86_592, 1_188_480, 295_906), "tcp_vit_pet": (53_632, 402_048, 295_906)}
    for name, parts in expected.items():
        for count in (count_parameters(create_model(name)), predict_parameters(model_config(name))):
            decoder = [part for part in count.components if part.startswith(DECODER)]
            assert (count.sum(*EMBEDDING), count.sum(*ENCODER), count.sum(*decoder)) == parts
            assert count == sum(parts)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_prediction_is_the_count(config, unfused):
    model = Segmenter(config)
    predicted = {name: n for name, n in predict_parameters(config).components.items() if n}
    assert count_parameters(model).components == predicted
    work = {name: work.matrix for name, work in predict_flops(config).items() if work.matrix}
    assert count_flops(model).components == work


def test_segmenters_from_the_command_line(capsys):
    assert cli.main(["analyze", "std_vit_pet", "tcp_vit_pet", "--set", "backbone.attention=joint", "--json"]) == 0
    tables = json.loads(capsys.readouterr().out)
    rows = {row["component"]: row for row in tables["parameters"]["rows"]}
    assert rows["decoder"]["std_vit_pet counted"] == rows["decoder"]["tcp_vit_pet predicted"] == 295_906
    assert rows["total"]["ratio"] == 751_586 / 1_570_978
    assert cli.main(["models", "tcp_vit_pet*", "--json"]) == 0
    ratios = {row["model"]: row["of its Std twin"] for row in json.loads(capsys.readouterr().out)["models"]["rows"]}
    assert ratios["tcp_vit_pet_full"] == 557_136 / 1_570_978
    assert cli.main(["analyze", "tcp_vit_pet", "--set", "backbone.dept=2"]) == 1
    assert "did you mean 'depth'" in capsys.readouterr().err
