"""What an explanation says is what the definitions say, written out slowly; files become figures and numbers."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

from tcpvit.cli.app import main
from tcpvit.inference import explain, load_model
from tcpvit.inference.explain import entering, rollout
from tcpvit.models import create_model, save_pretrained


@pytest.fixture
def image():
    return torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", ["tcp_vit_cifar", "tcp_vit_cifar_plus"])
def test_a_slice_that_is_taken_away_is_zero_where_the_blocks_begin(name, image):
    torch.manual_seed(0)
    model = create_model(name).eval()
    found = explain(model, image)
    with torch.no_grad():
        torch.testing.assert_close(found.logits, model(image)[0])
        for k in range(3):
            tokens = model.embed(model.patch_embed(image), (8, 8)).clone()
            tokens[k] = 0
            for block in model.blocks:
                tokens = block(tokens)
            features = model.transform.from_hat_tokens(model.norm(tokens)).flatten(-2)
            torch.testing.assert_close(found.without[k], model.head(features[:, 0])[0], atol=1e-5, rtol=1e-4)


def test_gradient_times_input_is_the_slope_of_shrinking_a_slice(image):
    torch.manual_seed(0)
    model = create_model("tcp_vit_cifar_plus").double().eval()
    image = image.double()
    found = explain(model, image)
    best, step = int(found.answer), 1e-5
    for k in range(3):
        scale = torch.ones(3, 1, 65, 1, dtype=torch.double)
        scale[k, :, 1:] += step  # the patches of this slice
        with torch.no_grad(), entering(model, lambda x_hat, scale=scale: x_hat * scale):
            slope = (model(image)[0, best] - found.logits[best]) / step
        torch.testing.assert_close(found.by_slice[k].sum(), slope, atol=1e-4, rtol=1e-3)
    with torch.no_grad():
        brighter = image.clone()
        brighter[:, 1] *= 1 + step
        slope = (model(brighter)[0, best] - found.logits[best]) / step
    torch.testing.assert_close(found.by_channel[1], slope, atol=1e-4, rtol=1e-3)


def test_attention_is_the_models_and_rollout_follows_it(image):
    model = create_model("tcp_vit_cifar").eval()
    found = explain(model, image)
    maps = model.attention_maps(image)
    torch.testing.assert_close(found.attention[2, 1, 3], maps[2][1, 0, 3, 0, 1:].view(8, 8))
    followed = torch.eye(65)
    for each in maps:
        followed = (0.5 * each[1, 0].mean(0) + 0.5 * torch.eye(65)) @ followed
    torch.testing.assert_close(found.rollout[1], followed[0, 1:].view(8, 8))
    torch.testing.assert_close(rollout(torch.stack([each[1, 0].mean(0) for each in maps])), followed)


def test_without_a_class_token_it_is_where_the_pooled_patches_look_on_average(image):
    model = create_model("tcp_vit_cifar_44k", zero_residual=False).eval()
    found = explain(model, image)
    maps = torch.stack(model.attention_maps(image))  # (L, 1, H, 16, 16)
    assert found.attention.shape == (2, 1, 4, 8, 8)
    assert found.by_slice.shape == (4, 8, 8)
    few = maps[1, 0, 2].mean(0).view(4, 4)
    torch.testing.assert_close(found.attention[1, 0, 2], few.repeat_interleave(2, 0).repeat_interleave(2, 1) / 4)
    torch.testing.assert_close(found.rollout.sum(), torch.tensor(1.0))


def test_a_segmenter_says_which_pixels_change(image):
    model = create_model("tcp_vit_pet").eval()
    found = explain(model, torch.nn.functional.interpolate(image, 64))
    assert found.logits.shape == (2, 64, 64)
    assert found.changed.shape == (3, 64, 64)
    assert found.by_slice.shape == (3, 8, 8)


def test_scenes_are_explained_by_band_and_frequency():
    found = explain(create_model("tcp_scene").eval(), torch.randn(1, 200, 9, 9))
    assert found.by_channel.shape == (200,)
    assert found.by_slice.shape == (32, 3, 3)
    assert found.slices is None


def test_others_are_refused(image):
    with pytest.raises(ValueError, match="a standard ViT has none"):
        explain(create_model("std_vit_cifar"), image)
    with pytest.raises(ValueError, match="one image at a time"):
        explain(create_model("tcp_vit_cifar"), image.repeat(2, 1, 1, 1))


def test_the_model_is_left_as_it_was(image):
    model = create_model("tcp_vit_cifar").train()
    explain(model, image)
    assert model.training
    assert not model.embed._forward_hooks
    assert all(parameter.grad is None for parameter in model.parameters())


def test_files_become_figures_and_numbers(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    pixels = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    for name in ("in/猫 $x$.png", "in/more/猫 $x$.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / name)
    (tmp_path / "in" / "bad.png").write_bytes(b"none")
    assert main(["explain", "tcp_vit_cifar_plus", "in", "--out", "out", "--json"]) == 0
    said = capsys.readouterr()
    numbers = json.loads(said.out)
    assert len(numbers) == 2
    assert "bad.png" in said.err
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [
        "猫 $x$-2.png.png", "猫 $x$-2.png.svg", "猫 $x$.png.png", "猫 $x$.png.svg",
    ]  # fmt: skip
    loaded = load_model("tcp_vit_cifar_plus")
    assert list(numbers[0]["probabilities"]) == loaded.preparation()["classes"]
    assert sum(numbers[0]["probabilities"].values()) == pytest.approx(1, abs=1e-3)
    assert len(numbers[0]["without"]) == 3
    assert main(["explain", "tcp_vit_cifar_plus", "in/bad.png"]) == 1
    assert main(["explain", "tcp_vit_cifar_plus", "in", "--on-bad", "stop"]) == 1
    assert main(["explain", "std_vit_cifar", "in/猫 $x$.png"]) == 1


@pytest.mark.parametrize("name", ["tcp_vit_volume_small", "tcp_vit_volume_segmenter"])
def test_volumes_are_explained_by_depth(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    model = create_model(name)
    channels, shape = model.config.in_chans, model.config.image_shape
    save_pretrained(model, tmp_path / "model")
    segments = "segmenter" in name
    classes = [f"class {k}" for k in range(model.config.num_classes)]
    about = {"source": "made", "task": "segmentation" if segments else "classification", "classes": classes}
    about |= {"image_shape": [channels, *shape], "mean": [0.5] * channels, "std": [0.2] * channels}
    (tmp_path / "model" / "preprocessing.json").write_text(json.dumps(about))
    np.save(tmp_path / "scan.npy", np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8))
    assert main(["explain", "model", "scan.npy", "--out", "out", "--json"]) == 0, capsys.readouterr().err
    (numbers,) = json.loads(capsys.readouterr().out)
    depth = model.get_submodule("backbone").config if segments else model.config
    assert len(numbers["by_depth"]) == depth.grid_of(*shape)[0]
    assert sum(numbers["by_depth"]) == pytest.approx(sum(numbers["by_slice"]), abs=1e-3)
    assert (tmp_path / "out" / "scan.npy.png").is_file()
