"""Fine-tuning starts from trained weights: the same function where nothing changes, resampled positions, a new head."""

from __future__ import annotations

import re

import pytest
import torch
from small_runs import make_set

import tcpvit
from tcpvit.training import Recipe, resume, train
from tcpvit.training.build import build_model


@pytest.fixture
def trained(tmp_path, recipe, splits):
    """A run of the small recipe."""
    return train(recipe, tmp_path / "first", splits=splits)


def test_the_weights_are_those_of_the_run(trained, recipe, splits):
    again = recipe.override([f"model.pretrained={trained.folder}", "seed=5"])
    model = build_model(again, splits.train).eval()
    images = torch.rand(2, 3, 32, 32)
    assert torch.equal(model(images), trained.model(images))


def test_another_size_and_other_classes(trained, recipe):
    wide = make_set(8, 3, classes=5, size=48)
    again = recipe.override([f"model.pretrained={trained.folder / 'best'}", "img_size=48"])
    model = build_model(again, wide).eval()
    images = torch.rand(2, 3, 48, 48)
    # The trained model takes larger images too, and resamples its positions itself.
    assert torch.allclose(model.forward_features(images), trained.model.forward_features(images), atol=1e-6)
    assert model(images).shape == (2, 5)
    drawn = build_model(recipe.override(["img_size=48"]), wide)
    assert torch.equal(model.head.weight, drawn.head.weight)


def test_the_package_s_own_weights_and_a_segmenter():
    data = make_set(4, 0, classes=3, size=64, masks=True)
    recipe = Recipe().override(["model.name=tcp_vit_pet", "model.pretrained=true", "backbone.img_size=64"])
    model = build_model(recipe, data).eval()
    published = tcpvit.create_model("tcp_vit_pet", pretrained=True)
    images = torch.rand(1, 3, 64, 64)
    assert torch.allclose(model.forward_features(images), published.forward_features(images), atol=1e-5)
    assert model(images).shape == (1, 3, 64, 64)


def test_a_run_resumes_without_the_weights_it_started_from(trained, recipe, splits, tmp_path):
    again = recipe.override([f"model.pretrained={trained.folder}"])
    whole = train(again, tmp_path / "second", splits=splits)
    for path in trained.folder.rglob("*"):
        if path.is_file():
            path.unlink()
    longer = resume(tmp_path / "second", overrides=["epochs=3"], splits=splits)
    assert len(longer.history) == len(whole.history) + 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["model.pretrained=nowhere"], "there is no folder 'nowhere'"),
        (["model.pretrained=true"], "no trained weights of 'tcp_vit_cifar' come with the package"),
        (["model.pretrained=FIRST", "depth=1"], "add --set 'model.options.depth=2'"),
        (["model.pretrained=FIRST", "model.name=tcp_swin_tiny"], "holds a VisionTransformer, whose"),
    ],
)
def test_weights_that_do_not_fit_are_one_sentence(trained, recipe, splits, words, said):
    base = Recipe(data=recipe.data) if "model.name" in words[-1] else recipe
    size = ["img_size=32", "window_size=4"] if "model.name" in words[-1] else []
    words = [word.replace("FIRST", str(trained.folder)) for word in words] + size
    with pytest.raises(ValueError, match=re.escape(said)):
        build_model(base.override(words), splits.train)
