"""`tcpvit train` and `tcpvit eval` as users type them."""

from __future__ import annotations

import json

import pytest
from PIL import Image

import tcpvit
from tcpvit import cli
from tcpvit.cli.shortcuts import overrides_of
from tcpvit.cli.train import _recipe_for
from tcpvit.inference import load_model
from tcpvit.inference.evaluate import recipe_for
from tcpvit.training import load_recipe
from tcpvit.training.recipe import known_keys


@pytest.fixture
def run(monkeypatch, capsys, tmp_path, recipe):
    """Run a command line beside a file `small.yaml`: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(recipe.to_yaml())

    def run(*args: str) -> tuple[int, str, str]:
        code = cli.main(args)
        return code, *capsys.readouterr()

    return run


def test_train_evaluate_and_the_same_numbers(run, tmp_path):
    code, out, err = run("train", "small.yaml", "--name", "a")
    assert (code, err) == (0, "")
    assert "epoch 2/2, train loss" in out
    assert "runs/a/best" in out
    measured = json.loads((tmp_path / "runs" / "a" / "result.json").read_text())
    code, out, err = run("eval", "runs/a", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["data"] == "digits-on-photos/test"
    assert (found["top1"], found["loss"]) == (measured["test"]["top1"], measured["test"]["loss"])
    assert found["confusion"] == measured["test"]["confusion"]

    code, out, _ = run("eval", "runs/a", "--part", "val", "--weights", "last")
    assert code == 0
    assert f"{100 * measured['last']['val_top1']:.1f} %" in out

    folder = run(
        "eval", "runs/a/best", "--dataset", "digits-on-photos", "--set", "data.options.sizes=[40,20,20]", "--json"
    )
    assert json.loads(folder[1])["loss"] == found["loss"]


def write_images(folder, numbers) -> None:
    """Wide images of two classes; which one it is shows outside of the middle square."""
    for name, shade in (("dark", 0), ("light", 255)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in numbers:
            image = Image.new("RGB", (96, 32), (shade, shade, number))
            image.paste((99, 99, 99), (32, 0, 64, 32))
            image.save(folder / name / f"{number}.png")


def test_a_folder_is_measured_as_it_was_seen_in_training(run, tmp_path):
    write_images(tmp_path / "mine", range(20))
    write_images(tmp_path / "other", range(30, 40))
    words = ["data.options={fit: squash}", "schedule.epochs=8", "augment.erase=0", "augment.mixup=0"]
    sets = [word for each in (*words, "data.image_size=32", "optimizer.ema=0") for word in ("--set", each)]
    assert run("train", "small.yaml", "--set", "data.name=folder:mine", *sets, "--name", "a", "--quiet")[0] == 0
    code, out, _ = run("eval", "runs/a", "--dataset", "folder:other", "--json")
    assert (code, json.loads(out)["top1"]) == (0, 1.0)
    assert json.loads(run("eval", "runs/a", "--json")[1])["notes"] == []
    write_images(tmp_path / "mine", range(20, 24))
    (note,) = json.loads(run("eval", "runs/a", "--json")[1])["notes"]
    assert note == "these are not the images of runs/a/data.json: some may have been trained on"
    code, _, err = run("train", "--resume", "runs/a", "--set", "schedule.epochs=9")
    assert code == 1
    assert "the images are not those that runs/a started with" in err


def test_what_an_evaluation_skips_is_said(run, tmp_path):
    write_images(tmp_path / "mine", range(20))
    sets = (
        "data.name=folder:mine",
        "data.options={stream: true, on_bad: skip}",
        "data.image_size=32",
        "data.workers=0",
    )
    words = [word for each in (*sets, "schedule.epochs=1") for word in ("--set", each)]
    assert run("train", "small.yaml", *words, "--name", "a", "--quiet")[0] == 0
    broken = tmp_path / "mine" / "dark" / "3.png"
    broken.write_bytes(broken.read_bytes()[:-30])
    counts, notes = zip(
        *((found["images"], found["notes"]) for found in (part_of(run, part) for part in ("train", "test"))),
        strict=True,
    )
    assert sum(counts) == 39
    (note,) = [note for of_part in notes for note in of_part]
    assert note.startswith("1 of ")
    assert "3.png" in note


def part_of(run, part: str) -> dict:
    return json.loads(run("eval", "runs/a", "--part", part, "--json")[1])


def test_json_is_alone_on_stdout(run):
    code, out, err = run("train", "small.yaml", "--name", "b", "--json", "--set", "schedule.epochs=1")
    assert code == 0
    result = json.loads(out)
    assert result["recipe"]["schedule"]["epochs"] == 1
    assert "epoch 1/1" in err


def test_a_run_without_a_name_gets_one(run, tmp_path):
    assert run("train", "small.yaml", "--quiet", "--set", "schedule.epochs=1")[0] == 0
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["small-tcp_vit_cifar-digits-on-photos-0"]


def test_a_preset_is_measured_untrained(run):
    code, out, _ = run(
        "eval", "tcp_vit_cifar", "--dataset", "digits-on-photos", "--set", "data.options.sizes=[10,10,20]"
    )
    assert code == 0
    assert "20 images of digits-on-photos/test" in out


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["train"], "tell what to train: a recipe, as `tcpvit train demo`, a --model, --data, --scene"),
        (["train", "demo", "--resume", "runs/a"], "a recipe, a --task and a run to --resume exclude each other"),
        (["train", "--resume", "runs/none"], "runs/none holds no run (it has no config.yaml)"),
        (["train", "--resume", "runs/none", "--name", "b"], "leave --name and --overwrite out"),
        (["train", "demmo"], "no recipe is called 'demmo', nor is it a YAML file; did you mean 'demo'?"),
        (["train", "none.yaml"], "No such file or directory: none.yaml"),
        (["train", "demo", "--set", "learning_rate=1"], "a recipe has no key 'learning_rate'"),
        (["train", "demo", "--set", "model.options.img_size=64"], "those of digits-on-photos/train have 32×32; resize"),
        (["train", "demo", "--set", "data.options.sizes=64"], "data.options.sizes should be "),
        (
            ["train", "demo", "--set", "data.options.train_size=abc"],
            "train_size should be a whole number of at least 1 or null",
        ),
        (
            ["train", "demo", "--set", "data.options.stratified=maybe"],
            "stratified should be true or false",
        ),
        (["train", "demo", "--set", "data.name=cifar11"], "did you mean 'cifar10'?"),
        (["train", "paper-classification", "--set", "data.root=empty"], "empty"),
        (["eval", "runs/none", "--dataset", "cifar10"], "'runs/none' is no run folder, no saved model and no preset"),
        (
            ["eval", "tcp_vit_cifar", "--data", "digits-on-photos", "--set", "seed=1"],
            "can be measured with other data.* keys, device or precision, got 'seed=1'",
        ),
        (["eval", "tcp_vit_cifar"], "tcp_vit_cifar does not say what to measure it on; add --data NAME"),
    ],
)
def test_what_the_user_can_mend_is_one_sentence(run, tmp_path, args, sentence):
    code, out, err = run(*args)
    assert (code, out) == (1, "")
    assert sentence in err
    assert err.startswith("tcpvit: ")
    assert err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_another_set_is_read_as_the_model_was_trained_and_in_batches_of_its_recipe():
    """tcp_vit_pet was trained on squashed images, which the record beside its weights does not say."""
    data = recipe_for(load_model("tcp_vit_pet"), "folder:pets").data
    assert (data.name, data.options, data.image_size, data.eval_batch_size) == (
        "folder:pets", {"fit": "squash"}, 128, 64,
    )  # fmt: skip


@pytest.mark.parametrize(("text", "sentence"), [("{", "holds no JSON"), ("{}", "does not say task, classes, image_sh")])
def test_a_damaged_record_beside_a_model_is_named(run, tmp_path, text, sentence):
    tcpvit.save_pretrained(tcpvit.create_model("tcp_vit_cifar"), tmp_path / "saved")
    (tmp_path / "saved" / "preprocessing.json").write_text(text)
    code, _, err = run("eval", "saved", "--dataset", "digits-on-photos")
    assert code == 1
    assert "saved/preprocessing.json" in err
    assert sentence in err


def test_a_run_without_weights_yet_says_so(run, tmp_path, recipe):
    (tmp_path / "runs" / "c").mkdir(parents=True)
    (tmp_path / "runs" / "c" / "config.yaml").write_text(recipe.to_yaml())
    with pytest.raises(ValueError, match="has no best weights yet; resume it with `tcpvit train --resume"):
        load_model("runs/c")


def test_short_forms_are_keys_of_the_recipe(run, tmp_path):
    words = ["--model", "std_vit_cifar", "--epochs", "1", "--lr", "2e-3", "--batch-size", "8", "--device", "cpu"]
    bare = ["--set", "sizes=[40, 20, 20]", "--set", "depth=1"]
    assert run("train", "demo", *words, *bare, "--name", "a", "--quiet")[0] == 0
    recipe = load_recipe(tmp_path / "runs" / "a" / "config.yaml")
    assert (recipe.model.name, recipe.schedule.epochs, recipe.optimizer.lr) == ("std_vit_cifar", 1, 0.002)
    assert (recipe.data.batch_size, recipe.device, recipe.model.options) == (8, "cpu", {"depth": 1})


def test_another_set_comes_with_its_own_options_and_the_same_one_keeps_them():
    recipe = load_recipe("paper-classification")
    assert recipe.override(overrides_of(recipe, {"data": "cifar10"}, [])).data.options == {"split": "paper"}
    assert recipe.override(overrides_of(recipe, {"data": "svhn"}, ["train_size=9"])).data.options == {"train_size": 9}


def test_without_a_recipe_the_model_or_the_data_say_which():
    assert _recipe_for(None, "tcp_vit_pet", None) == "paper-segmentation"
    assert _recipe_for(None, "tcp_vit_cifar", "folder:x") == "tuned-classification"
    assert _recipe_for(None, None, "folder:x") == "tuned-classification"
    assert _recipe_for(None, "tcp_vit_volume_segmenter", "volumes:x") == "volumes"
    assert _recipe_for(None, "tcp_vit_video_small", None) == _recipe_for(None, None, "clips:x") == "clips"
    assert _recipe_for(None, None, None) is None


@pytest.mark.parametrize(
    ("args", "code", "sentence"),
    [
        (["--lr", "0.1", "--set", "lr=0.2"], 1, "--lr 0.1 and --set lr=0.2 disagree; give one of them"),
        (["--data", "svhn", "--set", "data.name=stl10"], 1, "--data svhn and --set data.name=stl10 disagree"),
        (["--weight-decay", "0.1"], 2, "but it is a key of the recipe: --set optimizer.weight_decay=VALUE (see tcpvit"),
        (["--attention", "joint"], 2, "but it is a key of the recipe: --set model.options.attention=VALUE"),
        (["--xyzzy", "1"], 2, "No such option: --xyzzy (see tcpvit train --help)"),
        (["optimizer.lr=0.1"], 2, "to change the recipe write --set optimizer.lr=0.1 (see tcpvit train --help)"),
    ],
)
def test_options_that_disagree_or_are_unknown(run, args, code, sentence):
    found, out, err = run("train", "demo", *args)
    assert (found, out) == (code, "")
    assert sentence in err
    assert err.count("\n") == 1


def test_the_same_value_twice_is_no_conflict():
    recipe = load_recipe("demo")
    assert recipe.override(overrides_of(recipe, {"lr": 0.5}, ["optimizer.lr=5e-1"])).optimizer.lr == 0.5


def test_keys_are_listed_with_their_values_and_meanings(run, tmp_path):
    code, out, err = run("train", "demo", "--keys", "--json", "--lr", "0.5")
    assert (code, err) == (0, "")
    rows = {row["key"]: row for row in json.loads(out)["keys"]["rows"]}
    assert list(rows) == known_keys()
    assert rows["optimizer.lr"]["value"] == "0.5"
    assert rows["data.batch_size"] == {
        "key": "data.batch_size",
        "value": "32",
        "meaning": "images of one optimiser step, over all processes and accumulation",
    }
    assert rows["model.options"]["value"] == "{}"
    assert rows["data.image_size"]["value"] == "null"
    assert all(row["meaning"] for row in rows.values())
    code, out, _ = run("train", "--keys")
    assert code == 0
    assert "optimizer.weight_decay" in out
    assert not (tmp_path / "runs").exists()
