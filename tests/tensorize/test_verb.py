"""`tcpvit tensorize` as people type it."""

from __future__ import annotations

import json

import pytest

import tcpvit
from tcpvit import cli

TINY = ["--option", "img_size=32", "--option", "depth=1", "--option", "embed_dim=24", "--option", "num_heads=2"]
DIGITS = "data.options={sizes: [48, 20, 20]}"


def run(capsys, *args):
    code = cli.main(["tensorize", *args])
    return code, *capsys.readouterr()


def test_a_model_of_timm(capsys, tmp_path):
    out = tmp_path / "converted"
    code, text, _ = run(capsys, "timm/vit_tiny_patch16_224", *TINY, "--out", str(out))
    assert code == 0
    assert "blocks.0.mlp.fc1" in text
    assert "head (the model's classifier)" in text
    assert tcpvit.from_pretrained(out).blocks[0].mlp.fc1.tube == 3


def test_json(capsys):
    code, text, _ = run(capsys, "std_vit_cifar", "--tube", "4", "--exclude", "*.fc2", "--json")
    assert code == 0
    content = json.loads(text)
    assert content["config"]["tube"] == 4
    assert {layer["status"] for layer in content["layers"] if layer["name"].endswith("fc2")} == {"excluded"}


def test_distil(capsys, tmp_path):
    settings = ["--set", DIGITS, "--set", "schedule.epochs=1", "--set", "data.batch_size=16"]
    options = ["--option", "depth=1", "--option", "patch_size=8", "--option", "embed_dim=24"]
    distil = ["--distill", "digits-on-photos", "--out", str(tmp_path / "run")]
    code, text, _ = run(capsys, "std_vit_cifar", *options, *distil, *settings, "--quiet")
    assert code == 0
    for words in ("original", "converted", "distilled", "digits-on-photos; the model is in"):
        assert words in text
    folder = tmp_path / "run" / "best"
    assert cli.main(["eval", str(folder), "--dataset", "digits-on-photos", "--set", DIGITS]) == 0
    capsys.readouterr()
    code, text, _ = run(capsys, str(folder), "--tube", "2")  # a saved model, converted already
    assert code == 0
    assert "is tensorised already" in text


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["std_vit_cifar", "--distill", "cifar10"], "add --out FOLDER"),
        (["std_vit_cifar", "--set", "seed=1"], "add --distill DATASET"),
        (["nobody/knows"], "is no model: give a preset"),
        (["std_vit_cifar", "--option", "depth"], "--option is KEY=VALUE"),
        (["std_vit_cifar", "--tube", "5", "--strict"], "the tube 5 does not fit patch_embed.proj (input width 48"),
    ],
)
def test_misuse(capsys, args, said):
    code, _, err = run(capsys, *args)
    assert code == 1
    assert said in err
