"""config.json of a model folder is written by strangers: it names an architecture and its numbers, and nothing else."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
import torch
from PIL import Image

import tcpvit
from tcpvit.cli import main
from tcpvit.compat import repair_torchvision
from tcpvit.tensorize import build, tensorize_
from tcpvit.tensorize.origin import NOTE, origin_of

repair_torchvision()
VIT = "vit_tiny_patch16_224"
SMALL = {"img_size": 32, "depth": 1, "num_classes": 5}
ADDRESS = "http://192.0.2.1/weights.pth"  # an address for documentation, which leads nowhere


class Payload:
    """Unpickling it leaves a file behind."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A converted model, with a pickle beside it; whatever asks for the network fails the test."""
    asked = []

    def refuse(*args, **kwargs):
        asked.append(args)
        raise OSError("no network in this test")

    for name in ("getaddrinfo", "create_connection"):
        monkeypatch.setattr(socket, name, refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.chdir(tmp_path)
    model = build(f"timm/{VIT}", **SMALL)
    tensorize_(model, tube=3, example=False)
    tcpvit.save_pretrained(model, tmp_path / "model")
    torch.save(Payload(tmp_path / "ran"), tmp_path / "model" / "evil.pth")
    yield tmp_path / "model"
    assert asked == []


def with_origin(folder, library="timm", name=VIT, options=SMALL):
    path = folder / "config.json"
    content = json.loads(path.read_text())
    content["options"]["origin"] = {"library": library, "name": name, "options": options}
    path.write_text(json.dumps(content))


def files_below(place):
    return {path: path.stat().st_mtime_ns for path in place.rglob("*")}


def refusal(folder):
    """The one sentence with which the folder is refused, before anything is built, run, fetched or written."""
    before = files_below(folder.parent)
    with pytest.raises(ValueError, match=r"the origin in config\.json") as error:
        tcpvit.from_pretrained(folder)
    assert files_below(folder.parent) == before
    assert "\n" not in str(error.value)
    return str(error.value)


def test_the_payload_is_one(tmp_path):
    torch.save(Payload(tmp_path / "ran"), tmp_path / "evil.pth")
    torch.load(tmp_path / "evil.pth", weights_only=False)
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "options",
    [
        {"checkpoint_path": "model/evil.pth"},
        {"pretrained": True},
        {"pretrained": True, "pretrained_cfg": {"url": ADDRESS}},
        {"pretrained_cfg": {"file": "model/evil.pth"}},
        {"pretrained_cfg_overlay": {"hf_hub_id": "someone/evil"}},
        {"pretrained_model_args": {"depth": 1}},
        {"cache_dir": "elsewhere"},
        {"scriptable": True},
        {"exportable": True},
        {"no_jit": True},
        {"features_only": True},
        {"feature_cls": "fx"},
        {"pruned": True},
        {"device": "cpu"},
        {"weight_init": "skip"},
        {"block_fn": "eval"},
        {"not an identifier": 1},
    ],
    ids=lambda options: list(options)[-1],
)
def test_options_that_timm_acts_on(folder, options):
    with_origin(folder, options=SMALL | options)
    assert "gives timm the option" in refusal(folder)


@pytest.mark.parametrize(
    "options",
    [
        {"img_size": "model/evil.pth"},
        {"act_layer": "hf-hub:someone/evil"},
        {"global_pool": ADDRESS},
        {"norm_layer": "torch.load"},
        {"depth": {"url": ADDRESS}},
        {"depth": float("nan")},
        {"drop_rate": float("inf")},
        {"img_size": [[[[[[[32]]]]]]]},
    ],
)
def test_values_that_are_neither_numbers_nor_words(folder, options):
    with_origin(folder, options=SMALL | options)
    assert f"sets {next(iter(options))} to " in refusal(folder)


@pytest.mark.parametrize(
    ("library", "name"),
    [
        ("timm", "hf-hub:someone/evil"),
        ("timm", "hf_hub:someone/evil"),
        ("timm", "local-dir:model"),
        ("timm", "../model"),
        ("timm", f"{VIT}.tag/evil"),
        ("timm", "create_model"),
        ("torchvision", "get_model"),
        ("torchvision", "VIT_B_16"),
        ("transformers", "pipeline"),
        ("transformers", "AutoModel"),
        ("transformers", "PreTrainedModel"),
        ("transformers", "__builtins__"),
        ("transformers", "ViTConfig"),
        ("transformers", "utils.import_utils"),
        ("tcpvit", "__class__"),
    ],
)
def test_names_that_are_no_architecture(folder, library, name):
    with_origin(folder, library, name, {})
    assert f"no architecture that {library} registers" in refusal(folder)


@pytest.mark.parametrize("library", ["os", "torch", "builtins", "", None, ["timm"], {"timm": 1}])
def test_other_libraries(folder, library):
    with_origin(folder, library)
    assert "which is none of tcpvit, timm, torchvision, transformers" in refusal(folder)


@pytest.mark.parametrize("origin", ["timm", 3, [], {"library": "timm"}, {"library": "timm", "name": 1, "options": {}}])
def test_origins_of_another_shape(folder, origin):
    content = json.loads((folder / "config.json").read_text())
    content["options"]["origin"] = origin
    (folder / "config.json").write_text(json.dumps(content))
    refusal(folder)


@pytest.mark.parametrize(
    "options",
    [
        {"weights": "DEFAULT"},
        {"weights_backbone": "DEFAULT"},
        {"pretrained": True},
        {"progress": True},
        {"backbone": "x"},
    ],
)
def test_options_that_torchvision_acts_on(folder, options):
    with_origin(folder, "torchvision", "fcn_resnet50", {"num_classes": 5} | options)
    assert "gives torchvision the option" in refusal(folder)


REPOSITORY = "someone/evil"


@pytest.mark.parametrize(
    "options",
    [
        {"auto_map": {"AutoConfig": "evil.Config"}},
        {"trust_remote_code": True},
        {"name_or_path": "model"},
        {"use_pretrained_backbone": True},
        {"use_timm_backbone": True},
        {"backbone": "resnet50"},
        {"backbone_kwargs": {"depth": 1}},
        {"quantization_config": {"quant_method": "bitsandbytes"}},
        {"attn_implementation": "kernels-community/flash-attn"},
        {"_attn_implementation": "kernels-community/flash-attn"},
        {"experts_implementation": "eager"},
        {"torch_dtype": "load"},
        {"dtype": "hub"},
        {"hidden_act": "kernels-community/activation"},
        {"hidden_act": "../evil"},
        {"hidden_act": {"auto_map": "evil"}},
        {"anything": "resnet50"},
        {"anything": {"path": "evil"}},
        {"per_layer_config": {"0": {"hidden_size": 1}}},
        {"text_config": {"auto_map": "evil"}},
        {"id2label": "model/evil.pth"},
        {"not an identifier": 1},
    ],
)
def test_options_that_transformers_acts_on(folder, options):
    with_origin(folder, "transformers", "ViTForImageClassification", {"hidden_size": 24} | options)
    assert next(iter(options)) in refusal(folder) or "may not set" in refusal(folder)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("TimmWrapperForImageClassification", {"architecture": f"hf-hub:{REPOSITORY}"}),
        ("TimmWrapperForImageClassification", {"model_args": {"checkpoint_path": "model/evil.pth"}}),
        ("TimmBackbone", {"backbone": f"local-dir:{REPOSITORY}"}),
        ("DetrForObjectDetection", {}),
        ("DetrForObjectDetection", {"backbone_config": {"model_type": "timm_backbone", "backbone": "resnet18"}}),
        ("DetrForObjectDetection", {"backbone_config": {"model_type": "evil"}}),
        ("DetrForObjectDetection", {"backbone_config": {"model_type": "resnet", "auto_map": {"AutoModel": "evil"}}}),
        ("CLIPModel", {"text_config": {"name_or_path": REPOSITORY}}),
        ("CLIPModel", {"vision_config": {"hidden_act": REPOSITORY}}),
        ("CLIPModel", {"vision_config": "model"}),
        ("LayoutLMv2Model", {"detectron2_config_args": {"MODEL.WEIGHTS": ADDRESS}}),
    ],
)
def test_models_of_transformers_that_hold_others(folder, name, options):
    with_origin(folder, "transformers", name, options)
    refusal(folder)


def test_numbers_that_do_not_fit_are_one_sentence(folder):
    with_origin(folder, options=SMALL | {"patch_size": 0})
    with pytest.raises(ValueError, match=f"timm cannot build the {VIT} that config.json describes") as error:
        tcpvit.from_pretrained(folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("version", ["1.0.20", "1.0.9", "0.9.16"])
def test_an_older_timm_builds_nothing_from_a_folder(folder, version, monkeypatch):
    import timm

    monkeypatch.setattr(timm, "__version__", version)
    with pytest.raises(ValueError, match=rf"with timm 1\.0\.26 or newer, this is {version}: pip install"):
        tcpvit.from_pretrained(folder)


def test_where_version_0_1_0_had_its_models_of_transformers_from_is_forgotten(folder, monkeypatch):
    """It wrote `_name_or_path`, also in configs within configs; nothing is looked up there."""
    import transformers

    sizes = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48}
    vision, text = sizes | {"image_size": 32, "patch_size": 16}, sizes | {"vocab_size": 60}
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=24)
    model = transformers.CLIPModel(config).eval()
    tensorize_(model, tube=3, example=False)
    tcpvit.save_pretrained(model, folder)
    content = json.loads((folder / "config.json").read_text())
    options = content["options"]["origin"]["options"]
    for part in (options, options["vision_config"], options["text_config"]):
        part |= {"_name_or_path": REPOSITORY, "transformers_version": "4.57.1"}
    (folder / "config.json").write_text(json.dumps(content))
    back, image = tcpvit.from_pretrained(folder), torch.randn(1, 3, 32, 32)
    assert torch.equal(back.get_image_features(image)[0], model.get_image_features(image)[0])
    assert REPOSITORY not in str(back.config)


@pytest.mark.parametrize("verb", ["eval", "predict"])
def test_the_command_line_says_it_in_one_sentence(folder, verb, capsys):
    with_origin(folder, options=SMALL | {"checkpoint_path": "model/evil.pth"})
    Image.new("RGB", (32, 32)).save("a.png")
    assert main([verb, str(folder), *(["a.png"] if verb == "predict" else [])]) == 1
    err = capsys.readouterr().err
    assert "gives timm the option 'checkpoint_path', which a model folder may not set" in " ".join(err.split())
    assert "Traceback" not in err
    assert not Path("ran").exists()


def test_a_backbone_of_torchvision_is_built_without_fetching_its_weights(folder):
    model = build("torchvision/fcn_resnet50", num_classes=3, weights_backbone=None)
    tensorize_(model, tube=4, example=False, convs="pointwise")
    tcpvit.save_pretrained(model.eval(), folder)
    back, image = tcpvit.from_pretrained(folder), torch.randn(1, 3, 64, 64)
    assert torch.equal(back(image)["out"], model(image)["out"])


def test_what_only_says_where_weights_come_from_is_not_noted():
    model = build(f"timm/{VIT}", cache_dir="elsewhere", **SMALL)
    assert origin_of(model) == {"library": "timm", "name": VIT, "options": SMALL}


@pytest.mark.parametrize("options", [{"norm_layer": torch.nn.LayerNorm}, {"weight_init": "skip"}])
def test_what_could_not_be_read_again_is_not_written(tmp_path, options):
    model = build(f"timm/{VIT}", **SMALL, **options)
    for parameter in (model.cls_token, model.pos_embed):  # weight_init="skip" leaves them as memory was, NaN at times
        torch.nn.init.normal_(parameter)
    tensorize_(model, tube=3, example=False)
    with pytest.warns(UserWarning, match="how this VisionTransformer was built is not known"):
        tcpvit.save_pretrained(model, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["options"]["origin"] is None
    image = torch.randn(1, 3, 32, 32)
    back = tcpvit.from_pretrained(tmp_path, model=build(f"timm/{VIT}", **SMALL, **options))
    assert torch.equal(back(image), model.eval()(image))


def test_a_model_from_the_hub_is_saved_as_its_architecture_and_not_as_an_address():
    model = build(f"timm/{VIT}", img_size=32, num_classes=5)
    setattr(model, NOTE, {"library": "timm", "name": f"hf-hub:{REPOSITORY}", "options": {}})  # as `build` notes it
    assert origin_of(model) == {"library": "timm", "name": VIT, "options": {"num_classes": 5, "img_size": [32, 32]}}


@pytest.mark.parametrize("name", ["SwinForImageClassification", "CLIPModel", "ViTForImageClassification"])
def test_configs_of_transformers_may_say_what_they_say(name):
    import transformers

    cls = getattr(transformers, name)
    config = cls.config_class()
    config._name_or_path = REPOSITORY  # as from_pretrained notes it
    config.id2label = {0: "cat/dog: both", 1: "../x"}
    with torch.device("meta"):
        model = cls(config)
    origin = origin_of(model)
    assert origin is not None
    assert REPOSITORY not in json.dumps(origin)
