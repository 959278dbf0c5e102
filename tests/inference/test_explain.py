"""What an explanation says is what the definitions say, written out slowly; files become figures and numbers."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

from tcpvit.cli.app import main
from tcpvit.cli.explain import _truths
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
    maps = torch.stack(model.attention_maps(image))  # (L, 1, H, 16, 16): means of 4×4 tokens
    assert found.attention.shape == (4, 1, 2, 16, 16)
    assert found.by_slice.shape == (4, 16, 16)
    few = maps[1, 0, 1].mean(0).view(4, 4)
    torch.testing.assert_close(found.attention[1, 0, 1], few.repeat_interleave(4, 0).repeat_interleave(4, 1) / 16)
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
    with pytest.raises(ValueError, match="a standard ViT has none: take its TCP twin"):
        explain(create_model("std_vit_cifar"), image)
    with pytest.raises(ValueError, match="a Swin Transformer attends in windows"):
        explain(create_model("tcp_swin_tiny", img_size=32, window_size=2, depths=(1, 1, 1, 1)), image)
    with pytest.raises(ValueError, match="one image at a time"):
        explain(create_model("tcp_vit_cifar"), image.repeat(2, 1, 1, 1))


def test_notebooks_show_a_table(image):
    found = explain(create_model("tcp_vit_cifar").eval(), image)
    assert found._repr_html_().count("<tr") == 4
    assert f"class {int(found.answer)}" in found._repr_html_()
    assert "pixels that change" in explain(create_model("tcp_vit_pet").eval(), image.repeat(1, 1, 2, 2))._repr_html_()


def test_errors_by_slice_are_those_against_the_true_mask(image):
    found = explain(create_model("tcp_vit_pet").eval(), image)
    truth = found.answer.clone()
    assert found.errors(truth) == (0.0, pytest.approx(found.changed.float().flatten(1).mean(1).tolist()))
    truth[:16] = 1 - truth[:16]
    truth[16:24] = 255  # of these nothing is known
    error, without = found.errors(truth)
    assert error == 16 / 24
    known = truth != 255
    assert without[1] == pytest.approx((found.without[1].argmax(0) != truth)[known].float().mean().item())


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


def test_true_masks_are_fitted_as_their_images(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for folder in ("in", "true"):
        (tmp_path / folder).mkdir()
    for name in ("a.1", "a.2"):
        Image.fromarray(rng.integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(f"in/{name}.jpg")
        Image.fromarray(np.full((40, 50), int(name[-1]) - 1, np.uint8)).save(f"true/{name}.png")
    assert main(["explain", "tcp_vit_pet", "in", "--truth", "true", "--json"]) == 0, capsys.readouterr().err
    first, second = json.loads(capsys.readouterr().out)
    for found, true in ((first, 0), (second, 1)):
        assert found["error"] == pytest.approx(list(found["shares"].values())[1 - true], abs=1e-4)
        assert len(found["error_without"]) == 3
    assert main(["explain", "tcp_vit_pet", "in", "--truth", "true/a.1.png"]) == 1
    assert "there are several images" in capsys.readouterr().err
    (tmp_path / "true" / "a.2.png").unlink()
    assert main(["explain", "tcp_vit_pet", "in", "--truth", "true"]) == 1
    assert "has no mask of the name of in/a.2.jpg" in capsys.readouterr().err
    assert main(["explain", "tcp_vit_cifar_plus", "in/a.1.jpg", "--truth", "true/a.1.png"]) == 1
    assert "true masks are for a segmenter" in capsys.readouterr().err


def test_masks_are_those_of_the_images_folders(tmp_path):
    def files(*names):
        for name in names:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(b"")
        return [tmp_path / name for name in names]

    days = files("in/day1/001.png", "in/day2/001.png")
    truth = tmp_path / "true"
    (mask,) = files("true/001.png")
    files("true/001.txt", "true/001.json")  # no masks
    assert _truths(days[:1], truth) == [mask]
    with pytest.raises(ValueError, match=r"true/001.png would be the mask of .*day1/001.png and of .*day2/001.png"):
        _truths(days, truth)
    masks = files("true/day1/001.png", "true/day2/001.tif")
    assert _truths(days, truth) == masks
    assert _truths(days[1:], truth) == masks[1:]
    files("true/day2/001.png")
    with pytest.raises(ValueError, match=r"day2/001.png and .*day2/001.tif may both be the mask of .*in/day2/001.png"):
        _truths(days, truth)
    scan, label = files("all/images/scan.nii.gz", "all/labels/scan.nii.gz")
    assert _truths([scan], tmp_path / "all") == [label]  # not the image itself


@pytest.mark.parametrize("name", ["tcp_vit_video_colour", "tcp_vit_cifar"])
def test_attention_within_frames_and_along_the_depth_is_followed(name):
    torch.manual_seed(0)
    options = {"img_size": (8, 16, 16), "patch_size": (4, 8, 8), "depth": 2, "factorised": True}
    model = create_model(name, **options).eval()
    found = explain(model, torch.randn(1, 3, 8, 16, 16))
    assert found.attention.shape[3:] == found.rollout.shape[1:] == found.by_slice.shape[1:] == (2, 2, 2)
    shares = found.attention.flatten(3).sum(-1)
    assert (shares > 0.2).all()
    assert (shares < 1).all()  # the rest is the class token's look at itself
    assert found.by_depth.sum() == pytest.approx(found.by_slice.sum().item(), abs=1e-4)


def test_figures_do_not_become_images_of_the_next_call(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (32, 32)).save("a.jpg")
    for verb, option in (("explain", "--out"), ("predict", "--images")):
        assert main([verb, "tcp_vit_cifar_plus", ".", option, "."]) == 1
        assert "would be read as the next input; name another folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["a.jpg"]


def test_figures_are_never_written_over_images(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "a.png"):
        Image.new("RGB", (32, 32)).save(f"{name}.png")
    assert main(["explain", "tcp_vit_cifar_plus", "a.png", "a.png.png", "--out", "."]) == 1
    assert "a.png.png would be written over a.png.png, which is read here" in capsys.readouterr().err
    assert main(["predict", "tcp_vit_cifar_plus", "a.png", "a.png.png", "--images", "."]) == 1
    assert "which is read here" in capsys.readouterr().err


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
    truth = ["--truth", "mask.npy"] * segments
    np.save(tmp_path / "mask.npy", np.zeros(shape, np.uint8))
    assert main(["explain", "model", "scan.npy", "--out", "out", "--json", *truth]) == 0, capsys.readouterr().err
    (numbers,) = json.loads(capsys.readouterr().out)
    assert not segments or numbers["error"] == pytest.approx(1 - numbers["shares"]["class 0"], abs=1e-4)
    depth = model.get_submodule("backbone").config if segments else model.config
    assert len(numbers["by_depth"]) == depth.grid_of(*shape)[0]
    assert sum(numbers["by_depth"]) == pytest.approx(sum(numbers["by_slice"]), abs=1e-3)
    assert (tmp_path / "out" / "scan.npy.png").is_file()
