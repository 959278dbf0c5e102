"""Segmenters: the paper's counts, any encoder and size, the tensorised decoder against the slow one and a dense one."""

import copy

import pytest
import torch
from torch import nn

import tcpvit.models.decoder
from tcpvit.compat import repair_torchvision
from tcpvit.layers import reference_conv
from tcpvit.models import (
    Decoder,
    DecoderConfig,
    EncoderDecoder,
    Segmenter,
    SegmenterConfig,
    ViTConfig,
    create_model,
    from_pretrained,
    model_config,
    register_model,
    save_pretrained,
    twin_name,
)

SMALL = ViTConfig("tcp", img_size=16, patch_size=4, num_classes=0, depth=1)
TCP_DECODERS = [
    {"coupling": coupling, "activation_domain": domain}
    for coupling in ("none", "mix:rotation+shuffle", "shuffle+low_rank:2+partial:0.3")
    for domain in ("transform", "spatial")
]


def numbers(module):
    return sum(p.numel() for p in module.parameters())


def with_statistics(model):
    """The model in eval mode, with BatchNorms that have something to do."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.1)
    return model.eval()


def test_pooled_attention_takes_images_of_any_size():
    pooled = {"class_token": False, "local": 3, "attention_pool": 4}
    backbone = ViTConfig("tcp", img_size=32, patch_size=4, num_classes=0, depth=1, global_pool="avg", **pooled)
    model = Segmenter(SegmenterConfig(backbone, DecoderConfig(channels=(12, 12)))).eval()
    images = torch.randn(2, 3, 32, 52)  # 8×13 patches, of which attention takes means of 4×4
    assert model(images).shape == (2, 2, 32, 52)
    whole = nn.functional.pad(images, (0, 12, 0, 0), mode="replicate")
    torch.testing.assert_close(model(images), model(whole)[..., :52])


@pytest.mark.parametrize(
    ("name", "backbone", "decoder"),
    [
        ("std_vit_pet", 1_275_072, 295_906),
        ("tcp_vit_pet", 455_680, 295_906),
        ("tcp_vit_pet_plus", 464_064, 295_906),
        ("tcp_vit_pet_full", 455_680, 101_456),
    ],
)
def test_parameters_by_component(name, backbone, decoder):
    model = create_model(name)
    assert (numbers(model.backbone), numbers(model.decoder)) == (backbone, decoder)


def test_the_papers_totals():
    totals = {name: numbers(create_model(name)) for name in ("std_vit_pet", "tcp_vit_pet", "tcp_vit_pet_full")}
    assert totals == {"std_vit_pet": 1_570_978, "tcp_vit_pet": 751_586, "tcp_vit_pet_full": 557_136}
    assert round(totals["tcp_vit_pet"] / totals["std_vit_pet"], 3) == 0.478
    assert round(totals["tcp_vit_pet_full"] / totals["std_vit_pet"], 3) == 0.355


@pytest.mark.parametrize(("in_channels", "out", "weights"), [(192, 96, 165_888), (96, 64, 55_296), (64, 64, 36_864)])
def test_the_papers_stages(in_channels, out, weights):
    stages = Decoder(DecoderConfig(), 192, 2).stages
    found = [s for s in stages if (s.conv.in_channels, s.conv.out_channels) == (in_channels, out)]
    assert {numbers(s) for s in found} == {weights + out + 2 * out}  # filters, bias, BatchNorm


def test_convolutions_stand_at_16_32_64_and_128_pixels():
    decoder, seen = Decoder(DecoderConfig(), 192, 2).eval(), []
    for stage in decoder.stages:
        stage.conv.register_forward_hook(lambda module, inputs, output: seen.append(tuple(inputs[0].shape[-2:])))
    decoder(torch.zeros(1, 192, 16, 16), (128, 128))
    assert seen == [(16, 16), (32, 32), (64, 64), (128, 128)]


@pytest.mark.parametrize("size", [(16, 16), (21, 30), (3, 5), (64, 8)])
@pytest.mark.parametrize("kind", ["std", "tcp"])
def test_any_size_any_classes_any_patch(kind, size):
    decoder = DecoderConfig(kind, channels=(6, 3))
    model = Segmenter(SegmenterConfig(SMALL, decoder, num_classes=5)).eval()
    assert model(torch.randn(2, 3, *size)).shape == (2, 5, *size)


def test_padding_changes_nothing_where_the_patch_divides():
    model = Segmenter(SegmenterConfig(SMALL, DecoderConfig(channels=(6, 6)))).eval()
    images = torch.randn(1, 3, 15, 16)
    padded = torch.cat([images, images[:, :, -1:]], 2)
    torch.testing.assert_close(model(images), model(padded)[:, :, :15])


def test_logits_enlarged_are_logits_of_enlarged_features():
    """The 1×1 head and bilinear enlargement commute, so that the head may stand before the last enlargement."""
    decoder = with_statistics(Decoder(DecoderConfig(channels=(6,)), 8, 3)).double()
    maps = torch.randn(2, 8, 4, 4, dtype=torch.float64)
    features = nn.functional.interpolate(decoder.stages[0](maps), (16, 16), mode="bilinear")
    torch.testing.assert_close(decoder(maps, (16, 16)), decoder.head(features))


@pytest.mark.parametrize("options", TCP_DECODERS)
def test_the_tensorised_decoder_is_the_slow_one(options):
    config = DecoderConfig("tcp", channels=(9, 6, 6), **options)
    decoder = with_statistics(Decoder(config, 12, 2, tube=3)).double()
    maps = torch.randn(2, 12, 3, 4, dtype=torch.float64)
    torch.testing.assert_close(decoder(maps, (12, 13)), reference_conv.decode(decoder, maps, (12, 13)))


@pytest.mark.parametrize("options", TCP_DECODERS)
def test_the_tensorised_decoder_has_a_dense_twin(options):
    config = DecoderConfig("tcp", channels=(9, 6, 6), **options)
    tcp = with_statistics(Decoder(config, 12, 2, tube=3)).double()
    twin = dense_twin(tcp)
    maps = torch.randn(2, 12, 4, 4, dtype=torch.float64)
    torch.testing.assert_close(twin(maps, (16, 16)), tcp(maps, (16, 16)))
    assert numbers(twin) == numbers(Decoder(DecoderConfig(channels=(9, 6, 6)), 12, 2))


@torch.no_grad()
def dense_twin(tcp):
    """The dense decoder that computes the same: transforms and couplings folded into the filters."""
    from tcpvit.layers.conv import mix_maps, to_hat_maps

    inputs = [stage.conv.d_in * tcp.tube for stage in tcp.stages]
    twin = Decoder(DecoderConfig(channels=tcp.config.channels), inputs[0], tcp.head.out_channels).double().eval()
    matrix, inverse = (m.double() for m in tcp.transform.matrices())
    for i, (mine, theirs) in enumerate(zip(twin.stages, tcp.stages, strict=True)):

        def linear(x, i=i, stage=theirs):
            """From what the stage is given to its BatchNorm, without the bias; zeros around do not matter to it."""
            if i == 0:
                x = to_hat_maps(tcp.transform, x)
            elif stage.spatial:
                x = mix_maps(matrix, x)
            y = stage.conv(stage.couple(x)) - stage.conv.bias_hat.view(-1, 1, 1)
            return mix_maps(inverse, y) if stage.spatial else y

        pulses = torch.eye(inputs[i]).double()[:, :, None, None] * torch.nn.functional.pad(torch.ones(1, 1), (1,) * 4)
        mine.conv.weight.copy_(linear(pulses).transpose(0, 1).flip(2, 3))  # the response to a pulse, mirrored
        bias = theirs.conv.bias_hat.view(1, -1, 1, 1)
        mine.conv.bias.copy_((mix_maps(inverse, bias) if theirs.spatial else bias).flatten())
        mine.norm.load_state_dict(theirs.norm.state_dict())
    twin.head.load_state_dict(tcp.head.state_dict())
    return twin


@pytest.mark.parametrize("decoder", [{}, *({"kind": "tcp", **options} for options in TCP_DECODERS)])
def test_fusing_batch_norms_changes_no_logit(decoder):
    config = SegmenterConfig(SMALL, DecoderConfig(channels=(9, 6), **decoder))
    model = with_statistics(Segmenter(config)).double()
    images = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    fused = copy.deepcopy(model).fuse_()
    torch.testing.assert_close(fused(images), model(images))
    left = sum(isinstance(m, nn.BatchNorm2d) and not m.fused for m in fused.modules())
    stays = decoder.get("activation_domain") == "spatial" or "low_rank" in decoder.get("coupling", "")
    assert left == (2 if stays else 0)
    assert fused.backbone.fused
    with pytest.raises(ValueError, match="for inference only"):
        fused.train()
    again = Segmenter(config).double().eval()
    again.load_state_dict(fused.state_dict())  # as an ordinary model
    torch.testing.assert_close(again(images), model(images))
    fused.load_state_dict(model.state_dict())  # what is loaded is not folded
    torch.testing.assert_close(fused(images), model(images))


@pytest.mark.parametrize("name", ["std_vit_pet", "tcp_vit_pet_plus", "tcp_vit_pet_full"])
def test_saved_and_loaded(name, tmp_path):
    model = with_statistics(create_model(name, num_classes=3, decoder={"channels": [12, 12]}))
    save_pretrained(model, tmp_path)
    again = from_pretrained(tmp_path)
    assert again.config == model.config
    images = torch.randn(1, 3, 24, 24)
    torch.testing.assert_close(again(images), model(images))


def test_an_encoder_of_another_layout_is_told():
    channels_last = nn.Sequential(nn.Conv2d(3, 8, 4, stride=4), nn.Flatten(2), nn.Unflatten(2, (4, 4)))
    decoder = Decoder(DecoderConfig(channels=(6,)), in_channels=16, num_classes=2)
    with pytest.raises(ValueError, match=r"encoder gives \(1, 8, 4, 4\), but the decoder takes maps \(B, 16, h, w\)"):
        EncoderDecoder(channels_last, decoder)(torch.randn(1, 3, 16, 16))


def test_export_with_any_batch():
    model = Segmenter(SegmenterConfig(SMALL, DecoderConfig("tcp", channels=(9, 6), coupling=("mix", "shuffle")))).eval()
    images = torch.randn(2, 3, 16, 16)
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(model, (images,), dynamic_shapes=({0: batch},))
    more = torch.randn(5, 3, 16, 16)
    torch.testing.assert_close(program.module()(more), model(more))


@pytest.mark.parametrize("kind", ["std", "tcp"])
def test_compiles_in_one_graph(kind):
    decoder = DecoderConfig(kind, channels=(6, 6))
    model = Segmenter(SegmenterConfig(SMALL, decoder)).eval()
    images = torch.randn(2, 3, 16, 16)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(images), model(images))


def test_a_compiled_segmenter_takes_sizes_that_change():
    torch.compiler.reset()
    model = Segmenter(SegmenterConfig(SMALL, DecoderConfig(channels=(6,)))).eval()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for size in ((16, 16), (24, 20), (19, 33)):
        images = torch.randn(2, 3, *size)
        found, expected = (learned(called, model, images) for called in (compiled, model))
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def learned(called, model, images) -> list[torch.Tensor]:
    """The logits, and the gradients of all weights."""
    model.zero_grad()
    logits = called(images)
    logits.square().mean().backward()
    return [logits, *(p.grad for p in model.parameters() if p.grad is not None)]


def test_every_parameter_learns():
    config = SegmenterConfig(SMALL, DecoderConfig("tcp", channels=(9, 6), coupling=("mix", "shuffle")))
    model = Segmenter(config)
    model(torch.randn(2, 3, 16, 16)).square().mean().backward()
    idle = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum()]
    # A bias before a BatchNorm is taken away again; the last block's class token is not among the maps.
    assert all(name.endswith(("conv.bias_hat", "cls_token")) for name in idle)


def test_any_encoder():
    repair_torchvision()
    timm = pytest.importorskip("timm")
    images = torch.randn(1, 3, 70, 64)
    pyramid = timm.create_model("test_resnet", features_only=True).eval()
    channels = pyramid.feature_info.channels()[-1]
    model = EncoderDecoder(pyramid, Decoder(DecoderConfig(channels=(8, 8)), channels, 4), multiple=32).eval()
    assert model(images).shape == (1, 4, 70, 64)
    vit = timm.create_model("test_vit", img_size=80, dynamic_img_size=True).eval()
    model = EncoderDecoder(vit, Decoder(DecoderConfig(channels=(8, 8)), vit.embed_dim, 4), multiple=16).eval()
    assert model(images).shape == (1, 4, 70, 64)


def test_a_new_head():
    model = Segmenter(SegmenterConfig(SMALL, DecoderConfig(channels=(6,))))
    model.reset_classifier(7)
    assert model(torch.randn(1, 3, 16, 16)).shape[1] == model.config.num_classes == model.num_classes == 7


def test_options_of_the_parts():
    config = model_config("tcp_vit_pet", num_classes=4, backbone={"attention": "joint", "coupling": ["mix"]})
    assert (config.num_classes, config.backbone.attention, config.backbone.coupling) == (4, "joint", ("mix",))
    assert config.decoder == DecoderConfig()
    with pytest.raises(ValueError, match=r"'atention' is no option of ViTConfig; did you mean 'attention'\?"):
        model_config("tcp_vit_pet", backbone={"atention": "joint"})
    with pytest.raises(ValueError, match="'depth' is no option of SegmenterConfig"):
        model_config("tcp_vit_pet", depth=2)


def test_a_given_transform_goes_to_the_backbone():
    matrix = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64))[0]
    model = create_model("tcp_vit_pet", backbone={"transform": matrix, "depth": 1})
    torch.testing.assert_close(model.backbone.transform.matrices()[0], matrix.float())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"decoder": {"kind": "tcp", "channels": [96, 64]}}, "tube 3 does not divide its 64 channels"),
        ({"decoder": {"kind": "tpc"}}, "did you mean 'tcp'"),
        ({"decoder": {"coupling": "mix"}}, "decoder.coupling is an option of TCP decoders"),
        ({"decoder": {"kind": "tcp", "channels": [96], "coupling": "two_factor"}}, "not by two_factor"),
        ({"decoder": {"kind": "tcp", "channels": [96], "transform": "data_driven"}}, "needs its matrix"),
        ({"decoder": {"channels": []}}, r"decoder.channels should be a list of one or more whole numbers, got \[\]"),
        ({"decoder": {"channels": 64}}, "decoder.channels should be a list of one or more whole numbers, got 64"),
        (
            {"decoder": {"channels": [96, 64.5]}},
            r"decoder.channels\[1\] should be a whole number of at least 1, got 64.5",
        ),
        ({"decoder": "tcp"}, "decoder is a group of options, as decoder.kind, got decoder='tcp'"),
        ({"backbone": 3}, "backbone is a group of options"),
        ({"backbone": {"num_classes": 10}}, "has num_classes=0"),
        ({"num_classes": 0}, "num_classes should be a whole number of at least 1, got 0"),
    ],
)
def test_what_does_not_fit_is_said(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        create_model("tcp_vit_pet", **options)


def test_twins_of_variants():
    assert twin_name("std_vit_pet") == "tcp_vit_pet"
    assert {twin_name(f"tcp_vit_pet{tail}") for tail in ("", "_plus", "_full")} == {"std_vit_pet"}


def test_a_preset_is_a_config_of_a_known_class():
    with pytest.raises(ValueError, match=r"ViTConfig, .*got DecoderConfig"):
        register_model("mine", DecoderConfig())


@pytest.mark.parametrize("preset", ["tcp_vit_pet", "tcp_vit_pet_full"])
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_every_stage_of_a_decoder_has_the_layout_that_is_set(monkeypatch, preset, layout):
    monkeypatch.setitem(tcpvit.models.decoder.LAYOUTS, 2, layout)
    seen = []
    decoder = create_model(preset).decoder
    for stage in decoder.stages:
        stage.register_forward_pre_hook(lambda _, args: seen.append(args[0].is_contiguous(memory_format=layout)))
    decoder(torch.randn(2, 192, 4, 4), (32, 32))
    assert seen == [True] * 4
