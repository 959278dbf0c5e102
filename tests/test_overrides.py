"""One grammar of overrides in all verbs: how words are read, and what the keys and values mean."""

from __future__ import annotations

import re

import pytest

from tcpvit import cli
from tcpvit.models import ViTConfig, model_config
from tcpvit.overrides import find_key, nested, parse, read_value
from tcpvit.training import Recipe
from tcpvit.validation import within


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("depth=8", 8),
        ("mlp_ratio=2", 2.0),
        ("mlp_ratio=2e0", 2.0),
        ("qkv_bias=False", False),
        ("qkv_bias=true", True),
        ("tube=none", None),
        ("tube=null", None),
        ("tube=6", 6),
        ("patch_embed=none", "none"),
        ("img_size=64", 64),
        ("img_size=64x32", (64, 32)),
        ("img_size=[64, 32]", (64, 32)),
        ("coupling=low_rank:4+shuffle", ("low_rank:4", "shuffle")),
        ("coupling=[low_rank:4, shuffle]", ("low_rank:4", "shuffle")),
        ("coupling=none", ()),
    ],
)
def test_a_model_option_has_the_type_of_its_field(text, value):
    options = nested(parse([text]))
    (key,) = options
    config = ViTConfig.from_dict({"kind": "tcp", "img_size": 64, "patch_size": 4, "embed_dim": 48, **options})
    read = getattr(config, key)
    assert read == value
    assert type(read) is type(value)


SIZE = "model.options.img_size should be a whole number of at least 1 or a list of 2 or a list of 3"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("depth=eight", "model.options.depth should be a whole number of at least 1, got 'eight'"),
        ("qkv_bias=1", "model.options.qkv_bias should be true or false, got 1"),
        ("img_size=big", f"{SIZE}, got 'big'"),
        ("img_size=64x32x3x2", f"{SIZE}, got '64x32x3x2'"),
    ],
)
def test_a_value_of_another_type_is_one_sentence(text, said):
    with pytest.raises(ValueError, match=re.escape(said)), within("model.options"):
        model_config("tcp_vit_cifar", **nested(parse([text])))


def test_a_group_of_options_has_no_value_of_its_own():
    with pytest.raises(ValueError, match=r"^backbone is a group of options, as backbone\.kind, got backbone=3$"):
        model_config("tcp_vit_pet", **nested(parse(["backbone=3"])))


@pytest.mark.parametrize("text", ["3e-3", "3E-3", "+3e-03", ".003e0", "3.e-3", "0.003"])
def test_a_number_may_have_an_exponent(text):
    assert read_value(text) == 0.003


@pytest.mark.parametrize("word", ["depth", "=3", " =3"])
def test_a_word_without_a_key_or_a_value_is_refused(word):
    with pytest.raises(ValueError, match=r"^an override is KEY=VALUE, as optimizer\.lr=0\.003, got "):
        parse([word])


def test_the_value_may_hold_an_equals_sign():
    assert parse(["data.root=a=b"]) == [("data.root", "a=b")]


@pytest.mark.parametrize(
    ("short", "full"),
    [
        ("lr=0.1", "optimizer.lr"),
        ("epochs=3", "schedule.epochs"),
        ("batch_size=8", "data.batch_size"),
        ("seed=1", "seed"),  # the recipe's, not the set's
        ("image_size=32", "data.image_size"),
        ("attention=joint", "model.options.attention"),
        ("level=hard", "data.options.level"),
        ("model.options.attention=joint", "model.options.attention"),
    ],
)
def test_a_short_key_that_means_one_thing_is_enough(short, full):
    value = short.partition("=")[2]
    assert Recipe().override([short]) == Recipe().override([f"{full}={value}"])


def test_the_options_are_those_of_the_model_and_the_set_that_are_chosen():
    recipe = Recipe().override(
        ["backbone.depth=2", "model.name=tcp_vit_pet", "data.name=oxford-pet", "drop_empty=true"]
    )
    assert recipe.model.options == {"backbone": {"depth": 2}}
    assert recipe.data.options == {"drop_empty": True}
    with pytest.raises(ValueError, match=r"a recipe has no key 'backbone\.depth'"):
        Recipe().override(["backbone.depth=2"])


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("name", "name may mean model.name or data.name; write the one you mean in full"),
        ("options.depth", "options.depth may mean model.options or data.options"),
        ("atention", "a recipe has no key 'atention'; did you mean 'model.options.attention'?"),
        ("weight-decay", "did you mean 'optimizer.weight_decay'?"),
    ],
)
def test_what_a_key_may_mean_is_said(key, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        Recipe().override([f"{key}=1"])


def test_a_key_inside_a_known_one_is_left_to_it():
    assert find_key("model.options.new.depth", ["model.options"], "a recipe") == "model.options.new.depth"


@pytest.mark.parametrize("key", ["attention", "model.options.attention"])
def test_every_verb_takes_both_forms(key, tmp_path, monkeypatch, capsys):
    """What was refused by one verb and needed by another."""
    monkeypatch.chdir(tmp_path)
    small = ["--set", "depth=1", "--set", "sizes=40x20x20", "--set", "epochs=1", "--set", f"{key}=joint", "--quiet"]
    assert cli.main(["train", "demo", "--name", "a", *small]) == 0
    assert "attention: joint" in (tmp_path / "runs" / "a" / "config.yaml").read_text()
    assert cli.main(["compare", "demo", "--name", "b", *small]) == 0
    assert "attention: joint" in (tmp_path / "runs" / "b" / "tcp-0" / "config.yaml").read_text()
    assert "attention" not in (tmp_path / "runs" / "b" / "std-0" / "config.yaml").read_text()
    assert cli.main(["compare", "demo", "--name", "c", *small[:-3], "--set-tcp", f"{key}=joint", "--quiet"]) == 0
    assert "attention: joint" in (tmp_path / "runs" / "c" / "tcp-0" / "config.yaml").read_text()
    capsys.readouterr()
    assert cli.main(["analyze", "tcp_vit_cifar", "--set", f"{key}=joint", "--json"]) == 0
    joint = capsys.readouterr().out
    assert cli.main(["analyze", "tcp_vit_cifar", "--json"]) == 0
    assert capsys.readouterr().out != joint
