"""Attention, FFN, norm and block: the fast layers against the slow reference, and against PyTorch."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tcpvit.layers import Block, Coupling, TAttention, TBlock, TLayerNorm, TMlp, reference
from tcpvit.layers.attention import attend, into_groups, maps_of_all, out_of_groups, softmax_maps, split_heads
from tcpvit.layers.reference import PaperEncoder

F64 = torch.float64
COUPLINGS = [
    (),
    ("mix",),
    ("mix:rotation",),
    ("shuffle",),
    ("low_rank:2",),
    ("partial:0.3",),
    ("two_factor",),
    ("norm",),
    ("mix:rotation", "shuffle", "low_rank:1", "partial:0.25", "norm"),
    ("shared",),
    ("shared", "mix:rotation"),
    ("shared", "mix", "shuffle", "norm"),
]
APART = ((), ("mix",), ("shared",))  # slices that do not meet, or not yet


@pytest.fixture(autouse=True)
def double_precision():
    torch.set_default_dtype(F64)
    yield
    torch.set_default_dtype(torch.float32)


def randomised(layer: nn.Module) -> nn.Module:
    """Every parameter away from its start, so that no term hides behind a zero or a one."""
    for name, parameter in layer.named_parameters():
        if "transform" not in name:
            nn.init.normal_(parameter, std=0.4)
    return layer


def compare(layer, slow, x):
    """layer on hat slices first = slow on spatial tokens."""
    phi = layer.transform
    torch.testing.assert_close(phi.from_hat_tokens(layer(phi.to_hat_tokens(x))), slow(layer, x), atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("coupling", COUPLINGS)
@pytest.mark.parametrize(("attention", "domain"), list(itertools.product(["slice", "joint"], ["transform", "spatial"])))
@pytest.mark.parametrize("transform", ["dct", "cosine_kka", "learned"])
def test_block_equals_the_reference(coupling, attention, domain, transform):
    block = TBlock(
        6,
        2,
        3,
        transform,
        attention=attention,
        activation_domain=domain,
        coupling=Coupling.parse(coupling),
        mlp_ratio=2,
    )
    compare(randomised(block), reference.block, torch.randn(2, 5, 6, 3, dtype=F64))


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(1, 5), st.sampled_from(["slice", "joint"]))
def test_attention_equals_the_reference(tube, heads, head_dim, tokens, attention):
    layer = randomised(TAttention(heads * head_dim, heads, tube, attention=attention))
    x = torch.randn(2, tokens, heads * head_dim, tube, dtype=F64)
    phi = layer.qkv.transform
    torch.testing.assert_close(phi.from_hat_tokens(layer(phi.to_hat_tokens(x))), reference.attention(layer, x))


def test_attention_maps_are_those_that_attention_uses():
    for attention, shape in (("slice", (3, 2, 2, 5, 5)), ("joint", (2, 2, 5, 5))):
        layer = randomised(TAttention(4, 2, 3, attention=attention))
        x_hat = torch.randn(3, 2, 5, 4, dtype=F64)
        maps = layer.maps(x_hat)
        assert maps.shape == shape
        torch.testing.assert_close(maps.sum(-1), torch.ones(shape[:-1], dtype=F64))
        v = layer.qkv(x_hat)[..., 8:].unflatten(-1, (2, 2)).transpose(2, 3)  # (C, B, H, N, d_h)
        merged = (maps @ v).transpose(2, 3).flatten(-2)
        torch.testing.assert_close(layer.proj(merged), layer(x_hat))


def test_joint_scores_are_the_spatial_inner_products():
    """Parseval: Σ_k q̂_k·k̂_k = q·k, so a joint map is that of the flattened tokens."""
    layer = randomised(TAttention(4, 1, 3, attention="joint"))
    x_hat = torch.randn(3, 2, 5, 4, dtype=F64)
    spatial = layer.qkv.transform.from_hat_tokens(layer.qkv(x_hat))  # (B, N, 3·4, C)
    q, k = spatial[..., :4, :].flatten(-2), spatial[..., 4:8, :].flatten(-2)
    torch.testing.assert_close(layer.maps(x_hat)[:, 0], torch.softmax(q @ k.mT / 12**0.5, -1))


def test_t_layer_norm_equals_layer_norm_of_each_slice():
    layer = randomised(TLayerNorm(5, 3))
    x_hat = torch.randn(3, 2, 4, 5, dtype=F64)
    for k in range(3):
        expected = nn.functional.layer_norm(x_hat[k], (5,), layer.weight_hat[k, 0], layer.bias_hat[k, 0], eps=layer.eps)
        torch.testing.assert_close(layer(x_hat)[k], expected)


def test_standard_block_equals_pytorchs_encoder_layer():
    ours = randomised(Block(12, 3, mlp_ratio=2))
    theirs = nn.TransformerEncoderLayer(
        12, 3, 24, dropout=0.0, activation="gelu", layer_norm_eps=1e-6, batch_first=True, norm_first=True
    )
    names = {
        "self_attn.in_proj_weight": ours.attn.qkv.weight,
        "self_attn.in_proj_bias": ours.attn.qkv.bias,
        "self_attn.out_proj.weight": ours.attn.proj.weight,
        "self_attn.out_proj.bias": ours.attn.proj.bias,
        **{f"linear{i}.{p}": getattr(getattr(ours.mlp, f"fc{i}"), p) for i in (1, 2) for p in ("weight", "bias")},
        **{f"norm{i}.{p}": getattr(getattr(ours, f"norm{i}"), p) for i in (1, 2) for p in ("weight", "bias")},
    }
    theirs.load_state_dict(names)
    x = torch.randn(2, 5, 12, dtype=F64)
    torch.testing.assert_close(ours(x), theirs(x))


def test_with_a_tube_of_one_a_t_block_is_a_standard_block():
    t_block = randomised(TBlock(12, 3, tube=1))
    std = PaperEncoder([t_block]).slices[0][0]
    x = torch.randn(2, 5, 12, dtype=F64)
    torch.testing.assert_close(t_block(x[None])[0], std(x))


def test_the_papers_way_computes_the_same():
    blocks = [randomised(TBlock(6, 2, 3)) for _ in range(2)]
    x_hat = torch.randn(3, 2, 5, 6, dtype=F64)
    torch.testing.assert_close(PaperEncoder(blocks)(x_hat), blocks[1](blocks[0](x_hat)))


@pytest.mark.parametrize("option", [{"attention": "joint"}, {"activation_domain": "spatial"}])
def test_the_papers_way_refuses_slices_that_meet(option):
    with pytest.raises(ValueError, match="paper's way"):
        PaperEncoder([TBlock(6, 2, 3, **option)])


@pytest.mark.parametrize("coupling", [c for c in COUPLINGS if c not in APART])
def test_couplings_let_slices_meet_and_their_absence_does_not(coupling):
    def influence(block):
        """∂(output slice 0) / ∂(input slice 1)"""
        x = torch.randn(3, 1, 4, 6, dtype=F64, requires_grad=True)
        randomised(block)(x)[0].sum().backward()
        return x.grad[1].abs().max().item()

    assert influence(TBlock(6, 2, 3)) == 0
    assert influence(TBlock(6, 2, 3, coupling=Coupling.parse(coupling))) > 1e-6


def test_dropout_and_drop_path_act_in_training_only():
    block = TBlock(6, 2, 3, drop=0.5, attn_drop=0.5, drop_path=0.5)
    x = torch.randn(3, 64, 5, 6)
    assert not torch.equal(block(x), block(x))
    block.eval()
    assert torch.equal(block(x), block(x))


def test_drop_path_drops_whole_samples_in_all_slices():
    block = TBlock(6, 2, 3, drop_path=0.999)
    x = torch.randn(3, 64, 5, 6)
    untouched = (block(x) == x).flatten(2).all(-1)  # (C, B)
    assert untouched.sum() > 150
    assert torch.equal(untouched[0], untouched[1])


def test_errors():
    with pytest.raises(ValueError, match="num_heads=4 does not divide the slice width 6; take one of"):
        TAttention(6, 4, 3)
    with pytest.raises(ValueError, match="did you mean 'joint'"):
        TAttention(6, 2, 3, attention="joined")
    with pytest.raises(ValueError, match="did you mean 'spatial'"):
        TMlp(6, 12, 3, activation_domain="spacial")


@pytest.mark.parametrize("along", ["space", "time"])
@pytest.mark.parametrize("joint", [False, True])
def test_maps_of_all_tokens_do_to_the_values_what_attention_in_groups_does(along, joint):
    grid = (3, 2, 2)
    qkv = torch.randn(3, 2, 1 + 12, 3 * 8)
    wanted = out_of_groups(attend(into_groups(qkv, grid, along), 2, joint=joint), grid, along)
    q, k, _ = split_heads(into_groups(qkv, grid, along), 2, joint=joint)
    maps = softmax_maps(q, k) if joint else softmax_maps(q, k).unflatten(0, (3, -1))
    whole = maps_of_all(maps, grid, along)  # (C, B, H, N, N), or (B, H, N, N)
    torch.testing.assert_close(whole.sum(-1), torch.ones(whole.shape[:-1]))
    values = qkv.unflatten(-1, (3, 2, -1))[..., 2, :, :].transpose(2, 3)  # (C, B, H, N, d_h)
    torch.testing.assert_close((whole @ values).transpose(2, 3).flatten(-2), wanted)
