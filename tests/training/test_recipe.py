"""Recipes: files, overrides, types, and errors that name the key."""

from __future__ import annotations

import re

import pytest
import yaml

from tcpvit.training import Recipe, list_recipes, load_recipe
from tcpvit.training.recipe import SHIPPED, known_keys


def test_the_shipped_recipes():
    papers = ["paper-classification", "paper-segmentation"]
    assert list_recipes() == [
        "cifar-classification",
        "clips",
        "demo",
        *papers,
        "scene",
        "small-classification",
        "tuned-classification",
        "volumes",
    ]


@pytest.mark.parametrize("name", list_recipes())
def test_every_recipe_loads_and_states_its_command_time_and_result(name):
    recipe = load_recipe(name)
    assert Recipe.from_dict(yaml.safe_load(recipe.to_yaml())) == recipe
    head = "".join(re.findall(r"^#.*\n", (SHIPPED / f"{name}.yaml").read_text(), flags=re.MULTILINE))
    assert f"tcpvit train {name}" in head
    assert "# expected:" in head
    assert "# time:" in head


def test_the_papers_numbers():
    cls, seg = load_recipe("paper-classification"), load_recipe("paper-segmentation")
    found = [
        (r.optimizer.lr, r.optimizer.weight_decay, r.data.batch_size, r.optimizer.clip_norm, r.schedule.epochs)
        for r in (cls, seg)
    ]
    assert found == [(0.01, 0.01, 256, 1.0, 150), (5e-4, 0.01, 16, 1.0, 150)]
    assert (cls.augment.shift, cls.augment.flip, cls.schedule.warmup_epochs) == (4, 0.5, 0.0)
    assert (seg.model.name, seg.data.name, seg.data.options) == ("tcp_vit_pet", "oxford-pet", {"split": "paper"})


def test_a_path_is_a_recipe_too(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("optimizer: {lr: 0.5}\nseed: 3\n")
    assert load_recipe(file) == Recipe().override(["optimizer.lr=0.5", "seed=3"])


def test_overrides_reach_every_level_and_take_the_declared_type():
    recipe = Recipe().override(
        [
            "optimizer.lr=3e-3",
            "optimizer.betas=[0.8, 0.95]",
            "optimizer.slice_lr_scale=full",
            "data.image_size=null",
            "model.options.depth=2",
            "model.options.drop_rate=1e-1",
            "compile=true",
        ]
    )
    assert recipe.optimizer.lr == 0.003
    assert recipe.optimizer.betas == (0.8, 0.95)
    assert recipe.optimizer.slice_lr_scale == "full"
    assert recipe.override(["optimizer.slice_lr_scale=2"]).optimizer.slice_lr_scale == 2.0
    assert recipe.model.options == {"depth": 2, "drop_rate": 0.1}
    assert recipe.compile is True


@pytest.mark.parametrize("key", known_keys())
def test_every_key_can_be_overridden_with_its_own_value(key):
    value = Recipe().to_dict()
    for name in key.split("."):
        value = value[name]
    assert Recipe().override([f"{key}={yaml.safe_dump(value, default_flow_style=True).split(chr(10))[0]}"]) == Recipe()


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("optimiser.lr=1", "a recipe has no key 'optimiser.lr'; did you mean 'optimizer.lr'?"),
        ("lrr=1", "a recipe has no key 'lrr'; did you mean 'optimizer.lr'?"),
        ("epoch=1", "a recipe has no key 'epoch'; did you mean 'schedule.epochs'?"),
        ("qqq=1", "a recipe has no key 'qqq'; `tcpvit train --keys` lists them"),
        ("optimizer=1", "a recipe has no key 'optimizer'"),
        ("optimizer.lr", "an override is KEY=VALUE, as optimizer.lr=0.003, got 'optimizer.lr'"),
        ("optimizer.lr=fast", "optimizer.lr should be a number of at least 0, got 'fast'"),
        ("optimizer.lr=-1", "optimizer.lr should be a number of at least 0, got -1"),
        ("optimizer.lr=.nan", "optimizer.lr should be a finite number of at least 0, got nan"),
        ("schedule.epochs=1.5", "schedule.epochs should be a whole number of at least 1, got 1.5"),
        ("schedule.epochs=true", "schedule.epochs should be a whole number of at least 1, got True"),
        ("compile=1", "compile should be true or false, got 1"),
        ("precision=half", "precision should be one of float32, bfloat16, float16, got 'half'"),
        (
            "optimizer.slice_lr_scale=cube",
            "slice_lr_scale should be a number greater than 0 or one of none, sqrt, full, got 'cube'",
        ),
        ("optimizer.betas=[0.9]", "optimizer.betas should be a list of 2, got [0.9]"),
        (
            "data.image_size=big",
            "data.image_size should be a whole number of at least 1 or a list of 2 or a list of 3 or null, got 'big'",
        ),
        ("data.image_size=0", "data.image_size should be a whole number of at least 1 or a list of 2"),
        ("augment.flip=2", "augment.flip should be a number of at least 0 and at most 1, got 2"),
        ("checkpoints.keep=1", "checkpoints.keep should be a whole number of at least 2, got 1"),
        ("optimizer.ema=1", "optimizer.ema should be a number of at least 0 and less than 1, got 1"),
        ("model.options={", "'{' is no valid YAML value"),
    ],
)
def test_errors_say_what_came_and_what_was_expected(word, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        Recipe().override([word])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("optimizer: {lrr: 1}", "a recipe has no key 'optimizer.lrr'; did you mean 'optimizer.lr'?"),
        ("optimizer: 3", "optimizer should be keys and values, got 3"),
        ("- a", "should hold keys such as"),
        ("a: [", "is no valid YAML"),
    ],
)
def test_a_bad_file_is_named(tmp_path, text, sentence):
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(ValueError, match=re.escape(sentence)):
        load_recipe(file)


def test_an_unknown_recipe_names_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'demo'"):
        load_recipe("dmeo")


def test_an_option_of_a_set_with_the_name_of_another_key_is_written_in_full():
    recipe = load_recipe("clips", ["data.name=clips:x", "data.options.colour=false"])
    assert recipe.data.options == {"colour": False}
    with pytest.raises(ValueError, match=r"may mean augment\.colour or data\.options\.colour"):
        recipe.override(["colour=false"])
