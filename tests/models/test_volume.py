"""Volumes and clips: the same ViT with patches of three axes and tubes along the depth, the channels or both."""

from dataclasses import replace

import pytest
import torch

import tcpvit
from tcpvit.analysis import compare_orders, count_flops, count_parameters, predict_flops, predict_parameters
from tcpvit.analysis.orders import map_weights
from tcpvit.layers import reference, reference_conv
from tcpvit.models import Segmenter, SegmenterConfig, ViTConfig, dense_twin
from tcpvit.models.decoder import DecoderConfig
from tcpvit.models.vit import VisionTransformer

SMALL = {"img_size": (8, 8, 12), "patch_size": (4, 4, 4), "in_chans": 3, "depth": 2, "num_classes": 5}
TCP = {
    "channels": {"num_heads": 4},
    "depth": {"tube": "depth"},
    "depth, own width": {"tube": "depth", "embed_dim": 32, "num_heads": 2},
    "depth of one channel": {"tube": "depth", "in_chans": 1},
    "both": {"tube": "depth+channels"},
    "depth and height": {"tube": "depth+height", "embed_dim": 64, "num_heads": 2},
    "both, two transforms": {"tube": "depth+channels", "transform": ("dct", "haar"), "embed_dim": 48, "num_heads": 2},
    "both, learned": {"tube": "depth+channels", "transform": "learned"},
    "dense embedding": {"tube": "depth", "patch_embed": "linear", "embed_dim": 32, "num_heads": 2},
    "tube of 6": {"tube": 6, "embed_dim": 24, "num_heads": 2},
    "joint, factorised": {"tube": "depth", "attention": "joint", "factorised": True},
    "slice, factorised, deit": {"tube": "depth+channels", "factorised": True, "distilled": True, "depth": 3},
    "mix": {"tube": "depth", "coupling": "mix:rotation+shuffle"},
    "low rank": {"tube": "depth+channels", "coupling": "low_rank:2+partial:0.3"},
    "shared": {"tube": "depth", "coupling": "shared+mix+norm", "patch_embed": "t_linear"},
    "two factors": {"tube": "depth", "coupling": "two_factor", "activation_domain": "spatial"},
}
STD = {
    "std": {"embed_dim": 24, "num_heads": 2},
    "std factorised": {"embed_dim": 24, "num_heads": 2, "factorised": True},
}


def config_of(name):
    return ViTConfig("tcp", **SMALL | TCP[name]) if name in TCP else ViTConfig("std", **SMALL | STD[name])


def volumes(config, number=2):
    return torch.randn(number, config.in_chans, *config.image_shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", TCP)
def test_features_equal_the_reference_and_the_dense_twin(name):
    torch.manual_seed(0)
    model = VisionTransformer(config_of(name)).double().eval()
    images = volumes(model.config).double()
    tokens = model.forward_features(images)
    torch.testing.assert_close(tokens, reference.features(model, images), atol=1e-9, rtol=1e-7)
    torch.testing.assert_close(dense_twin(model)(images), model(images), atol=1e-9, rtol=1e-7)


@pytest.mark.parametrize("name", [*TCP, *STD])
def test_counts_are_predicted_to_the_unit_and_by_component(name):
    config = config_of(name)
    model = VisionTransformer(config)
    assert count_parameters(model).components == {k: n for k, n in predict_parameters(config).components.items() if n}
    predicted = {part: work.matrix for part, work in predict_flops(config).items() if work.matrix}
    assert dict(count_flops(model).components) == predicted


@pytest.mark.parametrize("name", ["both", "std factorised", "depth"])
def test_a_model_of_volumes_is_saved_loaded_and_resampled(name, tmp_path):
    model = VisionTransformer(config_of(name)).eval()
    tcpvit.save_pretrained(model, tmp_path)
    again = tcpvit.from_pretrained(tmp_path)
    images = volumes(model.config)
    torch.testing.assert_close(again(images), model(images))
    assert again.config == model.config
    larger = torch.randn(1, model.config.in_chans, 16, 12, 8)
    maps = model.forward_intermediates(larger, 1, intermediates_only=True)[0]
    assert maps.shape == (1, model.config.width, 4, 3, 2)
    model.train()(images).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_the_weights_are_one_over_the_length_of_the_tube():
    """1/C_t, 1/C and 1/(C_t·C) of the weights of the maps, for any width that all of the tubes divide."""
    dense = ViTConfig("std", img_size=(8, 32, 32), patch_size=(4, 8, 8), embed_dim=192, num_heads=2)
    for axes, share in (("channels", 3), ("depth", 4), ("depth+channels", 12)):
        tcp = replace(dense, kind="tcp", tube=axes, patch_embed="t_linear")
        assert map_weights(tcp) * share == map_weights(dense)
        model = VisionTransformer(tcp)
        built = sum(
            p.numel()
            for n, p in model.named_parameters()
            if n.startswith("blocks") and n.endswith("weight_hat") and "norm" not in n
        )
        assert built == map_weights(tcp)
    assert [float(row.cells[3]) for row in compare_orders(dense).rows] == [1, 1 / 3, 1 / 4, 1 / 12]


def test_factorised_attention_looks_at_its_frame_and_its_place():
    """What a patch sees: behind one block its frame alone (through no class token), behind two everything."""
    config = replace(config_of("std factorised"), depth=1)
    model = VisionTransformer(config).double().eval()
    images = volumes(config, 1).double()
    other = images.clone()
    other[:, :, 4:] += 1  # the second frame of patches
    before, after = (model.forward_features(x)[0, 1:].view(2, 2, 3, -1) for x in (images, other))
    assert torch.equal(before[0], after[0])
    assert not torch.allclose(before[1], after[1])
    whole = model.attention_maps(images)[0]
    assert whole.shape == (2, 2, 7, 7)  # two frames, two heads, 1 + 2·3 tokens


@pytest.mark.parametrize("coupling", ["", "mix+shuffle", "low_rank:2+partial:0.4"])
@pytest.mark.parametrize("domain", ["transform", "spatial"])
def test_a_decoder_of_volumes_equals_the_reference(coupling, domain):
    backbone = ViTConfig("tcp", **SMALL | {"tube": "depth", "num_classes": 0})
    decoder = DecoderConfig("tcp", channels=(8, 12), coupling=coupling, activation_domain=domain)
    config = SegmenterConfig(backbone, decoder, num_classes=3)
    torch.manual_seed(0)
    model = Segmenter(config).double().eval()
    for stage in model.decoder.stages:
        stage.norm.running_mean.normal_()
    maps = torch.randn(1, backbone.width, 2, 2, 3).double()
    expected = reference_conv.decode(model.decoder, maps, (8, 8, 12))
    torch.testing.assert_close(model.decoder(maps, (8, 8, 12)), expected, atol=1e-9, rtol=1e-7)
    assert count_parameters(model) == predict_parameters(config)
    assert count_flops(model) == sum(work.matrix for work in predict_flops(config).values())
    odd = torch.randn(1, 3, 7, 9, 12).double()
    before = model(odd)
    assert before.shape == (1, 3, 7, 9, 12)
    torch.testing.assert_close(model.fuse_()(odd), before)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (
            {"img_size": (8, 9, 12)},
            "8×9×12 does not divide into patches of 4: its height 9 is no multiple of 4; .* 8 or 12",
        ),
        ({"img_size": (2, 8, 12)}, "its depth 2 is no multiple of 4; resize or pad it to 4"),
        ({"img_size": 8, "patch_size": 4, "tube": "depth"}, "tube=depth is for volumes"),
        ({"img_size": 8, "patch_size": 4, "factorised": True}, "factorised is for volumes"),
        ({"img_size": (8, 8)}, "got img_size=\\(8, 8\\) and patch_size=\\(4, 4, 4\\)"),
        ({"transform": ("dct", "dct")}, "needs a tube as tube=depth\\+channels"),
        ({"tube": "deph"}, "did you mean 'depth'"),
        ({"stem": 4}, "are for images"),
        ({"patch_size": (4, 4)}, "as many sides as the image, 3, got 4×4"),
    ],
)
def test_what_does_not_fit_names_the_axis_and_the_way_out(options, match):
    with pytest.raises(ValueError, match=match):
        ViTConfig("tcp", **SMALL | options)


def test_images_for_a_model_of_volumes_are_refused():
    model = VisionTransformer(config_of("std"))
    with pytest.raises(ValueError, match=r"volumes should be \(B, 3, T, H, W\), got shape \(2, 3, 8, 8\)"):
        model(torch.zeros(2, 3, 8, 8))
