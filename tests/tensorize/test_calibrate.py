"""Calibrated conversion: what layers see, that nothing breaks, and that a model still works."""

from __future__ import annotations

import copy
import types

import pytest
import torch
from torch import nn

import tcpvit
from tcpvit.compat import repair_torchvision
from tcpvit.layers import TubalLinear
from tcpvit.layers.transform import HatTransform
from tcpvit.progress import Progress
from tcpvit.tensorize import TensorizeConfig, build, tensorize_, to_dense_
from tcpvit.tensorize.fit import Problem, orthonormal
from tcpvit.tensorize.sensitivity import DAMPING, sensitivities
from tcpvit.tensorize.streams import Place, Streams
from tcpvit.tensorize.timing import measure

HALF = TensorizeConfig(keep=0.5)


def vit(**options):
    torch.manual_seed(0)
    shape = {"img_size": 16, "patch_size": 4, "embed_dim": 48, "depth": 2, "num_heads": 3, "num_classes": 10}
    return build("timm/vit_tiny_patch16_224", **{**shape, **options}).eval()


def images(batches=6, size=16, seed=1):
    """Smooth images, so that activations have structure."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randn(batches, 16, 3, size // 4, size // 4, generator=generator)
    return [nn.functional.interpolate(x, scale_factor=4, mode="bilinear") for x in coarse]


def difference(model, other, batches):
    with torch.no_grad():
        pairs = [(model(x), other(x)) for x in batches]
    return (sum((a - b).square().sum() for a, b in pairs) / sum(b.square().sum() for _, b in pairs)).item()


def test_a_model_stays_near_the_original_and_within_the_budget(tmp_path):
    original = vit()
    model = copy.deepcopy(original)
    report = tensorize_(model, HALF, calibrate=images())
    rows = [row for row in report.rows if row.name != "head"]
    weights = sum(row.in_features * row.out_features for row in rows)
    assert sum(row.after - row.out_features for row in rows) <= weights / 2
    assert all(row.form and row.ridge for row in rows if row.done)
    projected = copy.deepcopy(original)
    tensorize_(projected, tube=2)
    unseen = images(seed=2)
    assert difference(model, original, unseen) < 0.2 * difference(projected, original, unseen)
    assert "calibrated to keep 0.5 of the parameters" in str(report)

    tcpvit.save_pretrained(model, tmp_path / "saved")
    again = tcpvit.from_pretrained(tmp_path / "saved")
    assert torch.equal(again(unseen[0]), model(unseen[0]))
    exported = torch.export.export(model, (unseen[0],)).module()
    assert torch.allclose(exported(unseen[0]), model(unseen[0]), atol=1e-5)
    expected = model(unseen[0])
    assert torch.allclose(to_dense_(model)(unseen[0]), expected, atol=1e-5)
    assert not any(isinstance(module, TubalLinear) for module in model.modules())


def test_a_head_that_is_left_makes_up_for_the_layers_before_it():
    original, unseen = vit(), images(seed=2)
    model = copy.deepcopy(original)
    head, weight = model.head, model.head.weight
    tensorize_(model, HALF, calibrate=images())
    assert model.head is head
    assert head.weight is weight
    with_new_head = difference(model, original, unseen)
    head.load_state_dict(original.head.state_dict())
    assert with_new_head < difference(model, original, unseen)


def test_a_head_stays_as_it_is_if_excluded_or_tied():
    for changes in ("excluded", "tied", "local"):
        model = vit()
        if changes == "tied":
            model.also = nn.Linear(48, 10)
            model.also.weight = model.head.weight
        before = model.head.weight.clone()
        options = {"exclude": ("head",)} if changes == "excluded" else {"sequential": changes != "local"}
        tensorize_(model, HALF, calibrate=images(4), **options)
        assert torch.equal(model.head.weight, before), changes


@pytest.mark.parametrize("options", [{"structure": "slices"}, {"structure": "low_rank"}, {"structure": "both"}])
def test_each_structure_local_and_sequential(options):
    original, unseen = vit(), images(seed=2)
    found = {}
    for sequential in (False, True):
        model = copy.deepcopy(original)
        tensorize_(model, HALF, calibrate=images(), uniform=True, sequential=sequential, **options)
        found[sequential] = difference(model, original, unseen)
    assert found[True] < found[False] * 1.05
    layers = [m for m in model.modules() if isinstance(m, TubalLinear)]
    assert layers
    assert all((m.tube == 1) == (options["structure"] == "low_rank") for m in layers)


def test_a_budget_of_time(monkeypatch):
    """On a machine where slices take a tenth of a dense layer's time, and each rank as much again."""

    def times(d_in, d_out, tokens, *, tubes):
        assert tokens == 16 * 17
        return {(tube, rank): (tube > 1) + rank for tube in tubes for rank in (0, 8, 16)} | {(1, 0): 10.0}

    monkeypatch.setattr("tcpvit.tensorize.timing.measure", times)
    report = tensorize_(vit(), TensorizeConfig(keep=0.45, budget="time"), calibrate=images())
    times = [0 if not row.done else (row.tube > 1) + row.rank for row in report.rows if row.name != "head"]
    dense = sum(row.name != "head" and not row.done for row in report.rows)
    assert sum(times) + 10 * dense <= 0.45 * 10 * len(times)
    assert [row.seconds for row in report.rows if row.done] == [
        (10, (r.tube > 1) + r.rank) for r in report.rows if r.done
    ]


def test_time_is_measured():
    times = measure(64, 64, 100, tubes=[1, 4])
    assert set(times) == {(1, 0), (1, 8), (1, 32), (4, 0), (4, 8), (4, 32)}
    assert all(value > 0 for value in times.values())


class Killed(Progress):
    """Stops while the third unit is fitted."""

    def track(self, items, description, total=None):
        for index, item in enumerate(items):
            if description == "fitting layers" and index == 2:
                raise KeyboardInterrupt
            yield item


def test_a_calibration_that_was_stopped_goes_on(tmp_path, monkeypatch):
    expected, model = vit(depth=3), vit(depth=3)
    tensorize_(expected, HALF, calibrate=images(3))
    folder = tmp_path / "calibration"
    with pytest.raises(KeyboardInterrupt):
        tensorize_(model, HALF, calibrate=images(3), resume=folder, progress=Killed())
    assert (folder / "calibration.json").is_file()
    fits, fit = [], Problem.fit
    monkeypatch.setattr(Problem, "fit", lambda *args: fits.append(args) or fit(*args))
    again = copy.deepcopy(model)
    report = tensorize_(again, HALF, calibrate=images(3), resume=folder)
    layers = [row.name for row in report.rows if row.name.startswith(("blocks.2", "head"))]
    assert len(fits) == len(layers) < len(report.rows)
    assert torch.equal(again(images(1)[0]), expected(images(1)[0]))
    assert not folder.exists()


def test_what_was_fitted_to_other_data_is_not_used(tmp_path):
    model, folder = vit(depth=3), tmp_path / "calibration"
    folder.mkdir()
    (folder / "notes.txt").write_text("of the user")
    with pytest.raises(KeyboardInterrupt):
        tensorize_(model, HALF, calibrate=images(3, seed=5), resume=folder, progress=Killed())
    expected = copy.deepcopy(model)
    tensorize_(expected, HALF, calibrate=images(3))
    tensorize_(model, HALF, calibrate=images(3), resume=folder)
    assert torch.equal(model(images(1)[0]), expected(images(1)[0]))
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]
    with pytest.raises(ValueError, match="pass keep= and calibrate= too"):
        tensorize_(vit(), tube=3, resume=folder)


# ------------------------------------------------------------------------------------------------ what layers see


def places(model):
    return [Place(name, m) for name, m in model.named_modules() if isinstance(m, nn.Linear) and "blocks" in name]


def test_streams_see_the_stages_and_what_is_added():
    model, batches = vit(), images(2)
    streams = Streams(model, places(model), batches)
    assert streams.order == ["blocks.0", "blocks.1"]
    stages = [[place.name for place in stage] for stage in streams.stages("blocks.0")]
    assert stages == [[f"blocks.0.{name}"] for name in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")]
    seen = streams.see(0, [place for place in streams.places if place.unit == "blocks.0"], converted=False)
    added = {name: found[0].stream is not None for name, found in seen.items()}
    assert added == {
        f"blocks.0.{n}": n in ("attn.proj", "mlp.fc2") for n in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
    }
    with torch.no_grad():
        tokens = model.norm_pre(model.patch_drop(model._pos_embed(model.patch_embed(batches[0]))))
    assert torch.allclose(seen["blocks.0.attn.proj"][0].stream, tokens.flatten(0, 1), atol=1e-5)


def test_what_the_classifier_does_not_read_counts_little():
    model, batches = vit(), images(2)
    found = sensitivities(Streams(model, places(model), batches))
    last, first = (found[f"blocks.{k}.mlp.fc2"].tokens[1][0].unflatten(0, (16, 17)) for k in (1, 0))
    assert torch.allclose(last[:, 1:], torch.tensor(DAMPING))  # patches behind the last attention
    assert last[:, 0].mean() > 10
    assert (first[:, 1:] > last[:, 1:]).float().mean() > 0.5
    assert not any(p.grad is not None for p in model.parameters())


def test_skipping_units_changes_nothing():
    model, batches = vit(depth=3), images(2)
    streams = Streams(model, places(model), batches)
    last = [place for place in streams.places if place.name == "blocks.2.mlp.fc1"]
    whole = streams.see(1, last, converted=False)
    streams.finish("blocks.0", both=True)
    streams.finish("blocks.1", both=True)
    assert streams.can_skip
    assert torch.allclose(
        streams.see(1, last, converted=False)["blocks.2.mlp.fc1"][0].x, whole["blocks.2.mlp.fc1"][0].x
    )


def test_a_forward_that_the_user_put_on_a_block_stays():
    model, batches = vit(), images(4)
    block = model.blocks[0]
    block.forward = types.MethodType(lambda self, x: 3 * type(self).forward(self, x), block)
    own, before = block.forward, model(batches[0])
    tensorize_(model, keep=0.9, calibrate=batches, example=False)
    assert block.forward is own
    assert (model(batches[0]) - before).square().mean() < 0.1 * before.square().mean()


class Skipping(nn.Module):
    """The third block reads what the first gave."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 8)) for _ in range(3)
        )

    def forward(self, x):
        first = self.blocks[0](x)
        return self.blocks[2](self.blocks[1](first) + first)


def test_a_connection_that_skips_blocks_is_noticed():
    torch.manual_seed(0)
    model = Skipping()
    streams = Streams(model, places(model), [torch.randn(30, 8)])
    streams.finish("blocks.0", both=True)
    assert streams.can_skip
    streams.finish("blocks.1", both=True)
    assert not streams.can_skip
    report = tensorize_(model, HALF, calibrate=[torch.randn(300, 8)])
    assert report.converted


# ------------------------------------------------------------------------------------------------ libraries


def test_torch_attention(tmp_path):
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2).eval()
    original, batches = copy.deepcopy(model), [torch.randn(8, 10, 32) for _ in range(4)]
    report = tensorize_(model, TensorizeConfig(keep=0.7), calibrate=batches)
    assert "layers.0.self_attn.in_proj" in report.converted
    assert difference(model, original, batches) < 0.3
    with pytest.warns(UserWarning, match="how this TransformerEncoder was built"):
        tcpvit.save_pretrained(model, tmp_path)
    again = tcpvit.from_pretrained(tmp_path, model=copy.deepcopy(original))
    assert torch.equal(again(batches[0]), model(batches[0]))
    expected = model(batches[0])
    assert torch.allclose(to_dense_(model)(batches[0]), expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_transformers(kind, tmp_path):
    repair_torchvision()
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    if kind == "bert":
        shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
        model = transformers.BertModel(transformers.BertConfig(**sizes, **shape)).eval()
    else:
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, n_embd=32, n_layer=2, n_head=4)).eval()
    original = copy.deepcopy(model)
    words = torch.randint(3, 50, (6, 8, 12))
    mask = torch.ones(8, 12, dtype=torch.long)
    mask[:, 9:] = 0
    batches = [{"input_ids": ids, "attention_mask": mask} for ids in words]
    report = tensorize_(model, TensorizeConfig(keep=0.6), calibrate=batches)
    assert len(report.converted) > 4
    with torch.no_grad():
        ours, theirs = (m(**batches[0])[0][:, :9] for m in (model, original))
    assert (ours - theirs).square().mean() < 0.3 * theirs.var()
    tcpvit.save_pretrained(model, tmp_path / "ours")
    assert torch.equal(tcpvit.from_pretrained(tmp_path / "ours")(**batches[0])[0], model(**batches[0])[0])
    model.save_pretrained(tmp_path / "theirs")
    assert torch.equal(tcpvit.from_pretrained(tmp_path / "theirs")(**batches[0])[0], model(**batches[0])[0])


def test_a_model_whose_flops_cannot_be_counted():
    repair_torchvision()
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes = {"vocab_size": 50, "intermediate_size": 48, "num_local_experts": 4, "max_position_embeddings": 64}
    model = transformers.MixtralForCausalLM(transformers.MixtralConfig(**sizes, **shape)).eval()
    batches = [{"input_ids": torch.randint(50, (8, 12))} for _ in range(4)]
    expected = model(**batches[0]).logits
    report = tensorize_(model, TensorizeConfig(keep=0.8), calibrate=batches)
    assert len(report.converted) >= 3
    assert report.flops_before is not None or "FLOPs were not counted" in report.notes[0]
    assert (model(**batches[0]).logits - expected).square().mean() < 0.3 * expected.var()


def test_swin_and_patches():
    torch.manual_seed(0)
    model = build("timm/swin_tiny_patch4_window7_224", img_size=56, embed_dim=24, depths=(1, 1), num_heads=(2, 4))
    model.eval()
    original = copy.deepcopy(model)
    batches = images(3, size=56)
    report = tensorize_(model, HALF, calibrate=batches, convs="patch", include=["layers.*", "patch_embed.*"])
    assert "patch_embed.proj" in {row.name for row in report.rows}
    assert difference(model, original, batches) < 0.1


class Crossing(nn.Module):
    """An attention to few and wide tokens, and an MLP."""

    def __init__(self, width=64):
        super().__init__()
        self.cross = nn.MultiheadAttention(16, 2, kdim=width, vdim=width, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, x, memory):
        x = x + self.cross(x, memory, memory)[0]
        return x + self.mlp(x)


def crossing(width=64, tokens=3):
    torch.manual_seed(0)
    return Crossing(width).eval(), [(torch.randn(8, 40, 16), torch.randn(8, tokens, width))]


@pytest.mark.parametrize(
    ("width", "tokens", "structure", "why"),
    [(64, 3, "best", "k_proj reads 64 features, for which"), (25, 30, "slices", "k_proj has no smaller form of")],
)
def test_an_attention_is_left_with_all_its_maps_or_with_none(width, tokens, structure, why):
    model, batches = crossing(width, tokens)
    original, seen = copy.deepcopy(model), []
    attention = model.cross
    model.mlp[0].register_forward_hook(lambda *_: seen.append(1))
    report = tensorize_(model, HALF, calibrate=batches, structure=structure, example=False)
    assert model.cross is attention
    assert {name.rpartition(".")[0] for name in report.converted} == {"mlp"}
    assert f"k_proj {report.skipped['cross.k_proj']}".startswith(why)
    assert report.skipped["cross.q_proj"] == "stays with cross.k_proj"
    assert torch.equal(model.cross.k_proj_weight, original.cross.k_proj_weight)
    seen.clear()
    model(*batches[0])
    assert seen == [1]


@pytest.mark.parametrize("step", ["price_in_seconds", "adopt", "Done.forget"])
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_what_goes_wrong_at_the_very_end_leaves_the_model_as_it_was(step, error, tmp_path, monkeypatch):
    model, batches = crossing(tokens=40)
    modules, expected = [id(m) for m in model.modules()], model(*batches[0])
    calls = []

    def fail(*args):
        calls.append(args)
        if step != "adopt" or len(calls) > 2:  # the first opens the attention
            raise error

    room = "convert" if step == "adopt" else "calibrate"
    with monkeypatch.context() as patch:
        patch.setattr(f"tcpvit.tensorize.{room}.{step}", fail)
        with pytest.raises(error):
            tensorize_(model, keep=0.9, calibrate=batches, resume=tmp_path / "done", example=False)
    assert [id(m) for m in model.modules()] == modules
    assert torch.equal(model(*batches[0]), expected)
    assert (tmp_path / "done" / "calibration.json").is_file()
    assert tensorize_(model, keep=0.9, calibrate=batches, resume=tmp_path / "done", example=False).converted
    assert not (tmp_path / "done").exists()


class OnMps(torch.Tensor):
    """Stands for a tensor on Apple's GPU, which refuses float64; `cpu()` gives a plain one."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        found = super().__torch_function__(func, types, args, kwargs or {})
        if func is torch.Tensor.cpu:
            return found.as_subclass(torch.Tensor)
        if isinstance(found, cls) and found.dtype == torch.float64:
            raise TypeError("the MPS framework doesn't support float64")
        return found


def test_devices_without_float64():
    batches = images(3)
    expected, model = vit(), vit()
    tensorize_(expected, HALF, calibrate=batches, example=False)
    tensorize_(model, HALF, calibrate=[x.as_subclass(OnMps) for x in batches], example=False)
    assert torch.equal(model(batches[0]), expected(batches[0]))
    transform = HatTransform("dct", 3)
    matrix = orthonormal(transform)
    transform.matrix = transform.matrix.as_subclass(OnMps)
    assert torch.equal(orthonormal(transform), matrix)


# ------------------------------------------------------------------------------------------------ bad input


class Two(nn.Module):
    """The second layer is for negative inputs only."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.first(x) if x.mean() > -1 else self.second(x)


def test_batches_may_go_different_ways():
    torch.manual_seed(0)
    report = tensorize_(Two(), HALF, calibrate=[torch.randn(100, 8), torch.randn(100, 8) - 5, torch.randn(90, 8)])
    assert report.converted == ["first", "second"]


def test_layers_that_the_data_do_not_reach_are_named():
    report = tensorize_(Two(), HALF, calibrate=[torch.randn(100, 8)])
    assert report.skipped == {"second": "not reached by the calibration data"}
    with pytest.raises(ValueError, match="reach no layer"):
        tensorize_(Two(), HALF, calibrate=[torch.randn(100, 8)], include=["second"])


@pytest.mark.parametrize(
    ("batches", "words"),
    [
        ([torch.randn(5, 8)], "first reads 8 features, for which at least 8 tokens are needed.*have 5; give 2 times"),
        ([torch.full((100, 8), torch.nan)], "first sees NaN or infinity on batch 0"),
        ([], "calibrate= holds no batch"),
        ([torch.randn(4, 5)], "the model does not take the batches of calibrate="),
    ],
)
def test_bad_data_leave_the_model_as_it_was(batches, words):
    model = nn.ModuleDict({"first": nn.Linear(8, 8), "second": nn.Linear(8, 8)})
    model.forward = lambda x: model["second"](model["first"](x))
    x = torch.randn(3, 8)
    expected = model.forward(x)
    with pytest.raises(ValueError, match=words):
        tensorize_(model, HALF, calibrate=batches)
    assert torch.equal(model.forward(x), expected)
    assert isinstance(model["first"], nn.Linear)


def test_keep_and_calibrate_belong_together():
    with pytest.raises(ValueError, match="pass calibrate="):
        tensorize_(Two(), HALF)
    with pytest.raises(ValueError, match="pass keep="):
        tensorize_(Two(), tube=2, calibrate=[torch.randn(9, 8)])
    with pytest.raises(ValueError, match=r"keep should be .*got 2|keep"):
        TensorizeConfig(keep=2.0)


def test_a_model_that_does_not_fit_twice(monkeypatch):
    monkeypatch.setattr("tcpvit.memory.machine_memory", lambda: 1000)
    with pytest.raises(ValueError, match=r"calibrating this model would need about .* at a time"):
        tensorize_(Two(), HALF, calibrate=[torch.randn(100, 8)])


def test_labels_beside_the_inputs_are_left_out():
    batches = [(torch.randn(50, 8), torch.zeros(50, dtype=torch.long)) for _ in range(2)]
    assert tensorize_(Two(), HALF, calibrate=batches).converted == ["first"]


def test_hooks_mode_and_requires_grad_are_kept():
    model = vit().train()
    model.blocks[0].attn.qkv.weight.requires_grad_(False)
    seen = []
    model.blocks[0].mlp.fc1.register_forward_hook(lambda *_: seen.append(1))
    tensorize_(model, HALF, calibrate=images(3), structure="low_rank", uniform=True)
    seen.clear()
    model(images(1)[0])
    assert seen == [1]
    assert model.training
    assert model.blocks[0].attn.qkv.training
    assert not model.blocks[0].attn.qkv.u.requires_grad
    assert model.blocks[1].attn.qkv.u.requires_grad
