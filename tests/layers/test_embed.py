"""From images to tokens."""

import pytest
import torch

from tcpvit.layers import HatTransform, PatchEmbed, TokenEmbedding, TPatchEmbed, patchify, patchify_slices, reference
from tcpvit.layers.embed import sub_patches


def test_patchify_is_flatten_p2_c_with_the_channel_fastest():
    images = torch.arange(2 * 3 * 8 * 12).view(2, 3, 8, 12)
    tokens = patchify(images, 4)
    assert tokens.shape == (2, 6, 16, 3)
    # patch (row 1, column 2), pixel (3, 1), channel 2
    assert tokens[1, 1 * 3 + 2, 3 * 4 + 1, 2] == images[1, 2, 4 + 3, 8 + 1]
    assert torch.equal(patchify_slices(images, 4), tokens.movedim(-1, 0))


def test_sub_patches_of_a_patch_are_its_slices_and_patches_of_half_the_size():
    images = torch.arange(2 * 3 * 8 * 12).view(2, 3, 8, 12)
    slices = sub_patches(images, 4, tube=4)
    assert slices.shape == (4, 2, 6, 12)
    # patch (row 1, column 2), its sub-patch (1, 0), pixel (0, 1) of that, channel 2
    assert slices[2, 1, 1 * 3 + 2, 1 * 3 + 2] == images[1, 2, 4 + 2, 8 + 1]
    halves = patchify(images, 2).flatten(2).view(2, 2, 2, 3, 2, 12)  # (B, down, u, across, v, 12)
    assert torch.equal(slices, halves.permute(2, 4, 0, 1, 3, 5).reshape(4, 2, 6, 12))
    assert torch.equal(sub_patches(images, 4, tube=1)[0], patchify(images, 4).flatten(2))


def test_standard_embedding_is_the_convolution_of_other_vits():
    embed = PatchEmbed(3, 4, 10)
    conv = torch.nn.Conv2d(3, 10, 4, stride=4)
    with torch.no_grad():
        conv.weight.copy_(embed.proj.weight.view(10, 4, 4, 3).permute(0, 3, 1, 2))
        conv.bias.copy_(embed.proj.bias)
    images = torch.randn(2, 3, 8, 12)
    torch.testing.assert_close(embed(images), conv(images).flatten(2).mT)


@pytest.mark.parametrize(
    ("kind", "tube", "share"),
    [
        *[(kind, 3, False) for kind in ("none", "shared", "t_linear", "linear")],
        ("sub_patch", 4, False),
        ("sub_patch", 4, True),
        ("sub_patch", 1, True),
    ],
)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_tensor_embeddings_equal_the_reference(kind, tube, share, layout):
    phi = HatTransform("dct", tube)
    embed = TPatchEmbed(3, 2, 4, phi, kind, share=share)
    images = torch.randn(2, 3, 6, 4).to(memory_format=layout)
    torch.testing.assert_close(phi.from_hat_tokens(embed(images)), reference.patches(embed, images))


def test_parameters_of_the_embeddings():
    phi = HatTransform("dct", 3)
    count = {
        k: sum(p.numel() for p in TPatchEmbed(3, 8, 64, phi, k).parameters()) for k in ("none", "shared", "t_linear")
    }
    assert count == {"none": 0, "shared": 4096, "t_linear": 3 * (64 * 64 + 64)}


def test_errors_name_the_way_out():
    phi = HatTransform("dct", 6)
    with pytest.raises(ValueError, match="the tube is 6; take patch_embed='linear'"):
        TPatchEmbed(3, 4, 16, phi, "t_linear")
    with pytest.raises(ValueError, match="P² = 16, but the width asked for is 8"):
        TPatchEmbed(6, 4, 8, phi, "none")
    with pytest.raises(ValueError, match="did you mean 'shared'"):
        TPatchEmbed(6, 4, 8, phi, "sharde")
    with pytest.raises(ValueError, match=r"a patch of 4 pixels .* the tube is 6; take one of \[1, 4, 16\]"):
        TPatchEmbed(3, 4, 8, phi, "sub_patch")


def test_positions_are_resampled_for_another_grid_and_smooth_ones_stay_smooth():
    embed = TokenEmbedding((1,), (8, 8), 2)
    ramp = torch.linspace(-1, 1, 8)
    plane = torch.stack(torch.meshgrid(ramp, ramp, indexing="ij"), -1).view(64, 2)
    embed.pos_embed.data[0, 1:] = plane
    larger = embed.positions((16, 16))[0, 1:].view(16, 16, 2)
    assert larger.shape == (16, 16, 2)
    middle = torch.linspace(-1, 1, 8).repeat_interleave(2)[2:-2]
    assert (larger[2:-2, 5, 0] - middle).abs().max() < 0.16  # half a step of the coarse grid
    assert torch.equal(embed.positions((8, 8)), embed.pos_embed)
    assert torch.equal(embed.positions((4, 4))[:, :1], embed.pos_embed[:, :1])


@pytest.mark.parametrize("grid", [(16, 5), (3, 11)])
def test_positions_are_those_of_torchs_antialiased_bicubic(grid):
    embed = TokenEmbedding((3, 1), (8, 6), 5).double()
    planes = embed.pos_embed[:, 0, 1:].unflatten(1, (8, 6)).permute(0, 3, 1, 2)  # (3, 5, 8, 6)
    expected = torch.nn.functional.interpolate(planes, grid, mode="bicubic", antialias=True).flatten(2).mT
    torch.testing.assert_close(embed.positions(grid)[:, 0, 1:], expected)
    embed = embed.float()
    with torch.autocast("cpu", torch.bfloat16):  # rounds no positions, also not those of a compiled model
        torch.testing.assert_close(embed.positions(grid)[:, 0, 1:], expected.float())
        compiled = torch.compile(embed.positions, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(grid)[:, 0, 1:], expected.float())


def test_resampling_commutes_with_the_transform():
    """Positions live in the hat domain; resampling acts along the grid alone."""
    phi = HatTransform("dct", 3)
    embed = TokenEmbedding((3, 1), (4, 4), 5)
    torch.nn.init.normal_(embed.pos_embed)
    spatial = TokenEmbedding((3, 1), (4, 4), 5)
    spatial.pos_embed.data = phi.from_hat(embed.pos_embed.data)
    torch.testing.assert_close(phi.from_hat(embed.positions((6, 3))), spatial.positions((6, 3)))
