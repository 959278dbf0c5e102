"""Converted models of transformers: its Trainer saves them, and both libraries load what it saved."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
import transformers
from torch import nn

import tcpvit
import tcpvit.tensorize.transformers  # transformers loads what we converted
from tcpvit.compat import repair_torchvision
from tcpvit.tensorize import tensorize_, to_dense_

repair_torchvision()
SMALL = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 6, "intermediate_size": 48}
IMAGES = torch.randn(2, 3, 32, 32)


def vit(**options):
    torch.manual_seed(0)
    model = transformers.ViTForImageClassification(
        transformers.ViTConfig(**SMALL, image_size=32, patch_size=8, num_labels=5)
    )
    tensorize_(model, example=False, **options)
    return model


class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return {"pixel_values": torch.randn(3, 32, 32, generator=generator), "labels": torch.tensor(index % 5)}


IMAGE_SET = Images()


def trainer(model, folder, data=IMAGE_SET, **options):
    settings = {"max_steps": 2, "report_to": [], "save_strategy": "no", "disable_tqdm": True, "use_cpu": True}
    arguments = transformers.TrainingArguments(
        str(folder), per_device_train_batch_size=2, learning_rate=1e-2, **(settings | options)
    )
    return transformers.Trainer(model, arguments, train_dataset=data)


@torch.no_grad()
def logits(model):
    return model.eval()(pixel_values=IMAGES).logits


def both_sides(folder):
    """The folder as each library loads it."""
    theirs, info = transformers.AutoModelForImageClassification.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    return tcpvit.from_pretrained(folder), theirs


@pytest.mark.parametrize(
    "options",
    [
        {"tube": 3},
        {"tube": 3, "init": "fresh", "heads": True, "convs": "all"},
        {"tube": 2, "transform": torch.linalg.qr(torch.randn(2, 2)).Q},
        {"tube": 3, "mode": "encoder"},
    ],
    ids=["drop-in", "all layers", "own transform", "encoder"],
)
def test_what_trainer_saves_both_libraries_load(options, tmp_path):
    model = vit(**options)
    before = logits(model)
    run = trainer(model, tmp_path / "run")
    run.train()
    run.save_model(tmp_path / "saved")
    assert not torch.allclose(logits(model), before)
    for back in both_sides(tmp_path / "saved"):
        assert type(back) is type(model)
        assert list(back.state_dict()) == list(model.state_dict())
        assert torch.equal(logits(back), logits(model))
        assert not back.training


def test_what_was_loaded_is_trained_cast_and_saved_again(tmp_path):
    vit(tube=3).save_pretrained(tmp_path / "first")
    for name, back in zip(("ours", "theirs"), both_sides(tmp_path / "first"), strict=True):
        trainer(back, tmp_path / "run").train()
        back.double().float().save_pretrained(tmp_path / name)
        for again in both_sides(tmp_path / name):
            assert torch.equal(logits(again), logits(back))
        tcpvit.save_pretrained(back, tmp_path / f"{name}_tcpvit")
        assert torch.equal(logits(tcpvit.from_pretrained(tmp_path / f"{name}_tcpvit")), logits(back))


def test_trainer_resumes_from_its_checkpoint(tmp_path):
    """transformers 5.23 saves a ViT under older names, which its resume does not know: load the checkpoint first."""
    whole = trainer(vit(tube=3), tmp_path / "whole", max_steps=4, save_strategy="steps", save_steps=2)
    whole.train()
    for checkpoint in both_sides(tmp_path / "whole" / "checkpoint-2"):
        resumed = trainer(checkpoint, tmp_path / "resumed", max_steps=4)
        resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
        assert torch.equal(logits(resumed.model), logits(whole.model))
    assert torch.equal(logits(tcpvit.from_pretrained(tmp_path / "whole" / "checkpoint-4")), logits(whole.model))


class Sentences(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return {"input_ids": (torch.arange(6) * (index + 1)) % 60, "labels": torch.tensor(index % 2)}


def bert(init):
    config = transformers.BertConfig(**SMALL, vocab_size=60, max_position_embeddings=8)
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(config)
    tensorize_(model, tube=3, init=init, example=False)
    return model


def test_trainer_resumes_into_a_model_that_is_converted_anew(tmp_path):
    whole = trainer(bert("project"), tmp_path / "whole", Sentences(), max_steps=4, save_strategy="steps", save_steps=2)
    whole.train()
    resumed = trainer(bert("fresh"), tmp_path / "resumed", Sentences(), max_steps=4)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    state = resumed.model.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in whole.model.state_dict().items())


def test_weights_in_several_files(tmp_path):
    model = vit(tube=3)
    model.save_pretrained(tmp_path, max_shard_size="10KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    for back in both_sides(tmp_path):
        assert torch.equal(logits(back), logits(model))


def test_a_model_with_a_head_gives_one_without(tmp_path):
    model = vit(tube=3, heads=True)
    model.save_pretrained(tmp_path)
    base = transformers.AutoModel.from_pretrained(tmp_path, add_pooling_layer=False)
    with torch.no_grad():
        expected = model.vit.eval()(IMAGES).last_hidden_state
        assert torch.equal(base(IMAGES).last_hidden_state, expected)


def test_a_model_whose_head_alone_was_converted_gives_a_plain_one_without(tmp_path):
    model = vit(tube=1, rank=2, heads=True, include=("classifier",))
    assert model.classifier.rank == 2
    model.save_pretrained(tmp_path)
    base = transformers.AutoModel.from_pretrained(tmp_path, add_pooling_layer=False)
    with torch.no_grad():
        expected = model.vit.eval()(IMAGES).last_hidden_state
        assert torch.equal(base(IMAGES).last_hidden_state, expected)


def test_a_language_model_with_tied_weights(tmp_path):
    config = transformers.GPT2Config(vocab_size=60, n_embd=24, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    model = transformers.GPT2LMHeadModel(config).eval()
    tensorize_(model, tube=3, example=False)
    model.save_pretrained(tmp_path)
    words = torch.arange(8)[None]
    for back in (tcpvit.from_pretrained(tmp_path), transformers.AutoModelForCausalLM.from_pretrained(tmp_path)):
        assert torch.equal(back(words).logits, model(words).logits)


def test_transformers_alone_draws_no_weights_anew(tmp_path):
    vit(tube=3).save_pretrained(tmp_path)
    code = "from tcpvit.compat import repair_torchvision as repair; repair(); "  # of the machine that tests
    code += "import transformers\n"
    for name in ("AutoModelForImageClassification", "ViTForImageClassification"):
        code += (
            f"try: transformers.{name}.from_pretrained({str(tmp_path)!r})\nexcept Exception as error: print(error)\n"
        )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.count("import tcpvit.tensorize.transformers first") == 2


def test_a_model_made_dense_again_is_one_of_transformers_alone(tmp_path):
    model = vit(tube=3)
    to_dense_(model)
    model.save_pretrained(tmp_path)
    assert (
        not {"quantization_config", "attn_implementation"} & json.loads((tmp_path / "config.json").read_text()).keys()
    )
    back = transformers.AutoModelForImageClassification.from_pretrained(tmp_path)
    torch.testing.assert_close(logits(back), logits(model))


def edit(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_folder_by_transformers_is_trusted_no_more_than_ours(tmp_path):
    vit(tube=3).save_pretrained(tmp_path)
    noted = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    for changes, message in (
        ({"auto_map": {"AutoModel": "evil.Model"}}, "gives transformers the option 'auto_map'"),
        ({"architectures": ["pipeline"]}, "no architecture that transformers registers"),
        ({"architectures": []}, "should name one architecture"),
        ({"hidden_size": 30}, r"has shape .*, the model"),
        ({"num_hidden_layers": 3}, "is missing"),
        ({"num_hidden_layers": 1}, "matches no linear layer"),
        ({"quantization_config": {**noted, "conversions": None}}, "and its conversions"),
        ({"quantization_config": {**noted, "conversions": [{"mode": "x"}]}}, "mode is one of"),
    ):
        vit(tube=3).save_pretrained(tmp_path)
        edit(tmp_path, **changes)
        with pytest.raises(ValueError, match=message):
            tcpvit.from_pretrained(tmp_path)


def test_weights_that_lie_elsewhere_or_are_no_numbers(tmp_path):
    model = vit(tube=3)
    model.save_pretrained(tmp_path, max_shard_size="10KB")
    index = tmp_path / "model.safetensors.index.json"
    text = index.read_text()
    index.write_text(json.dumps({"weight_map": {"a": "../model-00001-of-00002.safetensors"}}))
    with pytest.raises(ValueError, match=r"should name files as model-00001-of-00002\.safetensors"):
        tcpvit.from_pretrained(tmp_path)
    index.write_text(text)
    with torch.no_grad():
        model.vit.layernorm.weight[0] = torch.nan
    model.save_pretrained(tmp_path, max_shard_size="10KB")
    with pytest.raises(ValueError, match="holds NaN or infinity"):
        tcpvit.from_pretrained(tmp_path)


class Ours(nn.Module):
    """What Trainer calls: a model that takes labels and gives a loss; its config is that of the model in it."""

    def __init__(self, **options):
        super().__init__()
        self.model = tcpvit.create_model("tcp_vit_cifar", depth=1, num_classes=5, **options)
        self.config = self.model.config

    def forward(self, pixel_values, labels):
        y = self.model(pixel_values)
        return {"loss": nn.functional.cross_entropy(y, labels), "logits": y}


def test_trainer_trains_a_model_of_ours_and_its_config_stays_frozen(tmp_path):
    model = Ours()
    before = model.config.to_dict()
    trainer(model, tmp_path).train()
    assert model.config.to_dict() == before
    assert model.config == tcpvit.create_model("tcp_vit_cifar", depth=1, num_classes=5).config
    with pytest.raises(AttributeError):
        model.config.depth = 2
    with pytest.raises(AttributeError):
        model.config.dephth = 2
    tcpvit.save_pretrained(model.model, tmp_path / "saved")
    assert tcpvit.from_pretrained(tmp_path / "saved").config == model.config
