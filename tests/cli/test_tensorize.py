"""`tcpvit tensorize` as people type it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from PIL import Image

import tcpvit
from tcpvit import cli
from tcpvit.compat import repair_torchvision

TINY = ["--option", "img_size=32", "--option", "depth=1", "--option", "embed_dim=24", "--option", "num_heads=2"]
DIGITS = "data.options={sizes: [48, 20, 20]}"
SHORT = ["--set", DIGITS, "--set", "schedule.epochs=1", "--set", "data.batch_size=16", "--quiet"]
DISTIL = ["--distill", "digits-on-photos", *SHORT]
TIMM = ["timm/vit_tiny_patch16_224", *TINY, "--option", "num_classes=10"]


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


def test_a_used_folder(capsys, tmp_path):
    out = ["--out", str(tmp_path / "run")]
    code, text, _ = run(capsys, *TIMM, *DISTIL, *out)
    assert code == 0
    assert run(capsys, *TIMM, *DISTIL, *out)[:2] == (0, text)  # complete, of the same teacher, though that is drawn
    for words, said in (
        (["--transform", "haar"], "transform=dct, now it is haar"),
        (["--tube", "2"], "tube=3, now it is 2"),
        (["--option", "depth=2"], "options.depth=1, now it is 2"),
        (["--set", "schedule.epochs=2"], "schedule.epochs=1, now it is 2"),
    ):
        code, _, err = run(capsys, *TIMM, *DISTIL, *out, *words)
        assert code == 1
        assert f"was trained with {said}; replace it with --overwrite" in err
        assert err.count("\n") == 1
    code, _, err = run(capsys, *TIMM, *out)
    assert code == 1
    assert "holds a run" in err
    assert cli.main(["train", "--resume", out[1]]) == 1
    assert "go on by repeating the command that began it" in capsys.readouterr().err
    for original in (out[1], f"{out[1]}/best"):
        code, _, err = run(capsys, original, *DISTIL, *out, "--overwrite")
        assert code == 1
        assert "holds the original, which would be replaced" in err
    code, _, err = run(capsys, out[1], "--out", f"{out[1]}/best")
    assert code == 1
    assert "holds the original, which would be replaced" in err
    assert run(capsys, *TIMM, *DISTIL, *out, "--transform", "haar", "--overwrite")[0] == 0
    assert tcpvit.from_pretrained(tmp_path / "run" / "best").blocks[0].mlp.fc1.transform.name == "haar"


@pytest.fixture
def vit_of_transformers(tmp_path):
    repair_torchvision()
    import transformers

    sizes = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48}
    config = transformers.ViTConfig(image_size=32, num_labels=10, **sizes)
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path / "vit")
    return tmp_path / "vit"


def say_how_images_are_prepared(folder):
    about = {"image_processor_type": "ViTImageProcessor", "image_mean": [0.4] * 3, "image_std": [0.2] * 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(about))


def test_a_model_of_transformers_is_distilled_measured_and_predicts(capsys, tmp_path, vit_of_transformers):
    say_how_images_are_prepared(vit_of_transformers)
    model, image = f"transformers/{vit_of_transformers}", tmp_path / "a.png"
    Image.new("RGB", (40, 40), (200, 0, 0)).save(image)
    assert run(capsys, model, "--tube", "2", *DISTIL, "--out", str(tmp_path / "run"))[0] == 0
    assert run(capsys, model, "--tube", "2", "--out", str(tmp_path / "saved"))[0] == 0
    for folder in (tmp_path / "run", tmp_path / "saved"):
        assert cli.main(["eval", str(folder), "--dataset", "digits-on-photos", "--set", DIGITS]) == 0
        assert cli.main(["predict", str(folder), str(image), "--json"]) == 0
    found = json.loads(capsys.readouterr().out.rpartition("\n{")[2].join(["{", ""]))["found"][0]
    pixel = (torch.tensor([200.0, 0, 0]) / 255 - 0.4) / 0.2
    logits = tcpvit.from_pretrained(tmp_path / "saved")(pixel.view(1, 3, 1, 1).expand(1, 3, 32, 32)).logits
    assert found["labels"][0] == f"LABEL_{logits.argmax().item()}"
    assert found["probabilities"][0] == pytest.approx(logits.softmax(1).max().item(), abs=1e-5)


def test_a_saved_model_of_timm_knows_how_its_images_are_prepared(capsys, tmp_path):
    out, image = str(tmp_path / "saved"), tmp_path / "a.png"
    Image.new("RGB", (40, 40), (200, 0, 0)).save(image)
    assert run(capsys, *TIMM, "--out", out)[0] == 0
    about = json.loads((tmp_path / "saved" / "preprocessing.json").read_text())
    assert (about["mean"], about["image_shape"], about["classes"][-1]) == ([0.5] * 3, [3, 32, 32], "9")
    assert cli.main(["predict", out, str(image)]) == 0
    assert cli.main(["eval", out, "--dataset", "digits-on-photos", "--set", DIGITS]) == 0
    assert "the model was trained on the classes" not in capsys.readouterr().out
    code = cli.main(["eval", out, "--dataset", "digits-on-photos", "--set", DIGITS, "--set", "data.image_size=48"])
    assert code == 1
    assert "(Input height (48) doesn't match model (32)); resize them with --set data.image_size=32" in (
        capsys.readouterr().err
    )


def test_a_model_that_does_not_know_how_its_images_are_prepared(capsys, tmp_path, vit_of_transformers):
    out, image = str(tmp_path / "saved"), tmp_path / "a.png"
    Image.new("RGB", (40, 40)).save(image)
    assert run(capsys, f"transformers/{vit_of_transformers}", "--tube", "2", "--out", out)[0] == 0
    assert cli.main(["predict", out, str(image)]) == 1
    err = capsys.readouterr().err
    assert "does not say how its images are prepared; convert the model again" in err
    assert cli.main(["eval", out, "--dataset", "digits-on-photos", "--set", DIGITS]) == 0
    assert "how this model's images were normalised is not known" in capsys.readouterr().out


def test_what_is_wrong_is_said_before_the_conversion(capsys, tmp_path, monkeypatch):
    def never(*args, **options):
        raise AssertionError("it was converted")

    monkeypatch.setattr("tcpvit.cli.tensorize.tensorize_", never)
    out = ["--out", str(tmp_path / "run")]
    for words, said in (
        (["--distill", "digits"], "there is no set 'digits'"),
        ([*DISTIL, "--set", "schedule.epoch=1"], "a recipe has no key 'schedule.epoch'"),
        ([*DISTIL, "--option", "num_classes=7"], "build it with num_classes=10"),
        (
            [*DISTIL, "--set", "data.image_size=48"],
            "--set data.image_size=32, or build the model for them with --option",
        ),
    ):
        code, _, err = run(capsys, *TIMM, *out, *words)
        assert code == 1
        assert said in err
    assert not (tmp_path / "run").exists()


def test_as_a_program_without_a_traceback(tmp_path):
    command = [sys.executable, "-m", "tcpvit", "tensorize", "timm/vit_tiny_patch16_224", "--option", "depth=1"]
    distil = ["--distill", "digits-on-photos", "--set", DIGITS, "--out", "run"]
    done = subprocess.run(
        [*command, *distil], cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "resize them with --set data.image_size=224, or build the model for them with --option img_size=32" in (
        done.stderr
    )


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["std_vit_cifar", "--distill", "cifar10"], "add --out FOLDER"),
        (["std_vit_cifar", "--set", "seed=1"], "add --distill DATASET"),
        (["nobody/knows"], "is no model: give a preset"),
        (["std_vit_cifar", "--option", "depth"], "an override is KEY=VALUE"),
        (["timm/vit_tiny_patch16_224", "--option", "img_size=[1,"], "is no valid YAML value"),
        (["timm/vit_tny_patch16_224"], "did you mean timm/vit_tiny_patch16_224?"),
        (["torchvision/vit_b_17"], "did you mean torchvision/vit_b_16?"),
        ([*TIMM, "--mode", "encoder", "--arrange", "all"], "arrange is an option of TensorizeConfig (mode='drop_in')"),
        (["std_vit_cifar", "--tube", "5", "--strict"], "the tube 5 does not fit patch_embed.proj (input width 48"),
    ],
)
def test_misuse(capsys, args, said):
    code, _, err = run(capsys, *args)
    assert code == 1
    assert said in err


@pytest.mark.skipif(os.name == "nt", reason="links need rights on Windows")
def test_a_model_is_not_saved_through_a_link(capsys, tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "model.safetensors").symlink_to(tmp_path / "mine")
    assert cli.main(["tensorize", "std_vit_cifar", "--out", str(tmp_path / "out")]) == 1
    assert "out/model.safetensors is a link to " in capsys.readouterr().err
    assert (tmp_path / "mine").read_text() == "mine"


def tiny_bert(folder):
    """A BERT with a tokenizer, as transformers saves them."""
    repair_torchvision()
    transformers = pytest.importorskip("transformers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"word{k}" for k in range(40))]
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    transformers.BertModel(transformers.BertConfig(vocab_size=len(words), **shape)).save_pretrained(folder)
    return f"transformers/{folder}"


def test_a_language_model_is_calibrated_on_a_text_file(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("tcpvit.tensorize.quality.SECONDS", 0.01)
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(" ".join(f"word{(7 * i + j * j) % 40}" for j in range(8)) for i in range(60)))
    options = ["--calibrate", str(texts), "--json", "--out", str(tmp_path / "half")]
    assert cli.main(["tensorize", tiny_bert(tmp_path / "bert"), "--keep", "0.5", *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["config"]["keep"] == 0.5
    assert found["comparison"]["samples"] == 8  # every fifth of the 40 different lines
    assert found["comparison"]["agrees_in"] == "cosine similarity"
    assert found["comparison"]["bytes"][1] < found["comparison"]["bytes"][0]
    assert tcpvit.from_pretrained(tmp_path / "half") is not None


def test_a_sentence_transformer_as_a_whole(tmp_path, capsys, monkeypatch):
    repair_torchvision()
    pytest.importorskip("sentence_transformers")
    from sentence_transformers import SentenceTransformer

    monkeypatch.setattr("tcpvit.tensorize.quality.SECONDS", 0.01)
    tiny_bert(tmp_path / "bert")
    sentences = [" ".join(f"word{(7 * i + j * j) % 40}" for j in range(8)) for i in range(60)]
    (tmp_path / "texts.txt").write_text("\n".join(sentences))
    original = SentenceTransformer(str(tmp_path / "bert"), device="cpu")
    original.save(str(tmp_path / "original"))
    options = ["--keep", "0.6", "--calibrate", str(tmp_path / "texts.txt"), "--out", str(tmp_path / "smaller")]
    assert cli.main(["tensorize", f"sentence-transformers/{tmp_path / 'original'}", *options, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["comparison"]["agrees_in"] == "cosine similarity"
    assert found["comparison"]["agreement"] > 0.9
    smaller = SentenceTransformer(str(tmp_path / "smaller"), device="cpu")
    assert smaller.similarity(smaller.encode(sentences[:4]), original.encode(sentences[:4])).diagonal().min() > 0.9

    report = tcpvit.tensorize_(original, keep=0.6, calibrate=sentences)  # the same from Python
    assert report.skipped.keys() <= {row["name"] for row in found["layers"]}
    tcpvit.save_pretrained(original, tmp_path / "again")
    again = tcpvit.tensorize.build(f"sentence-transformers/{tmp_path / 'again'}")
    assert (again.encode(sentences) == original.encode(sentences)).all()
    assert sum(p.numel() for p in again.parameters()) == report.parameters_after < report.parameters_before


@pytest.mark.parametrize("labelled", [True, False])
def test_a_folder_of_images(labelled, tmp_path, capsys, monkeypatch):
    """Of any shape; in folders that are called as the model's classes, or without any labels."""
    monkeypatch.setattr("tcpvit.tensorize.quality.SECONDS", 0.01)
    noise = torch.Generator().manual_seed(0)
    for i in range(60):
        folder = tmp_path / "images" / (str(i % 10) if labelled else "")
        folder.mkdir(parents=True, exist_ok=True)
        pixels = torch.randint(256, (30 + i % 7, 40, 3), generator=noise, dtype=torch.uint8)
        Image.fromarray(pixels.numpy()).save(folder / f"{i}.png")
    options = ["--keep", "0.5", "--calibrate", str(tmp_path / "images"), "--out", str(tmp_path / "half"), "--json"]
    assert cli.main(["tensorize", *TIMM, *options]) == 0
    found = json.loads(capsys.readouterr().out)["comparison"]
    assert (found["samples"], found["agrees_in"]) == (12, "labels")
    assert (found["top1"] is not None) == labelled
    assert sorted(path.name for path in (tmp_path / "half").iterdir()) == [
        "config.json", "model.safetensors", "preprocessing.json",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--keep", "0.5"], "--calibrate FOLDER, TEXTFILE or DATASET"),
        (["--calibrate", "cifar10"], "name it, as --keep 0.5"),
        (["--keep", "0.5", "--calibrate", "cifar10", "--samples", "2"], "--samples is at least 8"),
        (["--refine", "2"], "--refine takes minutes"),
        (["--keep", "3", "--calibrate", "cifar10"], "keep"),
        (["--keep", "0.5", "--calibrate", "TEXTS"], "takes images, not texts"),
        (["--keep", "0.5", "--calibrate", "ONE"], "has 1 lines with text"),
    ],
)
def test_calibrations_that_cannot_be(options, words, tmp_path, capsys):
    (tmp_path / "texts.txt").write_text("one\ntwo\nthree\n")
    (tmp_path / "one.txt").write_text("one\n")
    files = {"TEXTS": str(tmp_path / "texts.txt"), "ONE": str(tmp_path / "one.txt")}
    assert cli.main(["tensorize", "std_vit_cifar", *(files.get(word, word) for word in options)]) == 1
    assert words in capsys.readouterr().err
