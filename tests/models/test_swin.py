"""Swin: timm's counts and outputs, and TCP-Swin held to standard Swins slice by slice and to loops over windows."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tcpvit
from tcpvit.analysis import count_flops, count_parameters
from tcpvit.compat import repair_torchvision
from tcpvit.layers import reference
from tcpvit.layers.groups import parameter_groups
from tcpvit.layers.window import TWindowAttention, WindowAttention, blocked_pairs, relative_positions
from tcpvit.models import EncoderDecoder, SwinConfig, SwinTransformer
from tcpvit.models.decoder import Decoder, DecoderConfig

repair_torchvision()
timm = pytest.importorskip("timm")
F64 = torch.float64
SMALL = {"img_size": 32, "embed_dim": 24, "depths": (2, 2), "window_size": 4, "num_classes": 5}
STD, TCP = {**SMALL, "num_heads": (3, 6)}, {**SMALL, "num_heads": (1, 2)}


def small(kind: str, **options) -> SwinTransformer:
    model = tcpvit.create_model(f"{kind}_swin_tiny", **{**(STD if kind == "std" else TCP), **options}).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def from_timm(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """timm's weights under our names; its patch convolution is a matrix on pixels with the channel fastest."""
    renamed = {
        "patch_embed.norm": "patch_norm",
        "relative_position_bias_table": "windows.bias_table",
        "head.fc": "head",
    }
    ours = {}
    for name, weight in weights.items():
        for theirs, mine in renamed.items():
            name = name.replace(theirs, mine)
        ours[name] = weight.permute(0, 2, 3, 1).flatten(1) if name == "patch_embed.proj.weight" else weight
    return ours


def test_counts():
    with torch.device("meta"):
        theirs = timm.create_model("swin_tiny_patch4_window7_224")
        std, tcp = (tcpvit.create_model(f"{kind}_swin_tiny") for kind in ("std", "tcp"))
    assert count_parameters(std) == count_parameters(theirs) == 28_288_354
    tables = {
        kind: sum(p.numel() for n, p in m.named_parameters() if "table" in n)
        for kind, m in (("std", std), ("tcp", tcp))
    }
    assert tables["std"] == tables["tcp"] == 13 * 13 * 2 * (3 + 6 + 3 * 12 + 24)  # one bias for each softmax map
    linear = {
        kind: sum(
            p.numel()
            for n, p in m.layers.named_parameters()
            if p.ndim > 1 and "norm" not in n and "table" not in n and "bias" not in n
        )
        for kind, m in (("std", std), ("tcp", tcp))
    }
    assert 3 * linear["tcp"] == linear["std"]


@pytest.mark.parametrize("assign", [True, False])
@pytest.mark.parametrize("kind", ["std", "tcp"])
def test_a_model_made_on_meta_computes_its_tables_when_it_is_filled(kind, assign):
    config = SwinConfig(kind, img_size=32, embed_dim=24, depths=(2, 2), num_heads=(1, 2), window_size=4)
    model = SwinTransformer(config).eval()
    with torch.device("meta"):
        empty = SwinTransformer(config).eval()
    if not assign:
        empty.to_empty(device="cpu")
    empty.load_state_dict(model.state_dict(), assign=assign)
    x = torch.randn(1, 3, 32, 32)
    assert torch.equal(empty(x), model(x))


@pytest.mark.parametrize("size", [32, (32, 64), 24])
def test_with_timms_weights_the_outputs_are_timms(size):
    """Also where the last stage is one window, which is not shifted."""
    options = {**STD, "img_size": size}
    theirs = timm.create_model("swin_tiny_patch4_window7_224", **options, drop_path_rate=0.0).double().eval()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.3)
    for module in theirs.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1e-6  # ours everywhere; timm's Swin has 1e-5
    ours = small("std", img_size=size)
    ours.load_state_dict(from_timm(theirs.state_dict()))
    images = torch.randn(2, 3, *ours.config.image_shape, dtype=F64)
    torch.testing.assert_close(ours(images), theirs(images), atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(ours.forward_features(images), theirs.forward_features(images), atol=1e-9, rtol=1e-9)
    final, maps = ours.forward_intermediates(images, norm=True)
    torch.testing.assert_close((final, maps), theirs.forward_intermediates(images, norm=True), atol=1e-9, rtol=1e-9)


def test_by_slice_it_is_as_many_standard_swins():
    """Slice attention and hat-domain GELU: slice k of TCP-Swin is a Std-Swin of width d with the weights of slice k."""
    tcp, phi = small("tcp"), tcpvit.algebra.get_transform("dct", 3)
    images = torch.randn(2, 3, 32, 32, dtype=F64)
    slices = []
    for k, image in enumerate(phi.to_hat(images, dim=1).unbind(1)):
        std = small("std", in_chans=1, embed_dim=8, num_heads=(1, 2))
        std.load_state_dict(slice_weights(tcp, k))
        slices.append(std.forward_features(image.unsqueeze(1)))
    expected = phi.from_hat(torch.stack(slices, -1)).flatten(-2)
    torch.testing.assert_close(tcp.forward_features(images), expected, atol=1e-9, rtol=1e-9)


def slice_weights(tcp: SwinTransformer, k: int) -> dict[str, torch.Tensor]:
    """The weights of slice k as a standard Swin's; the head, which slices share, is left out of account."""
    weights = {}
    for name, p in tcp.state_dict().items():
        if name.endswith("bias_table"):
            p = p.unflatten(1, (3, -1))[:, k]
        elif "_hat" in name:
            p = p[k].mT if "norm" not in name and "weight" in name else p[k].squeeze(0)
        elif name == "head.weight":
            p = p[:, :16]
        weights[name.replace("_hat", "")] = p
    return weights


@pytest.mark.parametrize("attention", ["slice", "joint"])
@pytest.mark.parametrize("coupling", [[], ["shuffle", "mix:rotation"]])
@pytest.mark.parametrize("shift", [(0, 0), (2, 1)])
def test_window_attention_equals_loops(attention, coupling, shift):
    from tcpvit.layers import Coupling

    layer = TWindowAttention(
        8, 2, 3, grid=(8, 6), window=(4, 3), shift=shift, attention=attention, coupling=Coupling.parse(coupling)
    ).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    x_hat = torch.randn(3, 2, 8, 6, 8, dtype=F64)
    torch.testing.assert_close(layer(x_hat), slow_windows(layer, x_hat), atol=1e-10, rtol=1e-10)


def slow_windows(layer: TWindowAttention, x_hat: torch.Tensor) -> torch.Tensor:
    """Each token with every other of its window that was near it before the shift, head after head."""
    C, B, H, W, _ = x_hat.shape
    (h, w), (down, across), heads, size = layer.windows.window, layer.windows.shift, layer.num_heads, layer.head_dim
    qkv = layer.qkv(x_hat).unflatten(-1, (3, heads, size))
    out = torch.zeros(C, B, H, W, heads, size, dtype=x_hat.dtype)

    def window_of(i, j):
        """Window and half of it: tokens that a shift brings round are strangers to the others."""
        rows, columns = (i - down) % H, (j - across) % W
        return rows // h, columns // w, rows >= H - down, columns >= W - across

    places = [(i, j) for i in range(H) for j in range(W)]
    for i, j in places:
        near = [p for p in places if window_of(*p) == window_of(i, j)]
        for head in range(heads):
            q = qkv[:, :, i, j, 0, head]
            k, v = (
                torch.stack([qkv[:, :, a, b, part, head] for a, b in near], 2) for part in (1, 2)
            )  # (C, B, n, size)
            steps = [
                (((i - down) % H - (a - down) % H) + h - 1) * (2 * w - 1)
                + ((j - across) % W - (b - across) % W)
                + w
                - 1
                for a, b in near
            ]
            bias = layer.windows.bias_table[steps]  # (n, maps)
            scores = (k @ q.unsqueeze(-1)).squeeze(-1)  # (C, B, n)
            if layer.joint:
                weights = torch.softmax(scores.sum(0) / (C * size) ** 0.5 + bias[:, head], -1).expand(C, -1, -1)
            else:
                own = bias.unflatten(1, (C, heads))[:, :, head].mT.unsqueeze(1)  # (C, 1, n)
                weights = torch.softmax(scores / size**0.5 + own, -1)
            out[:, :, i, j, head] = (weights.unsqueeze(-2) @ v).squeeze(-2)
    o_hat = out.flatten(-2)
    if layer.shuffle:
        o_hat = torch.stack([*reference_shuffle(o_hat)])
    return layer.proj(o_hat)


def reference_shuffle(o_hat: torch.Tensor) -> torch.Tensor:
    identity = torch.eye(len(o_hat), dtype=o_hat.dtype)
    tokens = o_hat.flatten(1, -2).movedim(0, -1).unsqueeze(0)  # (1, n, d, C)
    return reference.shuffle(tokens, identity).squeeze(0).movedim(-1, 0).view(o_hat.shape)


@pytest.mark.parametrize(
    "options",
    [
        {"attention": "joint", "activation_domain": "spatial"},
        {"tube": 4, "transform": "haar", "coupling": "mix+low_rank:2"},
        {"transform": "learned", "coupling": "shuffle+partial:0.25"},
        {"in_chans": 5, "tube": 3},
        {"in_chans": 6, "embed_dim": 48},
    ],
)
def test_options_train(options):
    model = tcpvit.create_model(
        "tcp_swin_tiny", **{**TCP, **options}, drop_rate=0.1, attn_drop_rate=0.1, drop_path_rate=0.1
    )
    model(torch.randn(2, model.config.in_chans, 32, 32)).square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("kind", ["std", pytest.param("tcp", marks=pytest.mark.slow)])
def test_compiles_as_one_graph_and_exports(kind):
    model = small(kind, depths=(2,), num_heads=(1,)).float()
    images = torch.randn(2, 3, 32, 32)
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    compiled(images).square().mean().backward()
    torch.testing.assert_close(compiled(images), model(images), atol=1e-5, rtol=1e-4)
    program = torch.export.export(model, (images,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    more = torch.randn(3, *images.shape[1:])
    torch.testing.assert_close(program.module()(more), model(more), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["std", "tcp"])
def test_manners(kind, tmp_path):
    model = small(kind).float()
    images = torch.randn(2, 3, 32, 32)
    features = model.forward_features(images)
    assert features.shape == (2, 4, 4, 48)
    torch.testing.assert_close(model.forward_head(features), model(images))
    assert model.unflatten(features).shape == (2, 4, 4, 48 // model.config.tube_length, model.config.tube_length)
    tcpvit.save_pretrained(model, tmp_path)
    loaded = tcpvit.from_pretrained(tmp_path)
    assert isinstance(loaded, SwinTransformer)
    assert loaded.config == model.config
    torch.testing.assert_close(loaded(images), model(images))
    model.reset_classifier(7)
    assert model(images).shape == (2, 7)
    assert model.get_classifier() is model.head
    model.reset_classifier(0)
    torch.testing.assert_close(model(images), features.mean((1, 2)))
    with pytest.raises(ValueError, match="there are 2 stages"):
        model.forward_intermediates(images, [2])
    with pytest.raises(ValueError, match=r"images should be \(B, 3, H, W\)"):
        model(images[:, :2])
    groups = parameter_groups(model, lr=0.1, weight_decay=0.1)
    undecayed = next(g["names"] for g in groups if not g["weight_decay"])
    assert "layers.0.blocks.0.attn.windows.bias_table" in undecayed
    assert count_flops(model) > 0


def test_other_image_sizes_are_padded():
    """A window that does not divide the grid sees zeros beyond its end; the image itself decides the rest."""
    model = small("tcp")
    assert model(torch.randn(1, 3, 44, 28, dtype=F64)).shape == (1, 5)
    layer = WindowAttention(4, 1, grid=(4, 4), window=(4, 4), shift=(0, 0)).double()
    x = torch.randn(1, 3, 4, 4, dtype=F64)
    padded = torch.cat([x, torch.zeros(1, 1, 4, 4, dtype=F64)], 1)
    torch.testing.assert_close(layer(x), layer(padded)[:, :3])


@pytest.mark.parametrize(("kind", "options"), [("std", {}), ("tcp", {}), ("tcp", {"attention": "joint"})])
def test_an_empty_batch(kind, options):
    assert small(kind, **options)(torch.zeros(0, 3, 32, 32, dtype=F64)).shape == (0, 5)


def test_a_segmenter_takes_it():
    backbone = small("tcp", num_classes=0).float()
    model = EncoderDecoder(backbone, Decoder(DecoderConfig(channels=(6, 6)), in_channels=48, num_classes=2), multiple=8)
    assert model(torch.randn(1, 3, 30, 32)).shape == (1, 2, 30, 32)


def test_relative_positions_and_blocked_pairs():
    index = relative_positions((2, 3))
    assert index.unique().numel() == 3 * 5
    assert (index.diagonal() == 1 * 5 + 2).all()
    assert (index + index.T == 2 * (1 * 5 + 2)).all()  # (i, j) and (j, i) lie opposite each other in the table
    assert not blocked_pairs((8, 8), (4, 4), (0, 0)).any()
    blocked = blocked_pairs((8, 8), (4, 4), (2, 2)).view(2, 2, 16, 16)
    assert not blocked[0, 0].any()
    assert blocked[1, 1].sum() == 16 * 12  # four corners meet: each token sees 4 of 16


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depths": (2, 2, 2)}, "one number for each stage"),
        ({"num_heads": (3, 2)}, "num_heads=3 does not divide the width of a slice in stage 0, 8"),
        ({"tube": 5}, "the tube 5 does not divide the width 24"),
        ({"img_size": 30}, "does not divide into patches of 4"),
        ({"window_size": 0}, "window_size should be a whole number of at least 1, got 0"),
        ({"attention": "jont"}, "did you mean 'joint'"),
        ({"kind": "std"}, None),
        ({"kind": "std", "tube": 3}, "tube is an option of TCP models"),
    ],
)
def test_configs(options, message):
    if message is None:
        assert SwinConfig.from_dict(SwinConfig(**{"kind": "tcp", **TCP, **options}).to_dict()).kind == options["kind"]
        return
    with pytest.raises(ValueError, match=message):
        SwinConfig(**{"kind": "tcp", **TCP, **options})
