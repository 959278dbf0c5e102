"""Std-ViT and TCP-ViT: the paper's counts to the unit, the reference's outputs, timm's manners."""

import copy
import sys
from pathlib import Path

import pytest
import torch

import tcpvit
from tcpvit.layers import reference
from tcpvit.models import VisionTransformer, ViTConfig, model_config, register_model, twin_name

F64 = torch.float64


def count(module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_counts_of_the_classifiers_by_component():
    std, tcp = tcpvit.create_model("std_vit_cifar"), tcpvit.create_model("tcp_vit_cifar")
    for model, patch, block, blocks, total in ((std, 2352, 28272, 113088, 119194), (tcp, 0, 9840, 39360, 43114)):
        assert count(model.patch_embed) == patch
        assert (model.embed.cls_token.numel(), model.embed.pos_embed.numel()) == (48, 3120)
        assert {count(b) for b in model.blocks} == {block}
        assert count(model.blocks) == blocks
        assert count(model.norm) == 96
        assert count(model.head) == 490
        assert count(model) == total
    first = std.blocks[0]
    parts = (first.attn.qkv, first.attn.proj, first.mlp.fc1, first.mlp.fc2)
    assert [count(p) for p in parts] == [7056, 2352, 9408, 9264]
    assert count(first.norm1) + count(first.norm2) == 192
    first = tcp.blocks[0]
    parts = (first.attn.qkv, first.attn.proj, first.mlp.fc1, first.mlp.fc2)
    assert [count(p) for p in parts] == [3 * 816, 3 * 272, 3 * 1088, 3 * 1040]
    assert count(first.norm1) + count(first.norm2) == 3 * 64


def test_a_reader_follows_the_forward_pass_through_fewer_than_ten_files():
    model, images, files = tcpvit.create_model("tcp_vit_cifar").eval(), torch.randn(2, 3, 32, 32), set()
    source = Path(tcpvit.__file__).parent

    def note(frame, event, _):
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(source):
            files.add(path.relative_to(source).as_posix())

    with torch.no_grad():
        model(images)  # builds the kernels, once
        sys.setprofile(note)
        try:
            model(images)
        finally:
            sys.setprofile(None)
    assert {"models/vit.py", "layers/block.py", "layers/transform.py"} < files
    assert len(files) < 10, sorted(files)


def test_counts_of_the_pet_backbones_by_component():
    std, tcp = tcpvit.create_model("std_vit_pet_backbone"), tcpvit.create_model("tcp_vit_pet_backbone")
    for model, encoder, embedding, total in ((std, 1188480, 86592, 1275072), (tcp, 402048, 53632, 455680)):
        assert count(model.blocks) + count(model.norm) == encoder
        assert count(model.patch_embed) + count(model.embed) == embedding
        assert count(model) == total
    assert {count(b) for b in std.blocks} == {297024}
    assert {count(b) for b in tcp.blocks} == {3 * 33472}
    assert count(tcp.patch_embed) == 4096


@pytest.mark.parametrize(("size", "millions"), [("tiny", 5.717416), ("small", 22.050664), ("base", 86.567656)])
def test_the_standard_families_have_deits_counts(size, millions):
    """DeiT's published models: 5.7M, 22.1M and 86.6M."""
    with torch.device("meta"):
        std = tcpvit.create_model(f"std_vit_{size}_patch16_224")
        tcp = tcpvit.create_model(f"tcp_vit_{size}_patch16_224")
    assert count(std) == round(millions * 1e6)
    assert std.config.num_heads == 3 * tcp.config.num_heads
    assert tcp.config.d // tcp.config.num_heads == 64
    assert count(tcp.blocks) / count(std.blocks) == pytest.approx(1 / 3, abs=0.01)


@pytest.mark.parametrize(
    ("name", "total"),
    [
        ("tcp_vit_cifar_plus", 43_930),
        ("tcp_vit_cifar_wide", 116_893),
        ("tcp_vit_cifar_44k", 43_530),
        ("std_vit_cifar_44k", 42_578),
        ("tcp_vit_cifar_120k", 113_210),
        ("std_vit_cifar_120k", 111_974),
    ],
)
def test_the_presets_of_the_study_keep_within_their_budgets(name, total):
    assert sum(p.numel() for p in tcpvit.create_model(name).parameters()) == total


@pytest.mark.parametrize("name", [n for n in tcpvit.list_models() if isinstance(model_config(n), ViTConfig)])
def test_every_preset_runs_forward_and_backward(name):
    small = {"depth": 1} if "224" in name or "deit" in name else {}
    model = tcpvit.create_model(name, **small)
    images = torch.randn(2, model.config.in_chans, *model.config.image_shape)
    tokens = model.forward_features(images)
    N = torch.tensor(model.config.grid_of(*model.config.image_shape)).prod()
    assert tokens.shape == (2, model.num_prefix_tokens + N, model.num_features)
    model(images).square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


NEAR = {"patch_embed": "conv", "class_token": False, "positions": False, "global_pool": "avg", "local": 3}
NEAR |= {"num_heads": 2, "mlp_ratio": 2.0}


def test_blocks_may_start_as_the_identity():
    for name in ("std_vit_cifar_44k", "tcp_vit_cifar_44k"):
        model = tcpvit.create_model(name)
        images = torch.randn(2, 3, 32, 32)
        _, tokens = model.forward_intermediates(images, output_fmt="NLC")
        assert torch.equal(tokens[0], tokens[-1])


def test_the_mean_of_all_tokens_is_taken_before_the_transform_or_behind_it():
    model = tcpvit.create_model("tcp_vit_cifar_44k", zero_residual=False).double()
    images = torch.randn(2, 3, 32, 32, dtype=F64)
    torch.testing.assert_close(model(images), model.forward_head(model.forward_features(images)))


def test_maps_of_pooled_attention_are_those_of_pooled_tokens():
    maps = tcpvit.create_model("tcp_vit_cifar_44k").attention_maps(torch.randn(2, 3, 32, 32))
    assert [tuple(m.shape) for m in maps] == [(2, 2, 16, 16)] * 4
    torch.testing.assert_close(maps[0].sum(-1), torch.ones(2, 2, 16))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"class_token": False}, "global_pool='avg'"),
        ({"local": 3}, "set class_token=False"),
        ({**NEAR, "local": 2}, "take 0 or an odd side"),
        ({**NEAR, "attention_pool": 3}, "does not divide the grid of 8×8 tokens"),
        ({**NEAR, "stem_width": 7}, "no multiple of the tube 3"),
        ({"stem_width": 6}, "stem_width is an option of patch_embed='conv'"),
        ({**NEAR, "patch_size": 1}, "patch_size is 2, 4, 8"),
    ],
)
def test_options_of_the_grid_that_do_not_fit(options, message):
    with pytest.raises(ValueError, match=message):
        tcpvit.create_model("tcp_vit_cifar", **options)


@pytest.mark.parametrize("attention", ["slice", "joint"])
@pytest.mark.parametrize("domain", ["transform", "spatial"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"patch_embed": "shared", "transform": "haar"},
        {"embed_dim": 24, "num_heads": 2, "coupling": "mix:rotation+shuffle"},
        {"tube": 6, "num_heads": 2, "transform": "dst", "coupling": "low_rank:2+partial:0.25"},
        {"in_chans": 5, "img_size": (8, 12), "transform": "cosine_kka", "global_pool": "avg"},
        {"patch_embed": "sub_patch", "tube": 4, "img_size": (8, 12), "num_heads": 2},
        {"patch_embed": "sub_patch", "tube": 4, "embed_dim": 24, "num_heads": 3, "coupling": "shared+mix:rotation"},
        {**NEAR, "tube": 4, "embed_dim": 24, "attention_pool": 2, "coupling": "norm+shuffle"},
        {**NEAR, "tube": 4, "embed_dim": 24, "gated": True, "coupling": "shared+mix", "positions": True},
        {**NEAR, "patch_size": 2, "img_size": (8, 12), "embed_dim": 12, "gated": True, "local": 0},
    ],
)
def test_features_equal_the_reference(attention, domain, options):
    options = {"depth": 2, "img_size": 16, **options}
    model = tcpvit.create_model("tcp_vit_cifar", attention=attention, activation_domain=domain, **options).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    images = torch.randn(2, model.config.in_chans, *model.config.image_shape, dtype=F64)
    torch.testing.assert_close(model.forward_features(images), reference.features(model, images), atol=1e-10, rtol=1e-9)


def test_in_the_papers_preset_the_slices_never_meet():
    """Hat slice k of the tokens depends on hat slice k of the image alone."""
    model = tcpvit.create_model("tcp_vit_cifar").double()
    phi = tcpvit.algebra.get_transform("dct", 3)
    images = torch.randn(1, 3, 32, 32, dtype=F64, requires_grad=True)
    tokens_hat = phi.to_hat(model.unflatten(model.forward_features(images)))
    weights = torch.randn_like(tokens_hat)
    for k in range(3):
        (gradient,) = torch.autograd.grad((weights * tokens_hat)[..., k].sum(), images, retain_graph=True)
        energy = phi.to_hat(gradient, dim=1).square().sum((0, 2, 3))
        assert energy[k] > 1e-3
        assert energy[[j for j in range(3) if j != k]].max() < 1e-20 * energy[k]


@pytest.mark.parametrize("kind", ["std", "tcp"])
@pytest.mark.parametrize(
    ("channels", "size", "patch"), [(1, 28, 7), (3, (32, 48), 8), (13, 20, 5), (200, 15, 5), (300, 8, 4)]
)
def test_any_number_of_channels_and_any_size(kind, channels, size, patch):
    options = {"in_chans": channels, "img_size": size, "patch_size": patch, "num_heads": 1, "depth": 1}
    width = 64 if kind == "std" else None  # the dense width P²·C would take hundreds of millions of weights
    model = tcpvit.create_model(f"{kind}_vit_cifar", **options, embed_dim=width, num_classes=7)
    shape = model.config.image_shape
    assert model(torch.randn(2, channels, *shape)).shape == (2, 7)


@pytest.mark.parametrize("tube", [1, 2, 3, 4, 6, 8, 12, 16, 24, 48, 64, 96, 192])
def test_families_take_any_tube_that_divides_the_width(tube):
    model = tcpvit.create_model("tcp_vit_tiny_patch16_224", tube=tube, depth=1, num_classes=3, img_size=32)
    assert model(torch.randn(1, 3, 32, 32)).shape == (1, 3)
    assert model.blocks[0].attn.qkv.weight_hat.numel() == 3 * 192 * 192 // tube


@pytest.mark.parametrize("kind", ["std", "tcp"])
def test_images_of_another_size_and_bad_images(kind):
    model = tcpvit.create_model(f"{kind}_vit_cifar")
    assert model(torch.randn(1, 3, 48, 16)).shape == (1, 10)
    with pytest.raises(ValueError, match="33×32 does not divide into patches of 4"):
        model(torch.randn(1, 3, 33, 32))
    with pytest.raises(ValueError, match=r"images should be \(B, 3, H, W\), got shape \(1, 4, 32, 32\)"):
        model(torch.randn(1, 4, 32, 32))


@pytest.mark.parametrize("kind", ["std", "tcp"])
def test_timms_manners(kind):
    model = tcpvit.create_model(f"{kind}_vit_cifar").eval()
    images = torch.randn(2, 3, 32, 32)
    tokens = model.forward_features(images)
    torch.testing.assert_close(model.forward_head(tokens), model(images))
    assert model.forward_head(tokens, pre_logits=True).shape == (2, 48)
    model.reset_classifier(5)
    assert model(images).shape == (2, 5)
    assert model.get_classifier() is model.head
    model.reset_classifier(0, "avg")
    torch.testing.assert_close(model(images), tokens[:, 1:].mean(1))
    assert model.config.num_classes == 0
    with pytest.raises(ValueError, match="global_pool"):
        model.reset_classifier(3, "max")
    assert model.unflatten(tokens).shape == (2, 65, model.config.d, model.config.tube_length)


@pytest.mark.parametrize("kind", ["std", "tcp"])
def test_forward_intermediates(kind):
    model = tcpvit.create_model(f"{kind}_vit_cifar").eval()
    images = torch.randn(2, 3, 32, 16)
    final, maps = model.forward_intermediates(images, norm=True)
    assert [m.shape for m in maps] == [(2, 48, 8, 4)] * 4
    torch.testing.assert_close(final, model.forward_features(images))
    torch.testing.assert_close(maps[-1].flatten(2).mT, final[:, 1:])
    ((tokens, prefix),) = model.forward_intermediates(
        images, [-1], norm=True, return_prefix_tokens=True, output_fmt="NLC", intermediates_only=True
    )
    torch.testing.assert_close(torch.cat([prefix, tokens], 1), final)
    assert len(model.forward_intermediates(images, 2, intermediates_only=True)) == 2
    for bad in ([4], 5, [-5]):
        with pytest.raises(ValueError, match="there are 4 blocks"):
            model.forward_intermediates(images, bad)
    with pytest.raises(ValueError, match="output_fmt"):
        model.forward_intermediates(images, output_fmt="NHWC")


def test_attention_maps_by_slice_and_head():
    images = torch.randn(2, 3, 32, 32)
    for options, shape in (({}, (3, 2, 4, 65, 65)), ({"attention": "joint"}, (2, 4, 65, 65))):
        maps = tcpvit.create_model("tcp_vit_cifar", **options).attention_maps(images)
        assert [m.shape for m in maps] == [shape] * 4
        torch.testing.assert_close(maps[0].sum(-1), torch.ones(shape[:-1]))
    assert tcpvit.create_model("std_vit_cifar").attention_maps(images)[0].shape == (2, 4, 65, 65)


def test_registry():
    assert tcpvit.list_models("tcp_*_224") == [f"tcp_vit_{s}_patch16_224" for s in ("base", "small", "tiny")]
    assert twin_name("std_vit_cifar") == "tcp_vit_cifar"
    with pytest.raises(ValueError, match="registered already"):
        register_model("tcp_vit_cifar", ViTConfig("tcp", img_size=32, patch_size=4))
    with pytest.raises(ValueError, match="no twin 'tcp_scene_small'"):
        twin_name("std_scene_small")
    with pytest.raises(ValueError, match="no model is called 'tcp_vit_nowhere'"):
        twin_name("tcp_vit_nowhere")


def test_the_same_seed_gives_the_same_model():
    def weights(seed):
        torch.manual_seed(seed)
        return tcpvit.create_model("tcp_vit_cifar", coupling="mix:rotation").state_dict()

    assert all(torch.equal(a, b) for a, b in zip(weights(3).values(), weights(3).values(), strict=True))


def test_a_data_driven_transform_needs_its_data():
    with pytest.raises(ValueError, match=r"pass algebra.data_driven\(images\)"):
        tcpvit.create_model("tcp_vit_cifar", transform="data_driven")
    with pytest.raises(ValueError, match=r"needs its matrix: pass the matrix itself"):
        tcpvit.create_model("tcp_vit_cifar", transform="matrix")
    transform = tcpvit.algebra.data_driven(torch.rand(50, 3))
    model = tcpvit.create_model("tcp_vit_cifar", transform=transform)
    assert isinstance(model, VisionTransformer)
    torch.testing.assert_close(model.transform.matrix, transform.matrix.float())


@pytest.mark.parametrize("kind", ["std", "tcp"])
def test_precisions_and_layouts(kind):
    model = tcpvit.create_model(f"{kind}_vit_cifar").eval()
    images = torch.randn(4, 3, 32, 32)
    exact = model.double()(images.double())
    logits = model.float()(images)
    torch.testing.assert_close(logits.double(), exact, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(model(images.to(memory_format=torch.channels_last)), logits)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = model(images)
    assert low.dtype == torch.bfloat16
    assert (low.float() - logits).abs().max() < 0.1
    assert (model.bfloat16()(images.bfloat16()).float() - logits).abs().max() < 0.1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("options", [{"transform": "learned"}, {"coupling": "norm"}])
def test_a_trained_model_in_half_precision(options, dtype):
    model = tcpvit.create_model("tcp_vit_cifar", depth=1, **options).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    images = torch.randn(2, 3, 32, 32)
    logits = model(images)
    low = model.to(dtype)(images.to(dtype))
    assert low.dtype == dtype
    assert (low.float() - logits).abs().max() < 0.1
    low.square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("name", ["std_vit_cifar", "tcp_vit_cifar", "tcp_vit_cifar_plus"])
def test_an_empty_batch(name):
    assert tcpvit.create_model(name)(torch.zeros(0, 3, 32, 32)).shape == (0, 10)


def test_gradients_of_each_sample_by_torch_func():
    """`torch.func` takes no operators of ours: the kernels step aside, and the numbers are the same."""
    model = tcpvit.create_model("tcp_vit_cifar", depth=1, attention="joint")
    parameters = dict(model.named_parameters())
    images = torch.randn(3, 3, 32, 32)

    def loss(weights, image):
        return torch.func.functional_call(model, weights, (image[None],)).square().sum()

    each = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, images)
    for i, image in enumerate(images):
        found = torch.autograd.grad(loss(parameters, image), parameters.values())
        for gradient, name in zip(found, parameters, strict=True):
            torch.testing.assert_close(each[name][i], gradient, atol=1e-5, rtol=1e-4)


def test_a_fused_model_takes_new_weights():
    """Where no kernel applies the norms' scales (slices of more than 64), they are skipped once folded."""
    model = tcpvit.create_model("tcp_vit_cifar", embed_dim=3 * 72, num_heads=2, depth=1, patch_embed="t_linear").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    images = torch.randn(2, 3, 32, 32)
    fused = copy.deepcopy(model).fuse_()
    torch.testing.assert_close(fused(images), model(images), atol=1e-4, rtol=1e-4)
    fused.load_state_dict(model.state_dict())
    torch.testing.assert_close(fused(images), model(images))
