"""Saving and loading: what goes in comes out, and what is damaged or foreign is named."""

import inspect
import json
import re
import subprocess
import sys

import pytest
import torch
from huggingface_hub import hf_hub_download
from safetensors.torch import load_file, save_file

import tcpvit
from tcpvit.models import VisionTransformer
from tcpvit.models.pretrained import CONFIG, WEIGHTS

OPTIONS = [
    ("std_vit_cifar", {}),
    ("tcp_vit_cifar", {}),
    ("tcp_vit_cifar", {"transform": "learned", "attention": "joint", "activation_domain": "spatial"}),
    ("tcp_vit_cifar", {"coupling": ("mix:rotation", "shuffle", "low_rank:2", "partial:0.25"), "img_size": (16, 32)}),
    ("tcp_vit_cifar", {"coupling": "shared+mix:rotation", "patch_embed": "sub_patch", "tube": 4, "attention": "joint"}),
    ("tcp_vit_cifar", {"transform": tcpvit.algebra.data_driven(torch.rand(20, 3))}),
    ("tcp_vit_cifar", {"transform": tcpvit.algebra.random_orthogonal(3, seed=4)}),
    ("tcp_vit_cifar", {"transform": tcpvit.algebra.get_transform("haar", 3)}),
    ("tcp_vit_cifar", {"transform": torch.tensor([[2.0, 1, 0], [0, 1, 0], [0, 0, 1]])}),
]


@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_round_trip(tmp_path, name, options):
    model = tcpvit.create_model(name, **options).eval()
    tcpvit.save_pretrained(model, tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {CONFIG, WEIGHTS, "README.md"}
    loaded = tcpvit.from_pretrained(tmp_path)
    images = torch.randn(2, 3, *model.config.image_shape)
    assert torch.equal(loaded(images), model(images))
    assert loaded.config == model.config
    assert not loaded.training


def test_round_trip_in_other_precisions_and_after_a_new_head(tmp_path):
    model = tcpvit.create_model("tcp_vit_cifar").double().eval()
    model.reset_classifier(7)
    model.save_pretrained(tmp_path)
    loaded = VisionTransformer.from_pretrained(tmp_path)
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    assert torch.equal(loaded(images), model(images))


@pytest.fixture
def saved(tmp_path):
    tcpvit.save_pretrained(tcpvit.create_model("tcp_vit_cifar"), tmp_path)
    return tmp_path


def edit_config(folder, change):
    content = json.loads((folder / CONFIG).read_text())
    change(content)
    (folder / CONFIG).write_text(json.dumps(content))


def test_truncated_weights(saved):
    data = (saved / WEIGHTS).read_bytes()
    for length in (0, 4, len(data) // 2):
        (saved / WEIGHTS).write_bytes(data[:length])
        with pytest.raises(ValueError, match="no complete safetensors file"):
            tcpvit.from_pretrained(saved)


def test_a_pickle_is_not_loaded(saved):
    torch.save({"head.weight": torch.zeros(3)}, saved / WEIGHTS)
    with pytest.raises(ValueError, match="no complete safetensors file"):
        tcpvit.from_pretrained(saved)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["options"].update(dephth=3), "did you mean 'depth'"),
        (lambda c: c["options"].update(depth=5), "blocks.4.* is missing"),
        (lambda c: c["options"].update(depth=3), "blocks.3.* is unknown"),
        (lambda c: c["options"].update(num_classes=3), r"head.weight has shape \(10, 48\), the model \(3, 48\)"),
        (lambda c: c["options"].update(num_heads=5), "num_heads=5 does not divide"),
        (lambda c: c.update(architecture="ResNet"), "names the architecture 'ResNet'"),
        (lambda c: c.pop("library"), "does not describe a tcpvit model"),
    ],
)
def test_configs_that_do_not_fit(saved, change, message):
    edit_config(saved, change)
    with pytest.raises(ValueError, match=message):
        tcpvit.from_pretrained(saved)


def test_foreign_and_missing_files(saved, tmp_path_factory):
    (saved / CONFIG).write_text("not json")
    with pytest.raises(ValueError, match="no JSON file"):
        tcpvit.from_pretrained(saved)
    (saved / CONFIG).unlink()
    with pytest.raises(ValueError, match=r"has no config.json"):
        tcpvit.from_pretrained(saved)
    with pytest.raises(ValueError, match="is no folder"):
        tcpvit.from_pretrained(str(tmp_path_factory.mktemp("x") / "nowhere"))
    with pytest.raises(ValueError, match="takes a model of this library"):
        tcpvit.save_pretrained(torch.nn.Linear(2, 2), saved)


def test_push_to_hub_uploads_weights_and_config(monkeypatch):
    uploaded = {}

    class Api:
        def __init__(self, **_):
            pass

        def create_repo(self, repo_id, **_):
            return type("Repo", (), {"repo_id": repo_id})()

        def upload_folder(self, *, folder_path, **_):
            uploaded.update({p.name: p.stat().st_size for p in folder_path.iterdir()})

    monkeypatch.setattr("huggingface_hub.hub_mixin.HfApi", Api)
    tcpvit.create_model("tcp_vit_cifar").push_to_hub("somebody/something")
    assert {CONFIG, WEIGHTS} <= set(uploaded)


def test_a_model_of_the_hub_is_fetched_file_by_file(saved, monkeypatch):
    def fetch(repo, name, **download):
        inspect.signature(hf_hub_download).bind(repo, name, **download)  # it refuses words that it does not know
        return str(saved / name)

    monkeypatch.setattr("tcpvit.models.pretrained.hf_hub_download", fetch)
    monkeypatch.setattr("huggingface_hub.hub_mixin.hf_hub_download", lambda **k: str(saved / k["filename"]))
    assert tcpvit.from_pretrained("somebody/something").config.kind == "tcp"
    assert VisionTransformer.from_pretrained("somebody/something", revision="main").config.kind == "tcp"


def test_an_option_of_the_model_is_not_ignored(saved):
    with pytest.raises(ValueError, match="'num_classes' is no option"):
        tcpvit.from_pretrained(saved, num_classes=5)


@pytest.mark.parametrize("load", ["tcpvit.from_pretrained", "tcpvit.inference.load_model"])
def test_a_converted_model_loads_in_a_fresh_process(tmp_path, load):
    model = tcpvit.create_model("std_vit_cifar", depth=1)
    tcpvit.tensorize_(model, tube=3)
    tcpvit.save_pretrained(model, tmp_path)
    room = load.rpartition(".")[0]
    code = f"import {room}; print(type({load}({str(tmp_path)!r})).__name__)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() in ("VisionTransformer", "LoadedModel")


def test_a_converted_model_is_not_saved_as_what_it_was(tmp_path, monkeypatch):
    """Where the room that saves converted models is not loaded, there is an error and no wrong config.json."""
    model = tcpvit.create_model("std_vit_cifar", depth=1)
    tcpvit.tensorize_(model, tube=3)
    monkeypatch.setattr("tcpvit.models.pretrained.FORMATS", {})
    with pytest.raises(ValueError, match=r"converted ones are saved by tcpvit\.save_pretrained"):
        model.save_pretrained(tmp_path)
    assert not (tmp_path / CONFIG).exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda w: w.fill_(float("nan")), "head.weight holds NaN or infinity"),
        (lambda w: w.fill_(float("inf")), "head.weight holds NaN or infinity"),
        (lambda w: w.to(torch.int32), "head.weight is of type torch.int32, the model's of torch.float32"),
        (lambda w: w.to(torch.float8_e4m3fn), "head.weight is of type torch.float8_e4m3fn"),
    ],
)
def test_weights_that_are_no_numbers_or_of_another_type_are_refused(tmp_path, change, said):
    model = tcpvit.create_model("tcp_vit_cifar", depth=1)
    tcpvit.save_pretrained(model, tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["head.weight"] = change(weights["head.weight"])
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=re.escape(said)):
        tcpvit.from_pretrained(tmp_path)
