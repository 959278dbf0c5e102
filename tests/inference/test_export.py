"""Exported files give the model's numbers in real runtimes; what is no such file is refused in a sentence."""

from __future__ import annotations

import importlib.util
import io
import json
import pickle
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from small_runs import SMALL, make_set

import tcpvit
from tcpvit.cli import app as cli
from tcpvit.compat import repair_torchvision
from tcpvit.data import Splits
from tcpvit.data.images import resize_pixels, square_box
from tcpvit.inference import LoadedModel, export, export_model, load_model, predict_files
from tcpvit.inference.evaluate import measure
from tcpvit.inference.exported import FORMATS, SUFFIXES, load_exported
from tcpvit.inference.pixels import FromPixels, along, enlarging
from tcpvit.inference.program_file import refuse_code
from tcpvit.training import Recipe, train

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
FILES = {kind: f"model{suffix}" for suffix, kind in SUFFIXES.items()}
KINDS = [kind for kind in FORMATS if kind != "openvino" or importlib.util.find_spec("openvino")]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A run of a TCP-ViT, images of its test part as files, and the run as an exported file of every format."""
    folder = tmp_path_factory.mktemp("export")
    splits = Splits("made", make_set(40, 0), make_set(20, 1), make_set(20, 2))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        train(Recipe.from_dict(SMALL).override(["schedule.epochs=1", "model.options.depth=1"]), "run", splits=splits)
        patch.setattr(export, "load_splits", lambda data: splits)
        patch.setattr("tcpvit.inference.evaluate.load_splits", lambda data: splits)
        for i, image in enumerate(splits.test.images[:3]):
            Image.fromarray(image.permute(1, 2, 0).numpy()).resize((40 + 3 * i, 33)).save(f"{i}.png")
        for kind in KINDS:
            found = export_model("run", FILES[kind], format=kind)
            assert found.difference < 1e-5
            assert found.checked_on == "11 images of made/2"
        yield folder


def test_nothing_else_is_left(place):
    known = {"run", *(f"{i}.png" for i in range(3)), *(FILES[kind] for kind in KINDS), "model.bin"}
    assert {path.name for path in place.iterdir()} <= known


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_is_measured_and_predicts_as_its_run(place, kind):
    assert measure(FILES[kind], "made").metrics.summary() == pytest.approx(
        measure("run", "made").metrics.summary(), rel=1e-4
    )
    files = [f"{i}.png" for i in range(3)]
    own, again = (predict_files(load_model(target), files).found for target in ("run", FILES[kind]))
    for mine, its in zip(own, again, strict=True):
        assert mine.labels == its.labels
        assert mine.probabilities == pytest.approx(its.probabilities, abs=1e-5)


def test_metadata_come_back(place):
    kept = {item.key: item.value for item in onnx.load("model.onnx").metadata_props}
    about, loaded = json.loads(kept["tcpvit"]), load_model("run")
    assert about["preprocessing"] == loaded.preprocessing == load_model("model.onnx").preprocessing
    assert about["classes"] == loaded.preprocessing["classes"]
    assert (about["metric"], about["input"], about["output"]) == ("top1", "normalised", "logits")
    assert about["version"] == tcpvit.__version__


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind != "onnx")) for kind in KINDS])
def test_with_preprocessing_inside_it_takes_pixels_of_any_size(place, tmp_path, kind):
    export_model("run", tmp_path / FILES[kind], format=kind, preprocess=True)
    again = load_exported(tmp_path / FILES[kind])
    for i in range(3):
        pixels = np.asarray(Image.open(f"{i}.png").convert("RGB")).transpose(2, 0, 1)[None]
        chances = again.model.run(pixels.copy())[0]
        (mine,) = predict_files(load_model("run"), [f"{i}.png"], top=3).found
        wanted = dict(zip(mine.labels, mine.probabilities, strict=True))
        found = dict(zip(again.preprocessing["classes"], chances.tolist(), strict=True))
        assert found == pytest.approx(wanted, abs=0.02)  # Pillow may round a pixel to the next of 255 levels
        assert sum(found.values()) == pytest.approx(1, abs=1e-5)
    (same,) = predict_files(again, ["0.png"], top=3).found  # resized by Pillow, so that the file has nothing to resize
    (mine,) = predict_files(load_model("run"), ["0.png"], top=3).found
    assert same.probabilities == pytest.approx(mine.probabilities, abs=1e-5)


@pytest.mark.parametrize("fit", ["crop", "squash"])
@pytest.mark.parametrize(("dtype", "top", "levels"), [("uint8", 255, 1), ("uint16", 65535, 1), ("float32", 1, 1e-5)])
def test_resizing_in_a_graph_is_pillows(fit, dtype, top, levels):
    for height, width in ((37, 29), (64, 96), (16, 16), (5, 90)):
        pixels = (np.random.default_rng(0).random((height, width, 3)) * top).astype(dtype)
        wanted = resize_pixels(pixels, (16, 16), square_box((width, height), fit)).transpose(2, 0, 1)
        about = {"image_shape": [3, 16, 16], "task": "classification", "mean": [0] * 3, "std": [1] * 3}
        module = FromPixels(torch.nn.Identity(), about, fit, getattr(torch, dtype))
        found = module._resized(torch.from_numpy(pixels.transpose(2, 0, 1)[None].astype(np.float32)))[0]
        assert np.abs(found.numpy() - wanted.astype(np.float32)).max() <= levels


@pytest.mark.parametrize("places", [40, 16, 9])
def test_masks_are_enlarged_as_torch_does(places):
    x = torch.randn(1, 2, 16, 16)
    wanted = torch.nn.functional.interpolate(x, (16, places), mode="bilinear")
    torch.testing.assert_close(along(x, 3, enlarging(16, places, x)), wanted, atol=1e-5, rtol=1e-5)


def test_a_file_that_differs_is_not_left(place, tmp_path):
    (tmp_path / "model.pt2").write_text("what stood there")
    with pytest.raises(ValueError, match=r"differs from its model by .* nothing was written"):
        export_model("run", tmp_path / "model.pt2", format="torch-export", tolerance=0)
    assert (tmp_path / "model.pt2").read_text() == "what stood there"
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt2"]


def test_killed_in_the_middle(place, tmp_path, monkeypatch, capsys):
    tcpvit.save_pretrained(load_model("run").model, tmp_path / "saved")
    monkeypatch.chdir(tmp_path)
    words = ["export", "saved", "--format", "torch-export"]
    kill = "import os, signal, sys; from tcpvit.inference import export; from tcpvit.cli import main\n"
    kill += "export.compare = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\nmain(sys.argv[1:])"
    killed = subprocess.run([sys.executable, "-c", kill, *words, "--out", "model.pt2"])
    assert killed.returncode == -9
    assert not (tmp_path / "model.pt2").exists()
    assert len(list(tmp_path.glob(".exporting*"))) == 1

    assert cli.main([*words, "--out", "model.pt2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["difference"] < 1e-5
    assert not list(tmp_path.glob(".exporting*"))  # what the killed one left is gone, too
    assert [path.name for path in tmp_path.glob("model*")] == ["model.pt2"]

    assert cli.main([*words, "--out", "other.pt2", "--tolerance", "0"]) == 1
    assert not (tmp_path / "other.pt2").exists()
    assert "nothing was written" in capsys.readouterr().err


@pytest.mark.parametrize("int8", ["dynamic", "static"])
def test_int8_says_what_it_costs(place, tmp_path, int8):
    found = export_model("run", tmp_path / "model.onnx", int8=int8, data="made")
    assert found.difference < 1e-5 < found.int8_difference
    assert (found.metric, found.scored) == ("top1", 20)
    assert found.before == measure("run", "made").metrics.summary()["top1"]
    assert found.after == measure(tmp_path / "model.onnx", "made").metrics.summary()["top1"]
    kinds = {node.op_type for node in onnx.load(tmp_path / "model.onnx").graph.node}
    assert kinds & {"MatMulInteger", "QuantizeLinear", "DynamicQuantizeLinear"}


def test_int8_weights_for_pytorch(place, tmp_path):
    pytest.importorskip("torchao")
    found = export_model("run", tmp_path / "model.pt2", format="torch-export", int8="weights", data="made")
    assert found.difference < 1e-5 < found.int8_difference < 0.1 * found.largest
    assert found.after == measure(tmp_path / "model.pt2", "made").metrics.summary()["top1"]
    stored = zipfile.ZipFile(tmp_path / "model.pt2").read("model/models/model.json")
    kept = torch.export.load(str(tmp_path / "model.pt2")).state_dict
    assert b"torchao" not in stored
    assert any(tensor.dtype == torch.int8 for tensor in kept.values())


def small(name: str, **options):
    return tcpvit.create_model(name, **options)


SWIN = {"img_size": 32, "embed_dim": 24, "depths": (2, 2), "num_heads": (1, 2), "window_size": 4, "num_classes": 5}
OTHERS = {
    "std_vit_cifar": {"depth": 1},
    "tcp_vit_cifar_wide": {"depth": 1},
    "tcp_deit_tiny": {"depth": 1, "img_size": 32},
    "std_swin_tiny": SWIN,
    "tcp_swin_tiny": SWIN,
    "tcp_vit_pet_full": {"backbone": {"img_size": 32, "depth": 1}},
    "std_vit_pet": {"backbone": {"img_size": 32, "depth": 1}},
    "tcp_scene": {"depth": 1},
    "tcp_scene_stem": {"depth": 1},
    "tcp_vit_cifar": {"img_size": [4, 8, 8], "patch_size": [2, 4, 4], "tube": "depth", "depth": 1},
}
FAST = ("std_vit_cifar", "tcp_vit_pet_full", "tcp_scene")  # one with rows, one with convolutions, one by slices


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in FAST)) for name in OTHERS])
def test_every_kind_of_model(tmp_path, name):
    tcpvit.save_pretrained(small(name, **OTHERS[name]), tmp_path / "saved")
    found = export_model(tmp_path / "saved", tmp_path / "model.onnx")
    assert found.difference < 1e-4
    assert (tmp_path / "model.onnx").stat().st_size == found.bytes


@pytest.mark.skipif("openvino" not in KINDS, reason="needs openvino")
@pytest.mark.parametrize(("name", "options"), [("std_vit_cifar", {"embed_dim": 8}), ("tcp_scene_shuffle", {})])
def test_openvino_takes_models_by_slices(tmp_path, name, options):
    """It fails on batches of any size where it believes to see a channel shuffle, in heads or in shuffled slices."""
    options = {"img_size": 6, "patch_size": 3, "depth": 1, "num_heads": 2, **options}
    tcpvit.save_pretrained(small(name, **options), tmp_path / "saved")
    found = export_model(tmp_path / "saved", tmp_path / "model.xml", format="openvino", form="slices")
    assert found.difference < 1e-4


@pytest.mark.parametrize("shape", [[3, 8, 8], [1, 4, 8, 8]])
def test_models_of_float_images_with_a_scale_of_their_own(tmp_path, shape):
    """As of scenes and of medical volumes."""
    options = {"img_size": shape[1:], "patch_size": [side // 2 for side in shape[1:]], "in_chans": shape[0]}
    model = small("std_vit_cifar", depth=1, embed_dim=8, num_heads=1, **options)
    about = {"task": "classification", "classes": [str(k) for k in range(10)], "image_shape": shape, "dtype": "float32"}
    about |= {"mean": [1000.0] * shape[0], "std": [0.25] * shape[0], "fit": "crop"}
    loaded = LoadedModel("float", model.eval(), None, about)
    assert export_model(loaded, tmp_path / "model.onnx").difference < 1e-3
    if len(shape) == 4:
        with pytest.raises(ValueError, match="takes volumes or clips, which a file does not prepare"):
            export_model(loaded, tmp_path / "other.onnx", preprocess=True)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", tcpvit.list_models())
@pytest.mark.parametrize("kind", KINDS)
def test_every_preset(tmp_path, monkeypatch, name, kind):
    monkeypatch.setenv("TCPVIT_DATA", str(tmp_path))  # made images: decoding thousands of pets takes longer than all
    found = export_model(name, tmp_path / FILES[kind], format=kind)
    assert found.difference <= 1e-4 * max(found.largest, 1)


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind != "onnx")) for kind in KINDS])
def test_what_tensorize_gives(tmp_path, kind):
    repair_torchvision()
    timm = pytest.importorskip("timm")
    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=48, depth=1, num_heads=3, num_classes=4
    )
    tcpvit.tensorize_(model, tcpvit.TensorizeConfig(tube=3))
    assert export_model(LoadedModel("small", model.eval()), tmp_path / FILES[kind], format=kind).difference < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_what_tensorize_gives_of_transformers(tmp_path, kind):
    repair_torchvision()
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        image_size=32, patch_size=8, hidden_size=48, num_hidden_layers=1, num_attention_heads=3, intermediate_size=96
    )
    model = transformers.ViTForImageClassification(config).eval()
    tcpvit.tensorize_(model, tcpvit.TensorizeConfig(tube=3))
    tcpvit.save_pretrained(model, tmp_path / "saved")
    assert export_model(tmp_path / "saved", tmp_path / FILES[kind], format=kind).difference < 1e-4


def test_what_cannot_be_exported(place, tmp_path):
    with pytest.raises(ValueError, match="did you mean 'onnx'"):
        export_model("run", format="onx")
    with pytest.raises(ValueError, match=r"called NAME\.onnx, got model\.pt2"):
        export_model("run", "model.pt2")
    with pytest.raises(ValueError, match="not known; export it without --preprocess"):
        export_model("tcp_vit_cifar", preprocess=True)
    with pytest.raises(ValueError, match="int8 dynamic is made for --format onnx, got torch-export"):
        export_model("run", format="torch-export", int8="dynamic")
    with pytest.raises(ValueError, match="int8 weights is made for --format torch-export, got onnx"):
        export_model("run", int8="weights")
    with pytest.raises(ValueError, match="needs images for its ranges"):
        export_model("tcp_vit_cifar", tmp_path / "model.onnx", int8="static")
    with pytest.raises(ValueError, match="is an exported file already"):
        export_model("model.onnx", "again.onnx")


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_are_named(place, tmp_path, kind):
    whole, path = (place / FILES[kind]).read_bytes(), tmp_path / FILES[kind]
    if kind == "openvino":
        shutil.copy(place / "model.bin", tmp_path)
    for content in (b"", b"nothing of the kind", whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"^{path} [^\n]*$"):
            load_model(path)
    with pytest.raises(ValueError, match="is no file"):
        load_model(f"missing{FILES[kind]}")


def test_a_record_of_other_classes_than_the_file_is_refused(place, tmp_path):
    proto = onnx.load("model.onnx")
    (item,) = (each for each in proto.metadata_props if each.key == "tcpvit")
    about = json.loads(item.value)
    about["preprocessing"]["classes"].append("another")
    item.value = json.dumps(about)
    onnx.save(proto, tmp_path / "other.onnx")
    with pytest.raises(ValueError, match="gives 3 numbers for an image, but its record names 4 classes"):
        load_model(tmp_path / "other.onnx")


def test_files_that_lead_to_others_or_hold_code_are_refused(place, tmp_path):
    refuse_code(place / "model.pt2")
    proto, others = onnx.load("model.onnx"), {"save_as_external_data": True, "location": "w.bin", "size_threshold": 0}
    onnx.save_model(onnx.load("model.onnx"), tmp_path / "outside.onnx", **others)
    with pytest.raises(ValueError, match="keeps its weights in other files"):
        load_model(tmp_path / "outside.onnx")
    del proto.metadata_props[:]
    onnx.save_model(proto, tmp_path / "foreign.onnx")
    with pytest.raises(ValueError, match="was not made by `tcpvit export`"):
        load_model(tmp_path / "foreign.onnx")
    inner = onnx.load(tmp_path / "outside.onnx", load_external_data=False)
    node = inner.graph.node.add(op_type="Constant", output=["hidden"])
    node.attribute.add(name="value", type=onnx.AttributeProto.TENSOR).t.CopyFrom(inner.graph.initializer[0])
    del inner.graph.initializer[:]
    (tmp_path / "inner.onnx").write_bytes(inner.SerializeToString())
    with pytest.raises(ValueError, match="keeps its weights in other files"):
        load_model(tmp_path / "inner.onnx")


def pickled(path):
    """A pickle that makes a file."""
    content = io.BytesIO()
    pickle.dump(_Toucher(path), content)
    return content.getvalue()


class _Toucher:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (Path(self.path),)


@pytest.mark.parametrize(
    ("part", "change", "said"),
    [
        ("data/sample_inputs/model.pt", pickled, "a pickle of inputs"),
        ("data/weights/model.pt", pickled, "a part 'model/data/weights/model.pt'"),
        ("data/constants/opaque_obj_0", pickled, "a part 'model/data/constants/opaque_obj_0'"),
        ("data/aotinductor/model/code.so", pickled, "a part"),
        ("data/weights/model_weights_config.json", ('"use_pickle": false', '"use_pickle": 1'), "pickled tensors"),
        ("models/model.json", ("Symbol('s", "Path('{}').touch()+Symbol('s"), "the size"),
        ("models/model.json", ("torch.ops.aten.gelu.default", "torch.os.system"), "the operator 'torch.os.system'"),
        ("models/model.json", ('"guards_code": []', '"guards_code": ["L"]'), "Python code"),
        ("models/model.json", ("builtins.tuple", "os.environ"), "the type 'os.environ'"),
    ],
)
def test_a_program_that_would_run_code_is_refused(place, tmp_path, part, change, said):
    whole, made, touched = zipfile.ZipFile(place / "model.pt2"), tmp_path / "model.pt2", tmp_path / "touched"
    with zipfile.ZipFile(made, "w") as archive:
        contents = {info.filename: whole.read(info) for info in whole.infolist()}
        name = f"model/{part}"
        if callable(change):
            contents[name] = change(touched)
        else:
            old, new = (each.replace("{}", str(touched)).encode() for each in change)
            assert old in contents[name]
            contents[name] = contents[name].replace(old, new)
        for file, content in contents.items():
            archive.writestr(file, content)
    with pytest.raises(ValueError, match=f"holds {re.escape(said)}.*may run code and is not loaded"):
        load_model(made)
    assert not touched.exists()


def test_a_missing_extra_is_named(place, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match=r"pip install 'tcpvit\[export\]'"):
        export_model("run", tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(ImportError, match=r"pip install 'tcpvit\[openvino\]'"):
        export_model("run", format="openvino")


def test_large_batches_are_run_in_parts(place):
    model = load_exported(place / FILES["onnx"]).model
    images = torch.randn(70, *model.about["image_shape"])
    run, sizes = model.run, []
    model.run = lambda some: sizes.append(len(some)) or run(some)
    torch.testing.assert_close(model(images)[:3], torch.from_numpy(run(images[:3].numpy())), atol=1e-5, rtol=1e-5)
    assert sizes == [32, 32, 6]


def test_other_images_than_the_files_are_refused(place):
    with pytest.raises(ValueError, match="takes images of 3×32×32, got 3×9×9; resize them"):
        load_model("model.onnx").model(torch.zeros(1, 3, 9, 9))
