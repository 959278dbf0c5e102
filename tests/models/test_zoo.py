"""Weights that come with the package: each loads, fits its preset, and says what it is."""

import pytest
import torch

import tcpvit
from tcpvit.inference import load_model
from tcpvit.models.pretrained import WEIGHTS
from tcpvit.models.zoo import CARD, RECIPE, ZOO, list_pretrained, pretrained_folder
from tcpvit.training import load_recipe


def test_every_folder_of_the_zoo_is_a_preset():
    assert set(list_pretrained()) <= set(tcpvit.list_models())
    assert sorted(folder.name for folder in ZOO.glob("*") if folder.is_dir()) == list_pretrained()


def test_every_model_of_the_zoo_loads_is_small_and_has_a_card():
    for name in list_pretrained():
        folder = pretrained_folder(name)
        trained = load_model(name)
        assert trained.recipe == load_recipe(folder / RECIPE)
        assert trained.recipe.data.root is None
        assert trained.model.config == tcpvit.create_model(name, num_classes=trained.model.config.num_classes).config
        assert (folder / WEIGHTS).stat().st_size < 4_000_000
        assert "tcpvit eval" in (folder / CARD).read_text(encoding="utf-8")


def test_unknown_weights_are_an_error_that_says_what_to_do():
    with pytest.raises(ValueError, match="no trained weights of 'tcp_vit_base_patch16_224'"):
        tcpvit.create_model("tcp_vit_base_patch16_224", pretrained=True)


def test_a_pretrained_model_takes_a_new_head_and_no_other_option(tmp_path, monkeypatch):
    monkeypatch.setattr("tcpvit.models.zoo.ZOO", tmp_path)
    model = tcpvit.create_model("tcp_vit_cifar")
    tcpvit.save_pretrained(model, tmp_path / "tcp_vit_cifar")
    same = tcpvit.create_model("tcp_vit_cifar", pretrained=True)
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(same(images), model.eval()(images))
    assert tcpvit.create_model("tcp_vit_cifar", pretrained=True, num_classes=3)(images).shape == (2, 3)
    with pytest.raises(ValueError, match="leave out depth"):
        tcpvit.create_model("tcp_vit_cifar", pretrained=True, depth=2)
