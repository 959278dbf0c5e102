"""What configs and files refuse, and the one sentence that says so."""

from __future__ import annotations

import dataclasses
import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tcpvit import TensorizeConfig
from tcpvit.data import Augment, load_dataset
from tcpvit.files import read_json
from tcpvit.memory import TooLarge
from tcpvit.models import SwinConfig, create_model, from_pretrained, model_config
from tcpvit.models.size import check_size, weight_bytes
from tcpvit.overrides import read_value
from tcpvit.training import Recipe, load_recipe
from tcpvit.training.preprocessing import read_preprocessing
from tcpvit.training.recipe import OptimizerRecipe
from tcpvit.validation import Count, Number, Rate, Seed, checked
from tcpvit.yaml_text import read_yaml

NO_NUMBERS = [True, None, "", "fast", [1.0], {"a": 1}, "inf", "nan", float("nan"), float("inf"), -float("inf"), "1e999"]


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_and_its_text_are_the_same(value):
    assert checked(value, Number, "x") == checked(repr(value), Number, "x") == value


@pytest.mark.parametrize("value", NO_NUMBERS)
def test_what_is_no_number(value):
    with pytest.raises(ValueError, match=r"^optimizer\.lr should be a (finite )?number of at least 0, got "):
        Recipe.from_dict({"optimizer": {"lr": value}})


@given(st.one_of(st.floats(), st.integers(), st.booleans(), st.text(), st.none()))
def test_a_rate_lies_in_its_range_or_is_refused(value):
    try:
        found = checked(value, Rate, "drop")
    except ValueError:
        with pytest.raises(ValueError, match=r"^drop should be a (finite )?number of at least 0 and less than 1, got "):
            checked(value, Rate, "drop")
    else:
        assert 0 <= found < 1
        assert not isinstance(value, bool)


@given(st.one_of(st.floats(), st.booleans(), st.text(), st.integers(max_value=0), st.integers(min_value=2**31)))
def test_a_count_is_a_whole_number_from_1(value):
    with pytest.raises(ValueError, match=r"^depth should be a whole number of at least 1"):
        checked(value, Count, "depth")


def test_whole_numbers_of_numpy_are_whole_numbers():
    found = model_config("tcp_vit_cifar", depth=np.int64(3)).depth
    assert (found, type(found)) == (3, int)
    assert checked(2**32 - 1, Seed, "seed") == 2**32 - 1


@pytest.mark.parametrize(
    "word",
    [
        "data.workers=-1",
        "data.batch_size=0",
        "data.eval_batch_size=1.5",
        "optimizer.weight_decay=.inf",
        "optimizer.eps=0",
        "optimizer.betas=[0.9, 1]",
        "optimizer.label_smoothing=-0.1",
        "optimizer.slice_lr_scale=-1",
        "schedule.warmup_epochs=-1",
        "schedule.final_lr=1.1",
        "augment.colour=2",
        "augment.mixup=.nan",
        "seed=-1",
        "device=3",
        "model.name=3",
    ],
)
def test_nonsense_in_a_recipe_is_refused(word):
    key = re.escape(word.partition("=")[0])
    with pytest.raises(ValueError, match=rf"^{key}(\[1\])? should be .*, got "):
        Recipe().override([word])


@pytest.mark.parametrize("name", ["drop_rate", "attn_drop_rate", "drop_path_rate"])
@pytest.mark.parametrize("value", [2, 1, -0.1, float("nan"), True])
def test_nonsense_in_a_model_is_refused(name, value):
    with pytest.raises(ValueError, match=f"^{name} should be a (finite )?number of at least 0 and less than 1, got "):
        model_config("tcp_vit_cifar", **{name: value})


def test_a_config_stays_a_frozen_dataclass():
    recipe = OptimizerRecipe(lr=0.1)
    assert dataclasses.replace(recipe, lr="3e-3").lr == 0.003
    assert dataclasses.asdict(Augment(flip=0.5))["flip"] == 0.5
    assert [field.name for field in dataclasses.fields(SwinConfig)][:2] == ["kind", "img_size"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipe.lr = 1.0
    with pytest.raises(ValueError, match=r"^lr should be a number of at least 0, got -1$"):
        dataclasses.replace(recipe, lr=-1)
    with pytest.raises(ValueError, match="'lrr' is no option of OptimizerRecipe; did you mean 'lr'"):
        OptimizerRecipe(lrr=1)
    with pytest.raises(ValueError, match=r"^kind should be one of std, tcp, got 'tpc'; did you mean 'tcp'"):
        SwinConfig("tpc")


def laughs(levels: int) -> str:
    lines = ["a0: &a0 [1]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, levels))]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (laughs(9), "its aliases stand for more than 100,000 values"),
        ("a: &a [*a]", "an alias leads to what it is a part of"),
        ("[" * 2000, "more than 50 deep"),
        ("{a: {b: 1, b: 2}}", "the key 'b' stands twice, in line 1"),
        ("a: !!python/object/apply:os.getcwd []", "could not determine a constructor"),
        ("{[1]: 2}", "unhashable"),
        ("1" * 5000, "digits"),
        ("#" * 10_000_001, "10,000,001 characters"),
    ],
)
def test_hostile_yaml_is_one_sentence(text, said):
    with pytest.raises(ValueError, match=said):
        read_yaml(text)
    with pytest.raises(ValueError, match="is no valid YAML value"):
        read_value(text)


def test_a_few_aliases_are_fine(tmp_path):
    (tmp_path / "mine.yaml").write_text("evaluation: {every: &n 2}\ncheckpoints: {every_epochs: *n}\n")
    recipe = load_recipe(tmp_path / "mine.yaml")
    assert (recipe.evaluation.every, recipe.checkpoints.every_epochs) == (2, 2)


def test_json_is_bounded_in_depth(tmp_path):
    for number in (60, 100_000):
        (tmp_path / "deep.json").write_text("[" * number + "]" * number)
        with pytest.raises(ValueError, match=r"deep\.json holds no JSON"):
            read_json(tmp_path / "deep.json")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"mean": ["a"]}, r"mean\[0\] should be a number"),
        ({"mean": [0.5]}, "a mean and a std for each of 3 channels"),
        ({"image_shape": [3, 32]}, "image_shape should be a list of 3"),
        ({"image_shape": [3, 10**9, 10**9]}, "would need about"),
        ({"task": "detection"}, "task should be one of classification, segmentation"),
        ({"classes": "abc"}, "classes should be a list"),
        ({"fit": {}}, "fit should be one of crop, squash"),
    ],
)
def test_preprocessing_of_another_shape_is_named(tmp_path, change, said):
    good = {"task": "classification", "classes": ["a"], "image_shape": [3, 32, 32], "mean": [0.5] * 3, "std": [1] * 3}
    path = tmp_path / "preprocessing.json"
    path.write_text(json.dumps(good))
    assert read_preprocessing(tmp_path) == good
    path.write_text(json.dumps({**good, **change}))
    with pytest.raises(ValueError, match=said):
        read_preprocessing(tmp_path)
    path.write_text("[]")
    with pytest.raises(ValueError, match="should be keys and values"):
        read_preprocessing(tmp_path)


@pytest.mark.parametrize(
    "make",
    [
        lambda: create_model("tcp_vit_cifar", embed_dim=12 * 10**8),
        lambda: create_model("tcp_vit_cifar", depth=10**9),
        lambda: create_model("tcp_vit_cifar", img_size=10**6),
        lambda: create_model("tcp_vit_cifar", embed_dim=4 * 10**8, tube=10**8),
        lambda: create_model("tcp_vit_cifar", num_classes=2 * 10**9),
        lambda: create_model("tcp_vit_cifar", coupling="low_rank:1000000000"),
        lambda: create_model("tcp_swin_tiny", depths=(2, 2, 6, 10**9)),
        lambda: create_model("tcp_vit_pet", decoder={"channels": [10**9]}),
        lambda: TensorizeConfig(tube=10**9),
        lambda: load_dataset("digits-on-photos", sizes=(10**9, 10, 10)),
        lambda: load_dataset("digits-on-photos", image_size=10**6),
    ],
)
@pytest.mark.timeout(10)
def test_what_does_not_fit_into_memory_is_refused_before_it_is_made(make):
    with pytest.raises(TooLarge, match=r"would need about .* [TPEZY]iB, this machine has .*; |would need about .* GiB"):
        make()


def test_a_saved_config_beyond_memory_is_refused(tmp_path):
    create_model("tcp_vit_cifar").save_pretrained(tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    for options, said in (({"depth": 10**9}, "would need about"), ({"depth": [4]}, "options.depth should be a whole")):
        content["options"] |= options
        (tmp_path / "config.json").write_text(json.dumps(content))
        with pytest.raises(ValueError, match=said):
            from_pretrained(tmp_path)


def test_modules_take_memory_too():
    narrow = model_config("tcp_vit_cifar", depth=1_000_000, embed_dim=3, num_heads=1)
    assert weight_bytes(narrow) < 10**9
    with pytest.raises(ValueError, match="this model would need about"):
        check_size(narrow, available=10**9)


@pytest.mark.parametrize("name", ["std_vit_cifar", "tcp_vit_cifar", "tcp_vit_pet", "std_swin_tiny", "tcp_deit_tiny"])
def test_the_size_of_a_model_is_predicted_from_below(name):
    counted = sum(p.numel() for p in create_model(name).parameters())
    assert 0.85 * counted < weight_bytes(model_config(name)) / 4 <= counted
